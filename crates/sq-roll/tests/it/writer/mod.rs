//! A log that rolls by the state machine.

mod exact;
mod random;
mod world;
