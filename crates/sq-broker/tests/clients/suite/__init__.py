"""What the client suite and the kill test share."""
