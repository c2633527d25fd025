//! One raw connection, one request at a time: the least that a client can add to a broker's time.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, ListOffsetsRequest, ProduceRequest, RequestHeader,
    ResponseHeader, TopicName,
    create_topics_request::{CreatableTopic, CreatableTopicConfig},
    fetch_request::{FetchPartition, FetchTopic},
    list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
    produce_request::{PartitionProduceData, TopicProduceData},
};
use kafka_protocol::protocol::{Decodable, Encodable as _, HeaderVersion, Request, StrBytes};

/// Bytes of a frame's length, before it.
pub(crate) const PREFIX: usize = 4;
const PRODUCE_VERSION: i16 = 8;
const FETCH_VERSION: i16 = 4;

/// A connection to a broker.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    correlation_id: i32,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| address.to_string())?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
            correlation_id: 0,
        })
    }

    /// Asks, and waits for the answer.
    pub(crate) fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.correlation_id += 1;
        let frame = encode(request, version, self.correlation_id)?;
        let mut answer = Bytes::copy_from_slice(self.exchange(&frame)?);
        let header_version = R::Response::header_version(version);
        let header = ResponseHeader::decode(&mut answer, header_version)?;
        ensure!(
            header.correlation_id == self.correlation_id,
            "another request's answer"
        );
        R::Response::decode(&mut answer, version)
    }

    /// Sends a request as it is, and waits for the answer.
    pub(crate) fn exchange(&mut self, frame: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(frame)?;
        let mut prefix = [0; PREFIX];
        self.stream.read_exact(&mut prefix)?;
        let length = usize::try_from(i32::from_be_bytes(prefix))?;
        if self.received.len() < length {
            self.received.resize(length, 0);
        }
        let answer = self.received.get_mut(..length).unwrap_or_default();
        self.stream.read_exact(answer)?;
        Ok(answer)
    }

    /// Creates a topic.
    pub(crate) fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        settings: &[(&str, String)],
    ) -> Result<()> {
        let configs = settings.iter().map(|(key, value)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string((*key).to_owned()))
                .with_value(Some(StrBytes::from_string(value.clone())))
        });
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(10_000);
        let response = self.call(&request, 4)?;
        match response.topics.first() {
            Some(topic) if topic.error_code == 0 => Ok(()),
            other => bail!("{name} was not created: {other:?}"),
        }
    }

    /// The offset that a partition's next record will get.
    pub(crate) fn end_offset(&mut self, topic: &str, partition: i32) -> Result<u64> {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_timestamp(-1);
        let of_topic = ListOffsetsTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![of_topic]);
        let response = self.call(&request, 2)?;
        let answer = response
            .topics
            .first()
            .and_then(|topic| topic.partitions.first())
            .context("an answer without the partition")?;
        ensure!(answer.error_code == 0, "no offset: {answer:?}");
        Ok(u64::try_from(answer.offset)?)
    }

    /// Sends a produce request and checks its answer: the batch's offset.
    pub(crate) fn produce(&mut self, frame: &[u8]) -> Result<i64> {
        let mut answer = Bytes::copy_from_slice(self.exchange(frame)?);
        ResponseHeader::decode(&mut answer, 0)?;
        let response = <ProduceRequest as Request>::Response::decode(&mut answer, PRODUCE_VERSION)?;
        let partition = response
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first())
            .context("an answer without the partition")?;
        ensure!(partition.error_code == 0, "not stored: {partition:?}");
        Ok(partition.base_offset)
    }

    /// Fetches from partition 0 on, and gives the bytes of batches and the offset behind the last.
    pub(crate) fn fetch(&mut self, topic: &str, offset: u64, most: i32) -> Result<Fetched> {
        let partition = FetchPartition::default()
            .with_fetch_offset(i64::try_from(offset)?)
            .with_partition_max_bytes(most);
        let of_topic = FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = FetchRequest::default()
            .with_max_wait_ms(1_000)
            .with_min_bytes(1)
            .with_max_bytes(most)
            .with_topics(vec![of_topic]);
        self.correlation_id += 1;
        let frame = encode(&request, FETCH_VERSION, self.correlation_id)?;
        fetched(self.exchange(&frame)?)
    }
}

/// What a fetch gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) bytes: u64,
    /// Behind the last batch; `None` if there is none.
    pub(crate) next_offset: Option<u64>,
}

