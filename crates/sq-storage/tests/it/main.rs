//! The log on a simulated disk.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it must be"
)]

mod acceptance;
mod ahead;
mod conditions;
mod damage;
mod disk;
mod faults;
mod index;
mod interval;
mod layer;
mod log;
mod log_model;
mod maintenance;
mod manifest;
mod many;
mod model;
mod mutants;
mod opening;
mod oracle;
mod points;
mod reading;
mod recycling;
mod retention;
mod rolling;
mod scrub;
mod sidecar;
mod successors;
mod support;
mod tail;
mod truncation;
mod twins;
mod zeroing;
