//! The protocol layer against `kafka-protocol`'s own encoders, and against lies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "a test may fail this way, and its numbers are small"
)]

mod alloc;
mod batches;
mod frames;
mod hostile;
mod lookups;
mod make;
mod requests;
mod responses;
mod segment_commands;
mod topic_commands;
