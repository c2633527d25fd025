//! Responses out: a length, a header and a body, as a list of buffers.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::protocol::Encodable;

use super::Api;
use super::chunks::Chunks;
use super::fetch::FetchResponse;
use super::frame::LENGTH_PREFIX;
use super::rolls::DescribeRollsResponse;

/// The body of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseBody {
    /// Answers Produce.
    Produce(kafka::ProduceResponse),
    /// Answers Fetch.
    Fetch(FetchResponse),
    /// Answers `ListOffsets`.
    ListOffsets(kafka::ListOffsetsResponse),
    /// Answers Metadata.
    Metadata(kafka::MetadataResponse),
    /// Answers `FindCoordinator`.
    FindCoordinator(kafka::FindCoordinatorResponse),
    /// Answers `ApiVersions`.
    ApiVersions(kafka::ApiVersionsResponse),
    /// Answers `CreateTopics`.
    CreateTopics(kafka::CreateTopicsResponse),
    /// Answers `DeleteTopics`.
    DeleteTopics(kafka::DeleteTopicsResponse),
    /// Answers `DeleteRecords`.
    DeleteRecords(kafka::DeleteRecordsResponse),
    /// Answers `InitProducerId`.
    InitProducerId(kafka::InitProducerIdResponse),
    /// Answers `DescribeConfigs`.
    DescribeConfigs(kafka::DescribeConfigsResponse),
    /// Answers `DescribeCluster`.
    DescribeCluster(kafka::DescribeClusterResponse),
    /// Answers `DescribeRolls`.
    DescribeRolls(DescribeRollsResponse),
}

/// A response ready to be written, its length before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    chunks: Vec<Bytes>,
    len: usize,
}

impl Encoded {
    /// The buffers in order, none of them empty.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// The buffers in order, none of them empty.
    pub fn into_chunks(self) -> Vec<Bytes> {
        self.chunks
    }

    /// Bytes in all, the length's own four included. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a response is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Why a response can't be encoded. This is our own fault, and the connection is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A part of the response, or all of it, is longer than the protocol can say.
    #[error("{length} bytes or elements are more than the protocol can express")]
    TooLarge {
        /// Bytes or elements.
        length: usize,
    },
    /// The body holds what its version has no place for.
    #[error("{api} response of version {version}: {reason}")]
    Body {
        /// What is answered.
        api: Api,
        /// The version it is answered in.
        version: i16,
        /// What is wrong with it.
        reason: String,
    },
}

/// Encodes a response in the version of its request: length, header and body.
///
/// Fields that the version does not have are left out, so a handler may set them regardless. A
/// fetched batch's bytes become a chunk of the result as they are.
///
/// # Errors
/// [`EncodeError`] for a body that can't be expressed in this version.
pub fn encode(
    version: i16,
    correlation_id: i32,
    body: ResponseBody,
) -> Result<Encoded, EncodeError> {
    let api = body.api();
    let body = body.fitted_to(version);
    let mut head = BytesMut::with_capacity(LENGTH_PREFIX + 5 + body.own_size(version)?);
    head.put_i32(0);
    head.put_i32(correlation_id);
    if api.flexible_response_header(version) {
        head.put_u8(0);
    }
    let mut out = Chunks::new(head);
    body.append_to(&mut out, version)?;
    finish(out)
}

/// Fills in the length and gives the buffers out.
pub(super) fn finish(mut out: Chunks) -> Result<Encoded, EncodeError> {
    let len = out.len();
    let length = i32::try_from(len - LENGTH_PREFIX).map_err(|_| EncodeError::TooLarge {
        length: len - LENGTH_PREFIX,
    })?;
    if let Some(prefix) = out.own().first_chunk_mut::<LENGTH_PREFIX>() {
        *prefix = length.to_be_bytes();
    }
    Ok(Encoded {
        chunks: out.finish(),
        len,
    })
}

/// The `ApiVersions` response: what is advertised, with an error or 0.
pub fn api_versions(error_code: i16) -> kafka::ApiVersionsResponse {
    let advertised = Api::ALL.into_iter().filter(|api| api.is_kafkas());
    let keys = advertised.map(|api| {
        ApiVersion::default()
            .with_api_key(api.key())
            .with_min_version(*api.advertised().start())
            .with_max_version(*api.advertised().end())
    });
    kafka::ApiVersionsResponse::default()
        .with_error_code(error_code)
        .with_api_keys(keys.collect())
}

/// Does the same with whichever body it is that `kafka-protocol`'s traits encode, and something else with Fetch.
macro_rules! each_body {
    ($body:expr, $own:ident => $do:expr, $fetch:ident => $do_fetch:expr $(,)?) => {
        match $body {
            ResponseBody::Produce($own) => $do,
            ResponseBody::Fetch($fetch) => $do_fetch,
            ResponseBody::ListOffsets($own) => $do,
            ResponseBody::Metadata($own) => $do,
            ResponseBody::FindCoordinator($own) => $do,
            ResponseBody::ApiVersions($own) => $do,
            ResponseBody::CreateTopics($own) => $do,
            ResponseBody::DeleteTopics($own) => $do,
            ResponseBody::DeleteRecords($own) => $do,
            ResponseBody::InitProducerId($own) => $do,
            ResponseBody::DescribeConfigs($own) => $do,
            ResponseBody::DescribeCluster($own) => $do,
            ResponseBody::DescribeRolls($own) => $do,
        }
    };
}

impl ResponseBody {
    /// The API this answers.
    pub fn api(&self) -> Api {
        match self {
            Self::Produce(_) => Api::Produce,
            Self::Fetch(_) => Api::Fetch,
            Self::ListOffsets(_) => Api::ListOffsets,
            Self::Metadata(_) => Api::Metadata,
            Self::FindCoordinator(_) => Api::FindCoordinator,
            Self::ApiVersions(_) => Api::ApiVersions,
            Self::CreateTopics(_) => Api::CreateTopics,
            Self::DeleteTopics(_) => Api::DeleteTopics,
            Self::DeleteRecords(_) => Api::DeleteRecords,
            Self::InitProducerId(_) => Api::InitProducerId,
            Self::DescribeConfigs(_) => Api::DescribeConfigs,
            Self::DescribeCluster(_) => Api::DescribeCluster,
            Self::DescribeRolls(_) => Api::DescribeRolls,
        }
    }

    /// Bytes of the body, without the batches of a Fetch response.
    fn own_size(&self, version: i16) -> Result<usize, EncodeError> {
        let api = self.api();
        let refused = |reason| EncodeError::Body {
            api,
            version,
            reason,
        };
        each_body!(
            self,
            own => own.compute_size(version).map_err(|e| refused(format!("{e:#}"))),
            fetch => Ok(fetch.own_size()),
        )
    }

    fn append_to(self, out: &mut Chunks, version: i16) -> Result<(), EncodeError> {
        let api = self.api();
        let refused = |reason| EncodeError::Body {
            api,
            version,
            reason,
        };
        each_body!(
            self,
            own => own.encode(out.own(), version).map_err(|e| refused(format!("{e:#}"))),
            fetch => fetch.encode(out, version),
        )
    }
}
