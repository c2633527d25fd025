//! The broker from outside: over a socket, and as a process.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it must be"
)]

mod configs;
mod delete_records;
mod fetch;
mod hostile;
mod idempotence;
mod neighbours;
mod offsets;
mod order;
mod process;
mod produce;
mod retention;
mod support;
mod topics;
