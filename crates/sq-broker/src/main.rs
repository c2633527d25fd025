//! The one binary, `sq`.

fn main() {}
