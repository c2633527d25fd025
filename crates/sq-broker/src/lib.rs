//! The broker: the Kafka protocol over `sq-storage`.
//!
//! - [`protocol`] is the wire: frames, the check of a request's lengths, requests in, responses out.
//! - [`batch`] is Kafka's record batch: its header, what a producer may send, a lookup by time.
//! - [`config`] is `sq.toml` and what a topic can be created with.
//! - [`data_dir`] and [`meta`] are what is durable beside the logs: whose directory it is, and which
//!   topics there are.
//! - [`producers`] decides which batches are retries; [`partition`] is a log and what
//!   stands in front of it.
//! - [`topics`] joins metadata and partitions.

pub mod atomic_file;
pub mod batch;
pub mod broker;
pub mod budget;
mod care;
pub mod cli;
pub mod config;
pub mod data_dir;
pub mod handlers;
pub mod meta;
pub mod partition;
pub mod producer_ids;
pub mod producers;
pub mod protocol;
pub mod server;
#[cfg(test)]
mod testing;
pub mod topics;
