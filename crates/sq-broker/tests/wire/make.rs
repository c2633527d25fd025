//! Requests and responses of every API and version, made from a seed.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{
    FetchPartition, FetchTopic, ForgottenTopic, ReplicaState,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::protocol::{Encodable, StrBytes};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sq_broker::protocol::{Api, DescribeRollsRequest, RequestBody};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Every API in every version that is served.
pub(crate) fn every_version() -> impl Iterator<Item = (Api, i16)> {
    Api::ALL
        .into_iter()
        .flat_map(|api| api.served().map(move |version| (api, version)))
}

/// Makes messages in one version.
pub(crate) struct Make {
    random: StdRng,
    version: i16,
    flexible: bool,
}

impl Make {
    pub(crate) fn new(seed: u64, api: Api, version: i16) -> Self {
        let flexible = api.flexible_request_header(version);
        Self {
            random: StdRng::seed_from_u64(seed),
            version,
            flexible,
        }
    }

    pub(crate) fn number<T>(&mut self) -> T
    where
        rand::distr::StandardUniform: rand::distr::Distribution<T>,
    {
        self.random.random()
    }

    /// Fewer where the seed is small: 0 makes empty lists.
    pub(crate) fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.random.random_range(0..4);
        (0..count).map(|_| one(self)).collect()
    }

    pub(crate) fn maybe<T>(&mut self, one: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.random.random_bool(0.7).then(|| one(self))
    }

    pub(crate) fn text(&mut self) -> StrBytes {
        // 130 and more take two bytes of a varint, and an é two of UTF-8.
        let length = [0, 1, 5, 130][self.random.random_range(0..4)];
        StrBytes::from_string("é".repeat(length))
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        let length = [0, 1, 61, 200][self.random.random_range(0..4)];
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes[..]);
        bytes.into()
    }

    pub(crate) fn uuid(&mut self) -> Uuid {
        Uuid::from_u128(self.number())
    }

    pub(crate) fn since<T>(&mut self, version: i16, one: impl FnOnce(&mut Self) -> T, or: T) -> T {
        if self.version >= version {
            one(self)
        } else {
            or
        }
    }

    /// Tagged fields that nobody knows, where the version has tagged fields.
    pub(crate) fn tags(&mut self) -> BTreeMap<i32, Bytes> {
        if !self.flexible {
            return BTreeMap::new();
        }
        self.list(|make| (make.random.random_range(20..20_000), make.bytes()))
            .into_iter()
            .collect()
    }

    pub(crate) fn request(&mut self, api: Api) -> RequestBody {
        match api {
            Api::Produce => RequestBody::Produce(self.produce()),
            Api::Fetch => RequestBody::Fetch(self.fetch()),
            Api::ListOffsets => RequestBody::ListOffsets(self.list_offsets()),
            Api::Metadata => RequestBody::Metadata(self.metadata()),
            Api::FindCoordinator => RequestBody::FindCoordinator(self.find_coordinator()),
            Api::ApiVersions => RequestBody::ApiVersions(self.api_versions()),
            Api::CreateTopics => RequestBody::CreateTopics(self.create_topics()),
            Api::DeleteTopics => RequestBody::DeleteTopics(self.delete_topics()),
            Api::DeleteRecords => RequestBody::DeleteRecords(self.delete_records()),
            Api::InitProducerId => RequestBody::InitProducerId(self.init_producer_id()),
            Api::DescribeConfigs => RequestBody::DescribeConfigs(self.describe_configs()),
            Api::DescribeCluster => RequestBody::DescribeCluster(self.describe_cluster()),
            Api::DescribeRolls => RequestBody::DescribeRolls(DescribeRollsRequest {
                topic: self.text().into(),
                partition: self.number(),
                most: self.number(),
            }),
        }
    }

    fn produce(&mut self) -> kafka::ProduceRequest {
        kafka::ProduceRequest::default()
            .with_transactional_id(self.maybe(|m| m.text().into()))
            .with_acks(self.number())
            .with_timeout_ms(self.number())
            .with_topic_data(self.list(|m| {
                TopicProduceData::default()
                    .with_name(m.text().into())
                    .with_partition_data(m.list(|m| {
                        PartitionProduceData::default()
                            .with_index(m.number())
                            .with_records(m.maybe(Self::bytes))
                            .with_unknown_tagged_fields(m.tags())
                    }))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_unknown_tagged_fields(self.tags())
    }

    fn fetch(&mut self) -> kafka::FetchRequest {
        let replica = if self.version <= 14 {
            self.number::<i32>()
        } else {
            -1
        };
        kafka::FetchRequest::default()
            .with_cluster_id(self.since(12, |m| m.maybe(Self::text), None))
            .with_replica_id(replica.into())
            .with_replica_state(self.since(
                15,
                |m| {
                    ReplicaState::default()
                        .with_replica_id(m.number::<i32>().into())
                        .with_replica_epoch(m.number())
                        .with_unknown_tagged_fields(m.tags())
                },
                ReplicaState::default(),
            ))
            .with_max_wait_ms(self.number())
            .with_min_bytes(self.number())
            .with_max_bytes(self.number())
            .with_isolation_level(self.number())
            .with_session_id(self.since(7, Self::number, 0))
            .with_session_epoch(self.since(7, Self::number, -1))
            .with_topics(self.list(Self::fetch_topic))
            .with_forgotten_topics_data(self.since(7, |m| m.list(Self::forgotten), Vec::new()))
            .with_rack_id(self.since(11, Self::text, StrBytes::new()))
            .with_unknown_tagged_fields(self.tags())
    }

    fn fetch_topic(&mut self) -> FetchTopic {
        let named = self.version <= 12;
        let topic = FetchTopic::default();
        let topic = if named {
            topic.with_topic(self.text().into())
        } else {
            topic.with_topic_id(self.uuid())
        };
        topic
            .with_partitions(self.list(|m| {
                FetchPartition::default()
                    .with_partition(m.number())
                    .with_current_leader_epoch(m.since(9, Self::number, -1))
                    .with_fetch_offset(m.number())
                    .with_last_fetched_epoch(m.since(12, Self::number, -1))
                    .with_log_start_offset(m.since(5, Self::number, -1))
                    .with_partition_max_bytes(m.number())
                    .with_replica_directory_id(m.since(17, Self::uuid, Uuid::nil()))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_unknown_tagged_fields(self.tags())
    }

    fn forgotten(&mut self) -> ForgottenTopic {
        let topic = ForgottenTopic::default();
        let topic = if self.version <= 12 {
            topic.with_topic(self.text().into())
        } else {
            topic.with_topic_id(self.uuid())
        };
        topic
            .with_partitions(self.list(Self::number))
            .with_unknown_tagged_fields(self.tags())
    }

    fn list_offsets(&mut self) -> kafka::ListOffsetsRequest {
        kafka::ListOffsetsRequest::default()
            .with_replica_id(self.number::<i32>().into())
            .with_isolation_level(self.since(2, Self::number, 0))
            .with_topics(self.list(|m| {
                ListOffsetsTopic::default()
                    .with_name(m.text().into())
                    .with_partitions(m.list(|m| {
                        ListOffsetsPartition::default()
                            .with_partition_index(m.number())
                            .with_current_leader_epoch(m.since(4, Self::number, -1))
                            .with_timestamp(m.number())
                            .with_unknown_tagged_fields(m.tags())
                    }))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_timeout_ms(self.since(10, Self::number, 0))
            .with_unknown_tagged_fields(self.tags())
    }

    fn metadata(&mut self) -> kafka::MetadataRequest {
        let topics = |m: &mut Self| {
            m.list(|m| {
                let name = if m.version >= 10 {
                    m.maybe(Self::text)
                } else {
                    Some(m.text())
                };
                MetadataRequestTopic::default()
                    .with_topic_id(m.since(10, Self::uuid, Uuid::nil()))
                    .with_name(name.map(Into::into))
                    .with_unknown_tagged_fields(m.tags())
            })
        };
        let topics = if self.version >= 1 {
            self.maybe(topics)
        } else {
            Some(topics(self))
        };
        let cluster = (8..=10).contains(&self.version) && self.number();
        kafka::MetadataRequest::default()
            .with_topics(topics)
            .with_allow_auto_topic_creation(self.since(4, Self::number, true))
            .with_include_cluster_authorized_operations(cluster)
            .with_include_topic_authorized_operations(self.since(8, Self::number, false))
            .with_unknown_tagged_fields(self.tags())
    }

    fn find_coordinator(&mut self) -> kafka::FindCoordinatorRequest {
        let request = kafka::FindCoordinatorRequest::default()
            .with_key_type(self.since(1, Self::number, 0))
            .with_coordinator_keys(self.since(4, |m| m.list(Self::text), Vec::new()))
            .with_unknown_tagged_fields(self.tags());
        if self.version <= 3 {
            request.with_key(self.text())
        } else {
            request
        }
    }

    fn api_versions(&mut self) -> kafka::ApiVersionsRequest {
        kafka::ApiVersionsRequest::default()
            .with_client_software_name(self.since(3, Self::text, StrBytes::new()))
            .with_client_software_version(self.since(3, Self::text, StrBytes::new()))
            .with_unknown_tagged_fields(self.tags())
    }

    fn create_topics(&mut self) -> kafka::CreateTopicsRequest {
        kafka::CreateTopicsRequest::default()
            .with_topics(self.list(|m| {
                CreatableTopic::default()
                    .with_name(m.text().into())
                    .with_num_partitions(m.number())
                    .with_replication_factor(m.number())
                    .with_assignments(m.list(|m| {
                        CreatableReplicaAssignment::default()
                            .with_partition_index(m.number())
                            .with_broker_ids(m.list(|m| m.number::<i32>().into()))
                            .with_unknown_tagged_fields(m.tags())
                    }))
                    .with_configs(m.list(|m| {
                        CreatableTopicConfig::default()
                            .with_name(m.text())
                            .with_value(m.maybe(Self::text))
                            .with_unknown_tagged_fields(m.tags())
                    }))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_timeout_ms(self.number())
            .with_validate_only(self.number())
            .with_unknown_tagged_fields(self.tags())
    }

    fn delete_topics(&mut self) -> kafka::DeleteTopicsRequest {
        let request = kafka::DeleteTopicsRequest::default()
            .with_timeout_ms(self.number())
            .with_unknown_tagged_fields(self.tags());
        if self.version <= 5 {
            return request.with_topic_names(self.list(|m| m.text().into()));
        }
        request.with_topics(self.list(|m| {
            DeleteTopicState::default()
                .with_name(m.maybe(|m| m.text().into()))
                .with_topic_id(m.uuid())
                .with_unknown_tagged_fields(m.tags())
        }))
    }

    fn delete_records(&mut self) -> kafka::DeleteRecordsRequest {
        kafka::DeleteRecordsRequest::default()
            .with_topics(self.list(|m| {
                DeleteRecordsTopic::default()
                    .with_name(m.text().into())
                    .with_partitions(m.list(|m| {
                        DeleteRecordsPartition::default()
                            .with_partition_index(m.number())
                            .with_offset(m.number())
                            .with_unknown_tagged_fields(m.tags())
                    }))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_timeout_ms(self.number())
            .with_unknown_tagged_fields(self.tags())
    }

    fn init_producer_id(&mut self) -> kafka::InitProducerIdRequest {
        kafka::InitProducerIdRequest::default()
            .with_transactional_id(self.maybe(|m| m.text().into()))
            .with_transaction_timeout_ms(self.number())
            .with_producer_id(self.since(3, |m| m.number::<i64>().into(), (-1).into()))
            .with_producer_epoch(self.since(3, Self::number, -1))
            .with_unknown_tagged_fields(self.tags())
    }

    fn describe_configs(&mut self) -> kafka::DescribeConfigsRequest {
        kafka::DescribeConfigsRequest::default()
            .with_resources(self.list(|m| {
                DescribeConfigsResource::default()
                    .with_resource_type(m.number())
                    .with_resource_name(m.text())
                    .with_configuration_keys(m.maybe(|m| m.list(Self::text)))
                    .with_unknown_tagged_fields(m.tags())
            }))
            .with_include_synonyms(self.number())
            .with_include_documentation(self.since(3, Self::number, false))
            .with_unknown_tagged_fields(self.tags())
    }

    fn describe_cluster(&mut self) -> kafka::DescribeClusterRequest {
        kafka::DescribeClusterRequest::default()
            .with_include_cluster_authorized_operations(self.number())
            .with_endpoint_type(self.since(1, Self::number, 1))
            .with_include_fenced_brokers(self.since(2, Self::number, false))
            .with_unknown_tagged_fields(self.tags())
    }
}

/// A request made from a seed, and its frame.
pub(crate) fn request(seed: u64, api: Api, version: i16) -> (RequestBody, Bytes) {
    let mut make = Make::new(seed, api, version);
    let client_id = make.maybe(Make::text);
    let tags = make.tags();
    let body = make.request(api);
    let frame = frame(api, version, client_id, tags, &body);
    (body, frame)
}

/// A request's frame, by `kafka-protocol`'s encoders.
fn frame(
    api: Api,
    version: i16,
    client_id: Option<StrBytes>,
    tags: BTreeMap<i32, Bytes>,
    body: &RequestBody,
) -> Bytes {
    let mut out = BytesMut::new();
    let header_version = if api.flexible_request_header(version) {
        2
    } else {
        1
    };
    kafka::RequestHeader::default()
        .with_request_api_key(api.key())
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(client_id)
        .with_unknown_tagged_fields(tags)
        .encode(&mut out, header_version)
        .unwrap();
    encode_body(body, &mut out, version);
    out.freeze()
}

fn encode_body(body: &RequestBody, out: &mut BytesMut, version: i16) {
    match body {
        RequestBody::Produce(body) => body.encode(out, version),
        RequestBody::Fetch(body) => body.encode(out, version),
        RequestBody::ListOffsets(body) => body.encode(out, version),
        RequestBody::Metadata(body) => body.encode(out, version),
        RequestBody::FindCoordinator(body) => body.encode(out, version),
        RequestBody::ApiVersions(body) => body.encode(out, version),
        RequestBody::CreateTopics(body) => body.encode(out, version),
        RequestBody::DeleteTopics(body) => body.encode(out, version),
        RequestBody::DeleteRecords(body) => body.encode(out, version),
        RequestBody::InitProducerId(body) => body.encode(out, version),
        RequestBody::DescribeConfigs(body) => body.encode(out, version),
        RequestBody::DescribeCluster(body) => body.encode(out, version),
        RequestBody::DescribeRolls(body) => body.encode(out, version),
    }
    .unwrap();
}

/// The first bytes of a request whose client gives no name, and whatever is to follow.
pub(crate) fn raw(key: i16, version: i16, flexible: bool, rest: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(key);
    out.put_i16(version);
    out.put_i32(77);
    out.put_i16(-1);
    if flexible {
        out.put_u8(0);
    }
    out.put_slice(rest);
    out.freeze()
}
