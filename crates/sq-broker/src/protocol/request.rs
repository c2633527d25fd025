//! Requests in: from a frame to a message, or to the reason why not.

use bytes::Bytes;
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::legacy;
use super::response::{self, Encoded, ResponseBody};
use super::rolls::DescribeRollsRequest;
use super::schema::{self, SchemaError};
use super::{Api, ResponseError};

/// A request, decoded. Its strings and records share the frame's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What is asked.
    pub api: Api,
    /// The version it is asked in, one of [`Api::served`].
    pub version: i16,
    /// What the response has to repeat.
    pub correlation_id: i32,
    /// The client's name for itself.
    pub client_id: Option<StrBytes>,
    /// The message.
    pub body: RequestBody,
}

impl Request {
    /// Whether the client waits for a response. It does, but for a produce request with acks=0.
    pub fn wants_response(&self) -> bool {
        !matches!(&self.body, RequestBody::Produce(produce) if produce.acks == 0)
    }
}

/// The message of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    /// Appends record batches.
    Produce(kafka::ProduceRequest),
    /// Reads record batches.
    Fetch(kafka::FetchRequest),
    /// Looks up offsets.
    ListOffsets(kafka::ListOffsetsRequest),
    /// Asks for brokers and topics.
    Metadata(kafka::MetadataRequest),
    /// Asks for a coordinator.
    FindCoordinator(kafka::FindCoordinatorRequest),
    /// Asks what is spoken.
    ApiVersions(kafka::ApiVersionsRequest),
    /// Creates topics.
    CreateTopics(kafka::CreateTopicsRequest),
    /// Deletes topics.
    DeleteTopics(kafka::DeleteTopicsRequest),
    /// Deletes records.
    DeleteRecords(kafka::DeleteRecordsRequest),
    /// Asks for a producer id.
    InitProducerId(kafka::InitProducerIdRequest),
    /// Asks for settings.
    DescribeConfigs(kafka::DescribeConfigsRequest),
    /// Asks about the cluster.
    DescribeCluster(kafka::DescribeClusterRequest),
    /// Asks how a log rolled.
    DescribeRolls(DescribeRollsRequest),
}

/// Why a frame is no request that can be served.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends before its correlation id.
    #[error("a request of {length} bytes has no header")]
    NoHeader {
        /// Bytes of the frame.
        length: usize,
    },
    /// An API that is not spoken.
    #[error("request {correlation_id} asks for API {key} (version {version}), which is not spoken")]
    UnknownApi {
        /// The API's key.
        key: i16,
        /// The version asked for.
        version: i16,
        /// The request's correlation id.
        correlation_id: i32,
    },
    /// A version that is not served.
    #[error("request {correlation_id} asks for {api} in version {version}, which is not spoken")]
    UnsupportedVersion {
        /// What is asked.
        api: Api,
        /// The version asked for.
        version: i16,
        /// The request's correlation id.
        correlation_id: i32,
        /// What to send, where the version has an answer that its client can read.
        answer: Option<Encoded>,
    },
    /// A length, a count or the frame's end is wrong.
    #[error("{api} request {correlation_id} of version {version}: {source}")]
    Malformed {
        /// What is asked.
        api: Api,
        /// The version it is asked in.
        version: i16,
        /// The request's correlation id.
        correlation_id: i32,
        /// What is wrong.
        source: SchemaError,
    },
    /// The lengths are right, and what they frame is not: text that is not UTF-8, a tag out of place.
    #[error("{api} request {correlation_id} of version {version}: {reason}")]
    Content {
        /// What is asked.
        api: Api,
        /// The version it is asked in.
        version: i16,
        /// The request's correlation id.
        correlation_id: i32,
        /// What is wrong.
        reason: String,
    },
}

impl DecodeError {
    /// What to send before going on with this connection; without it, the connection is to be
    /// closed and the reason logged.
    pub fn into_answer(self) -> Option<Encoded> {
        match self {
            Self::UnsupportedVersion { answer, .. } => answer,
            _ => None,
        }
    }
}

/// Bytes that an element of a request may come to, decoded and answered, beside its own.
const ITEM_BYTES: usize = 256;

