//! A log that rolls by the state machine.

mod exact;
mod failures;
mod random;
mod world;