/// Looks into a fetch response of version 4 with one partition, at the headers of its batches only.
fn fetched(mut answer: &[u8]) -> Result<Fetched> {
    let from = &mut answer;
    let _correlation_id = from.try_get_i32()?;
    let _throttle_time_ms = from.try_get_i32()?;
    ensure!(from.try_get_i32()? == 1, "not one topic");
    let name = usize::try_from(from.try_get_i16()?)?;
    *from = from.get(name..).context("no name")?;
    ensure!(from.try_get_i32()? == 1, "not one partition");
    let _index = from.try_get_i32()?;
    let error = from.try_get_i16()?;
    ensure!(error == 0, "fetch failed with error {error}");
    let _high_watermark = from.try_get_i64()?;
    let _last_stable_offset = from.try_get_i64()?;
    let aborted = from.try_get_i32()?;
    ensure!(aborted <= 0, "aborted transactions where there are none");
    let length = usize::try_from(from.try_get_i32()?.max(0))?;
    let last = batches(from.get(..length).context("no batches")?)?.pop();
    Ok(Fetched {
        bytes: length as u64,
        next_offset: last.map(|batch| batch.base_offset + batch.records),
    })
}

/// One of several batches, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchAt {
    /// Where it begins.
    pub(crate) position: usize,
    pub(crate) base_offset: u64,
    pub(crate) records: u64,
}

/// The batches that stand behind each other in a fetch's answer.
pub(crate) fn batches(bytes: &[u8]) -> Result<Vec<BatchAt>> {
    let mut batches = Vec::new();
    let mut position = 0;
    // The last batch may be cut short, in the protocol; sq never does.
    while let Some(mut header) = bytes.get(position..).filter(|rest| rest.len() >= 27) {
        let base_offset = u64::try_from(header.try_get_i64()?)?;
        let length = usize::try_from(header.try_get_i32()?)?;
        header.advance(11);
        let records = u64::try_from(header.try_get_i32()?)? + 1;
        batches.push(BatchAt {
            position,
            base_offset,
            records,
        });
        position += 12 + length;
    }
    Ok(batches)
}

/// A produce request for one batch to partition 0, acknowledged by all replicas.
pub(crate) fn produce_frame(topic: &str, batch: Bytes) -> Result<BytesMut> {
    let data = PartitionProduceData::default().with_records(Some(batch));
    let of_topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![of_topic]);
    encode(&request, PRODUCE_VERSION, 1)
}

/// A request as a frame, its length before it.
fn encode<R: Request>(request: &R, version: i16, correlation_id: i32) -> Result<BytesMut> {
    let mut frame = BytesMut::zeroed(PREFIX);
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("sq-bench")))
        .encode(&mut frame, R::header_version(version))?;
    request.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - PREFIX)?;
    if let Some(prefix) = frame.first_chunk_mut::<PREFIX>() {
        *prefix = length.to_be_bytes();
    }
    Ok(frame)
}

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Fetched, fetched};
    use bytes::{BufMut as _, Bytes, BytesMut};
    use kafka_protocol::messages::FetchResponse;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
    use kafka_protocol::protocol::Encodable as _;

    #[test]
    fn the_next_offset_is_behind_the_last_batch() {
        let batches = [
            crate::batch::batch(&[b"a", b"b", b"c"]).unwrap(),
            crate::batch::batch(&[b"d", b"e"]).unwrap(),
        ];
        let mut records = BytesMut::new();
        for (base, batch) in [7_u64, 10].into_iter().zip(batches) {
            records.put_u64(base);
            records.put_slice(&batch[8..]);
        }
        let bytes = records.len() as u64;
        let partition = PartitionData::default().with_records(Some(records.freeze()));
        let topic = FetchableTopicResponse::default().with_partitions(vec![partition]);
        let response = FetchResponse::default().with_responses(vec![topic]);
        let mut answer = BytesMut::new();
        answer.put_i32(1);
        response.encode(&mut answer, super::FETCH_VERSION).unwrap();
        let next_offset = Some(12);
        assert_eq!(fetched(&answer).unwrap(), Fetched { bytes, next_offset });
        let cut = Bytes::copy_from_slice(&answer[..40]);
        fetched(&cut).unwrap_err();
    }
}
