//! The metadata along histories: what holds of every state, and of every step from one to the next.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it must be"
)]

mod bytes;
mod election;
mod failover;
mod histories;
mod log;
mod oracle;
mod placement;
mod quorum;
mod roll;
mod support;
mod topics;
