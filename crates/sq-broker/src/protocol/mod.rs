//! The Kafka wire protocol, up to and not including what a request means.
//!
//! A connection is a row of frames ([`frame`]). A request frame is walked by a checker of its own
//! ([`schema`]) before `kafka-protocol` may decode it ([`request`]), because that crate believes
//! every length it reads. A response becomes a list of buffers ([`response`]), in which fetched
//! batches are the very bytes that were read from the log.

pub mod api;
mod chunks;
pub mod fetch;
mod fit;
pub mod frame;
mod legacy;
pub mod request;
pub mod response;
pub mod rolls;
pub mod schema;
mod schemas;

pub use api::Api;
pub use fetch::{FetchResponse, FetchedPartition, FetchedTopic};
pub use frame::{FrameError, read_frame, write_frame};
pub use kafka_protocol::error::ResponseError;
pub use request::{DecodeError, Request, RequestBody, decode, decoded_weight};
pub use response::{Encoded, ResponseBody, encode};
pub use rolls::{DescribeRollsRequest, DescribeRollsResponse};
