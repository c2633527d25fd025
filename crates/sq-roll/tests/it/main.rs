//! Rolls, step by step and exhaustively.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it must be"
)]

mod metadata;
mod model;
mod random;
mod rolling;
mod schedule;
mod slack;
mod support;
mod writer;