/// A bound on what a request comes to in memory beyond its frame, in bytes: each of its elements
/// becomes a structure, and so does the answer to it. Forty requests of half a megabyte, each a list
/// of names of one letter, once became a gigabyte.
///
/// The batches of a produce request are what they are; so its weight is 0.
pub fn decoded_weight(frame: &[u8]) -> usize {
    let key = frame.first_chunk::<2>().map(|key| i16::from_be_bytes(*key));
    if key == Some(Api::Produce.key()) {
        return 0;
    }
    (frame.len() / 2).min(schema::MAX_ITEMS) * ITEM_BYTES
}

/// Decodes a request frame, without the length before it.
///
/// Allocates in proportion to what the frame holds, whatever it announces.
///
/// # Errors
/// [`DecodeError`], which knows whether there is something to answer.
pub fn decode(frame: Bytes) -> Result<Request, DecodeError> {
    let Some(&[k0, k1, v0, v1, c0, c1, c2, c3]) = frame.first_chunk::<8>() else {
        return Err(DecodeError::NoHeader {
            length: frame.len(),
        });
    };
    let key = i16::from_be_bytes([k0, k1]);
    let version = i16::from_be_bytes([v0, v1]);
    let correlation_id = i32::from_be_bytes([c0, c1, c2, c3]);
    let Some(api) = Api::from_key(key) else {
        return Err(DecodeError::UnknownApi {
            key,
            version,
            correlation_id,
        });
    };
    if !api.served().contains(&version) {
        let answer = answer_to_unsupported(&frame, api, version, correlation_id);
        return Err(DecodeError::UnsupportedVersion {
            api,
            version,
            correlation_id,
            answer,
        });
    }
    schema::check_request(&frame, api, version).map_err(|source| DecodeError::Malformed {
        api,
        version,
        correlation_id,
        source,
    })?;
    let (client_id, body) =
        decode_checked(frame, api, version).map_err(|reason| DecodeError::Content {
            api,
            version,
            correlation_id,
            reason,
        })?;
    Ok(Request {
        api,
        version,
        correlation_id,
        client_id,
        body,
    })
}

/// The answers that a client can read although it asked in a version that is not served.
fn answer_to_unsupported(
    frame: &Bytes,
    api: Api,
    version: i16,
    correlation_id: i32,
) -> Option<Encoded> {
    let unsupported = ResponseError::UnsupportedVersion.code();
    match api {
        // KIP-511: whatever was asked, in the layout of version 0, and the client asks again.
        Api::ApiVersions => {
            let body = ResponseBody::ApiVersions(response::api_versions(unsupported));
            response::encode(0, correlation_id, body).ok()
        }
        Api::Produce if (0..=2).contains(&version) => {
            legacy::refuse_produce(frame, version, correlation_id, unsupported)
        }
        _ => None,
    }
}

fn decode_checked(
    mut frame: Bytes,
    api: Api,
    version: i16,
) -> Result<(Option<StrBytes>, RequestBody), String> {
    let header_version = if api.flexible_request_header(version) {
        2
    } else {
        1
    };
    let header = message::<kafka::RequestHeader>(&mut frame, header_version)?;
    let from = &mut frame;
    let body = match api {
        Api::Produce => RequestBody::Produce(message(from, version)?),
        Api::Fetch => RequestBody::Fetch(message(from, version)?),
        Api::ListOffsets => RequestBody::ListOffsets(message(from, version)?),
        Api::Metadata => RequestBody::Metadata(message(from, version)?),
        Api::FindCoordinator => RequestBody::FindCoordinator(message(from, version)?),
        Api::ApiVersions => RequestBody::ApiVersions(message(from, version)?),
        Api::CreateTopics => RequestBody::CreateTopics(message(from, version)?),
        Api::DeleteTopics => RequestBody::DeleteTopics(message(from, version)?),
        Api::DeleteRecords => RequestBody::DeleteRecords(message(from, version)?),
        Api::InitProducerId => RequestBody::InitProducerId(message(from, version)?),
        Api::DescribeConfigs => RequestBody::DescribeConfigs(message(from, version)?),
        Api::DescribeCluster => RequestBody::DescribeCluster(message(from, version)?),
        Api::DescribeRolls => RequestBody::DescribeRolls(message(from, version)?),
    };
    match frame.len() {
        0 => Ok((header.client_id, body)),
        left => Err(format!("{left} bytes were not decoded")),
    }
}

fn message<M: Decodable>(frame: &mut Bytes, version: i16) -> Result<M, String> {
    M::decode(frame, version).map_err(|e| format!("{e:#}"))
}
