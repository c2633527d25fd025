//! A small Kafka client: one connection, one request at a time.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, StrBytes};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::HostPort;
use crate::protocol::{FrameError, read_frame};

/// The largest response that is read, in bytes.
const MAX_RESPONSE: usize = 64 * 1024 * 1024;

/// Why a broker could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("can't connect to {broker}: {source}")]
    Connect {
        /// Where to.
        broker: HostPort,
        /// What the system says.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{broker} did not answer within {after:?}")]
    Timeout {
        /// Who was asked.
        broker: HostPort,
        /// How long was waited.
        after: Duration,
    },
    /// The connection failed.
    #[error("the connection to {broker} failed: {source}")]
    Connection {
        /// Who was asked.
        broker: HostPort,
        /// What went wrong.
        source: FrameError,
    },
    /// The connection was closed instead of an answer.
    #[error("{broker} closed the connection without an answer")]
    Closed {
        /// Who was asked.
        broker: HostPort,
    },
    /// An answer that is none.
    #[error("{broker} answers what is no Kafka response: {reason}")]
    NotKafka {
        /// Who was asked.
        broker: HostPort,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker lacks an API, or has no version of it in common.
    #[error("{broker} has no version of API {api_key} that is spoken here")]
    NoCommonVersion {
        /// Who was asked.
        broker: HostPort,
        /// The API's key.
        api_key: i16,
    },
}

/// A connection to a broker.
#[derive(Debug)]
pub struct Client {
    broker: HostPort,
    stream: TcpStream,
    received: BytesMut,
    patience: Duration,
    correlation_id: i32,
    versions: BTreeMap<i16, (i16, i16)>,
}

impl Client {
    /// Connects, and asks which versions are spoken. Waits up to `patience` for each of the two,
    /// and for each answer later.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(broker: &HostPort, patience: Duration) -> Result<Self, ClientError> {
        let address = (broker.host.as_str(), broker.port);
        let stream = timeout(patience, TcpStream::connect(address))
            .await
            .map_err(|_| ClientError::Timeout {
                broker: broker.clone(),
                after: patience,
            })?
            .map_err(|source| ClientError::Connect {
                broker: broker.clone(),
                source,
            })?;
        let mut client = Self {
            broker: broker.clone(),
            stream,
            received: BytesMut::new(),
            patience,
            correlation_id: 0,
            versions: BTreeMap::new(),
        };
        let spoken: ApiVersionsResponse = client.call_in(&ApiVersionsRequest::default(), 0).await?;
        if let Some(error) = ResponseError::try_from_code(spoken.error_code) {
            return Err(client.not_kafka(error.to_string()));
        }
        client.versions = spoken
            .api_keys
            .iter()
            .map(|k| (k.api_key, (k.min_version, k.max_version)))
            .collect();
        Ok(client)
    }

    /// Asks, in the highest version that both sides know.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, ClientError> {
        let version = self.highest::<R>();
        let Some(version) = version else {
            let broker = self.broker.clone();
            return Err(ClientError::NoCommonVersion {
                broker,
                api_key: R::KEY,
            });
        };
        self.call_in(request, version).await
    }

    /// Asks what Kafka does not have and a broker does not say that it speaks, in version 0. One that does
    /// not speak it closes the connection.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn call_own<R: Request>(&mut self, request: &R) -> Result<R::Response, ClientError> {
        self.call_in(request, 0).await
    }

    /// The highest version of a request that both sides know.
    pub fn highest<R: Request>(&self) -> Option<i16> {
        let (min, max) = self.versions.get(&R::KEY)?;
        let highest = R::VERSIONS
            .max
            .min(<R::Response as Message>::VERSIONS.max)
            .min(*max);
        (highest >= R::VERSIONS.min.max(*min)).then_some(highest)
    }

    async fn call_in<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> Result<R::Response, ClientError> {
        self.correlation_id += 1;
        let frame = encode(request, version, self.correlation_id)
            .map_err(|e| self.not_kafka(format!("{e:#}")))?;
        let answer = timeout(
            self.patience,
            exchange(&mut self.stream, &mut self.received, &frame),
        );
        let answer = match answer.await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => {
                return Err(ClientError::Closed {
                    broker: self.broker.clone(),
                });
            }
            Ok(Err(source)) => {
                return Err(ClientError::Connection {
                    broker: self.broker.clone(),
                    source,
                });
            }
            Err(_) => {
                let broker = self.broker.clone();
                return Err(ClientError::Timeout {
                    broker,
                    after: self.patience,
                });
            }
        };
        self.decode::<R::Response>(answer, version)
    }

    fn decode<M: Decodable + HeaderVersion>(
        &self,
        mut answer: Bytes,
        version: i16,
    ) -> Result<M, ClientError> {
        let header = ResponseHeader::decode(&mut answer, M::header_version(version))
            .map_err(|e| self.not_kafka(format!("{e:#}")))?;
        if header.correlation_id != self.correlation_id {
            return Err(self.not_kafka("it answers another request".to_owned()));
        }
        M::decode(&mut answer, version).map_err(|e| self.not_kafka(format!("{e:#}")))
    }

    fn not_kafka(&self, reason: String) -> ClientError {
        ClientError::NotKafka {
            broker: self.broker.clone(),
            reason,
        }
    }
}

/// A request as a frame, its length before it.
fn encode<R: Request>(
    request: &R,
    version: i16,
    correlation_id: i32,
) -> Result<BytesMut, Box<dyn std::error::Error + Send + Sync>> {
    let mut frame = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("sq")))
        .encode(&mut frame, R::header_version(version))?;
    request.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - 4)?;
    if let Some(prefix) = frame.first_chunk_mut::<4>() {
        *prefix = length.to_be_bytes();
    }
    Ok(frame)
}

async fn exchange(
    stream: &mut TcpStream,
    received: &mut BytesMut,
    frame: &[u8],
) -> Result<Option<Bytes>, FrameError> {
    stream.write_all(frame).await?;
    read_frame(stream, received, MAX_RESPONSE).await
}
