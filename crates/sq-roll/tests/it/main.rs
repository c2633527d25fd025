//! Rolls, step by step and exhaustively.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

mod random;
mod rolling;
mod support;
