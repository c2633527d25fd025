//! The broker: the Kafka protocol over `sq-storage`.
//!
//! - [`protocol`] is the wire: frames, the check of a request's lengths, requests in, responses out.
//! - [`batch`] is Kafka's record batch: its header, what a producer may send, a lookup by time.
//! - [`config`] is `sq.toml` and what a topic can be created with.

pub mod batch;
pub mod cli;
pub mod config;
pub mod protocol;
