//! The roll's state machine and the metadata's, both as they ship, explored together. The world is that
//! of sq-roll's own tests, where the metadata is modelled; here it is the real one.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it must be"
)]

mod metadata;
#[path = "../../../sq-roll/tests/it/model/mod.rs"]
mod model;
