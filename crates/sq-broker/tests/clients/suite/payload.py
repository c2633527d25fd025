"""What the producers of the kill test send: a value that says who wrote it and as which one."""

import time

# A producer sends this many at once, and so many a second: enough to keep requests in flight at all times and to
# fill many segments a second, and few enough to read every record back.
BURST = 100
RECORDS_PER_SECOND = 1500

_PAD = bytes(range(33, 127)) * 64


def value(name, sequence):
    """`name:sequence:` and a filling whose length and bytes follow from the sequence."""
    start = sequence % 89
    return f"{name}:{sequence}:".encode() + _PAD[start : start + sequence * 7919 % 1500]


def parse(data):
    """The `(name, sequence)` of a value, or `None` where the bytes are not what that producer sent."""
    try:
        name, sequence, _ = bytes(data).split(b":", 2)
        name, sequence = name.decode(), int(sequence)
    except ValueError:
        return None
    return (name, sequence) if value(name, sequence) == data else None


class Pace:
    """How long to wait before a record is due."""

    def __init__(self):
        self._began = time.monotonic()

    def wait_seconds(self, sequence):
        due = sequence // BURST * BURST / RECORDS_PER_SECOND
        return max(0.0, self._began + due - time.monotonic())
