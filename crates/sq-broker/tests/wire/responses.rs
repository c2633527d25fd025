//! Responses: what is encoded is what `kafka-protocol` reads, in every version.

use bytes::{Buf, Bytes};
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::protocol::{Decodable, Encodable};
use proptest::prelude::{any, proptest};
use sq_broker::protocol::rolls::RollEntry;
use sq_broker::protocol::{
    Api, DescribeRollsResponse, Encoded, FetchResponse, FetchedPartition, FetchedTopic,
    ResponseBody, encode, response,
};
use uuid::Uuid;

use crate::make::{Make, every_version};

impl Make {
    /// A response with every field set that a handler may set, whatever the version.
    fn response(&mut self, api: Api) -> ResponseBody {
        match api {
            Api::Produce => ResponseBody::Produce(self.produced()),
            Api::Fetch => ResponseBody::Fetch(self.fetched()),
            Api::ListOffsets => ResponseBody::ListOffsets(self.offsets()),
            Api::Metadata => ResponseBody::Metadata(self.topics_and_brokers()),
            Api::FindCoordinator => ResponseBody::FindCoordinator(self.coordinators()),
            Api::ApiVersions => ResponseBody::ApiVersions(response::api_versions(self.number())),
            Api::CreateTopics => ResponseBody::CreateTopics(self.created()),
            Api::DeleteTopics => ResponseBody::DeleteTopics(self.deleted()),
            Api::DeleteRecords => ResponseBody::DeleteRecords(self.watermarks()),
            Api::InitProducerId => ResponseBody::InitProducerId(
                kafka::InitProducerIdResponse::default()
                    .with_error_code(self.number())
                    .with_producer_id(self.number::<i64>().into())
                    .with_producer_epoch(self.number()),
            ),
            Api::DescribeConfigs => ResponseBody::DescribeConfigs(self.settings()),
            Api::DescribeCluster => ResponseBody::DescribeCluster(self.cluster()),
            Api::DescribeRolls => ResponseBody::DescribeRolls(self.rolls()),
        }
    }

    fn produced(&mut self) -> kafka::ProduceResponse {
        kafka::ProduceResponse::default()
            .with_throttle_time_ms(self.number())
            .with_responses(self.list(|m| {
                TopicProduceResponse::default()
                    .with_name(m.text().into())
                    .with_topic_id(m.uuid())
                    .with_partition_responses(m.list(|m| {
                        PartitionProduceResponse::default()
                            .with_index(m.number())
                            .with_error_code(m.number())
                            .with_base_offset(m.number())
                            .with_log_append_time_ms(m.number())
                            .with_log_start_offset(m.number())
                            .with_error_message(m.maybe(Self::text))
                    }))
            }))
    }

    pub(crate) fn fetched(&mut self) -> FetchResponse {
        FetchResponse {
            throttle_time_ms: self.number(),
            error_code: self.number(),
            session_id: self.number(),
            topics: self.list(|m| FetchedTopic {
                name: m.text().into(),
                topic_id: m.uuid(),
                partitions: m.list(|m| FetchedPartition {
                    partition_index: m.number(),
                    error_code: m.number(),
                    high_watermark: m.number(),
                    last_stable_offset: m.number(),
                    log_start_offset: m.number(),
                    records: m.list(Self::bytes),
                }),
            }),
        }
    }

    fn offsets(&mut self) -> kafka::ListOffsetsResponse {
        kafka::ListOffsetsResponse::default().with_topics(self.list(|m| {
            ListOffsetsTopicResponse::default()
                .with_name(m.text().into())
                .with_partitions(m.list(|m| {
                    ListOffsetsPartitionResponse::default()
                        .with_partition_index(m.number())
                        .with_error_code(m.number())
                        .with_timestamp(m.number())
                        .with_offset(m.number())
                        .with_leader_epoch(m.number())
                }))
        }))
    }

    fn topics_and_brokers(&mut self) -> kafka::MetadataResponse {
        kafka::MetadataResponse::default()
            .with_brokers(self.list(|m| {
                MetadataResponseBroker::default()
                    .with_node_id(m.number::<i32>().into())
                    .with_host(m.text())
                    .with_port(m.number())
                    .with_rack(m.maybe(Self::text))
            }))
            .with_cluster_id(self.maybe(Self::text))
            .with_controller_id(self.number::<i32>().into())
            .with_cluster_authorized_operations(self.number())
            .with_topics(self.list(|m| {
                MetadataResponseTopic::default()
                    .with_error_code(m.number())
                    .with_name(m.maybe(|m| m.text().into()))
                    .with_topic_id(m.uuid())
                    .with_topic_authorized_operations(m.number())
                    .with_partitions(m.list(|m| {
                        MetadataResponsePartition::default()
                            .with_partition_index(m.number())
                            .with_leader_id(m.number::<i32>().into())
                            .with_leader_epoch(m.number())
                            .with_replica_nodes(m.list(|m| m.number::<i32>().into()))
                            .with_isr_nodes(m.list(|m| m.number::<i32>().into()))
                            .with_offline_replicas(m.list(|m| m.number::<i32>().into()))
                    }))
            }))
    }

    fn coordinators(&mut self) -> kafka::FindCoordinatorResponse {
        kafka::FindCoordinatorResponse::default()
            .with_throttle_time_ms(self.number())
            .with_coordinators(self.list(|m| {
                Coordinator::default()
                    .with_key(m.text())
                    .with_node_id(m.number::<i32>().into())
                    .with_host(m.text())
                    .with_port(m.number())
                    .with_error_code(m.number())
                    .with_error_message(m.maybe(Self::text))
            }))
    }

    fn created(&mut self) -> kafka::CreateTopicsResponse {
        kafka::CreateTopicsResponse::default().with_topics(self.list(|m| {
            CreatableTopicResult::default()
                .with_name(m.text().into())
                .with_topic_id(m.uuid())
                .with_error_code(m.number())
                .with_error_message(m.maybe(Self::text))
                .with_topic_config_error_code(m.number())
                .with_num_partitions(m.number())
                .with_replication_factor(m.number())
                .with_configs(m.maybe(|m| {
                    m.list(|m| {
                        CreatableTopicConfigs::default()
                            .with_name(m.text())
                            .with_value(m.maybe(Self::text))
                            .with_config_source(m.number())
                    })
                }))
        }))
    }

    fn deleted(&mut self) -> kafka::DeleteTopicsResponse {
        let named = |m: &mut Self| m.text().into();
        kafka::DeleteTopicsResponse::default().with_responses(self.list(|m| {
            DeletableTopicResult::default()
                .with_name(m.since(6, |m| m.maybe(named), Some(text("x".to_owned()))))
                .with_topic_id(m.uuid())
                .with_error_code(m.number())
                .with_error_message(m.maybe(Self::text))
        }))
    }

    fn watermarks(&mut self) -> kafka::DeleteRecordsResponse {
        kafka::DeleteRecordsResponse::default().with_topics(self.list(|m| {
            DeleteRecordsTopicResult::default()
                .with_name(m.text().into())
                .with_partitions(m.list(|m| {
                    DeleteRecordsPartitionResult::default()
                        .with_partition_index(m.number())
                        .with_low_watermark(m.number())
                        .with_error_code(m.number())
                }))
        }))
    }

    fn settings(&mut self) -> kafka::DescribeConfigsResponse {
        kafka::DescribeConfigsResponse::default().with_results(self.list(|m| {
            DescribeConfigsResult::default()
                .with_error_code(m.number())
                .with_error_message(m.maybe(Self::text))
                .with_resource_type(m.number())
                .with_resource_name(m.text())
                .with_configs(m.list(|m| {
                    DescribeConfigsResourceResult::default()
                        .with_name(m.text())
                        .with_value(m.maybe(Self::text))
                        .with_config_source(m.number())
                        .with_config_type(m.number())
                        .with_documentation(m.maybe(Self::text))
                        .with_synonyms(m.list(|m| {
                            DescribeConfigsSynonym::default()
                                .with_name(m.text())
                                .with_value(m.maybe(Self::text))
                                .with_source(m.number())
                        }))
                }))
        }))
    }

    fn rolls(&mut self) -> DescribeRollsResponse {
        let roll = |m: &mut Self| RollEntry {
            from: m.number(),
            to: m.number(),
            end: m.number(),
            trigger: m.number(),
            switch_wall_ms: m.number(),
            soft_mark_us: m.number(),
            request_us: m.number(),
            ready_us: m.number(),
            sealed_us: m.number(),
            soft_mark_bytes: m.number(),
            switch_bytes: m.number(),
            overrun_bytes: m.number(),
            waited_us: m.number(),
            producer_gap_us: m.number(),
            tail_gap_us: m.number(),
            usual_gap_us: m.number(),
        };
        DescribeRollsResponse {
            error_code: self.number(),
            rolls: self.list(roll),
        }
    }

    fn cluster(&mut self) -> kafka::DescribeClusterResponse {
        kafka::DescribeClusterResponse::default()
            .with_error_code(self.number())
            .with_error_message(self.maybe(Self::text))
            .with_endpoint_type(self.number())
            .with_cluster_id(self.text())
            .with_controller_id(self.number::<i32>().into())
            .with_brokers(self.list(|m| {
                DescribeClusterBroker::default()
                    .with_broker_id(m.number::<i32>().into())
                    .with_host(m.text())
                    .with_port(m.number())
                    .with_is_fenced(m.number())
            }))
    }
}

fn text(text: String) -> kafka::TopicName {
    kafka::TopicName(text.into())
}

/// The body behind a response's length and header, both of them checked.
fn body_of(api: Api, version: i16, encoded: &Encoded) -> Bytes {
    assert!(encoded.chunks().iter().all(|chunk| !chunk.is_empty()));
    let mut bytes = Bytes::from(encoded.chunks().concat());
    assert_eq!(bytes.len(), encoded.len());
    assert_eq!(bytes.get_u32() as usize, bytes.len());
    assert_eq!(bytes.get_i32(), 77);
    if api.flexible_response_header(version) {
        assert_eq!(bytes.get_u8(), 0, "no tagged fields in the header");
    }
    bytes
}

/// Reads a body to its end, and encodes it again.
fn again<M: Decodable + Encodable>(mut body: Bytes, version: i16) -> Vec<u8> {
    let message = M::decode(&mut body, version).unwrap();
    assert!(body.is_empty());
    let mut out = Vec::new();
    message.encode(&mut out, version).unwrap();
    out
}

proptest! {
    #[test]
    fn a_response_of_any_version_is_read_to_its_end(seed in any::<u64>()) {
        for (api, version) in every_version() {
            let body = Make::new(seed, api, version).response(api);
            let encoded = encode(version, 77, body).unwrap_or_else(|e| panic!("{e}"));
            let body = body_of(api, version, &encoded);
            let reencoded = match api {
                Api::Produce => again::<kafka::ProduceResponse>(body.clone(), version),
                Api::Fetch => again::<kafka::FetchResponse>(body.clone(), version),
                Api::ListOffsets => again::<kafka::ListOffsetsResponse>(body.clone(), version),
                Api::Metadata => again::<kafka::MetadataResponse>(body.clone(), version),
                Api::FindCoordinator => again::<kafka::FindCoordinatorResponse>(body.clone(), version),
                Api::ApiVersions => again::<kafka::ApiVersionsResponse>(body.clone(), version),
                Api::CreateTopics => again::<kafka::CreateTopicsResponse>(body.clone(), version),
                Api::DeleteTopics => again::<kafka::DeleteTopicsResponse>(body.clone(), version),
                Api::DeleteRecords => again::<kafka::DeleteRecordsResponse>(body.clone(), version),
                Api::InitProducerId => again::<kafka::InitProducerIdResponse>(body.clone(), version),
                Api::DescribeConfigs => again::<kafka::DescribeConfigsResponse>(body.clone(), version),
                Api::DescribeCluster => again::<kafka::DescribeClusterResponse>(body.clone(), version),
                Api::DescribeRolls => again::<DescribeRollsResponse>(body.clone(), version),
            };
            assert_eq!(reencoded, body, "{api} {version}");
        }
    }

    #[test]
    fn a_fetch_response_is_byte_for_byte_what_kafka_protocol_makes(seed in any::<u64>()) {
        for version in Api::Fetch.served() {
            let own = Make::new(seed, Api::Fetch, version).fetched();
            let mut theirs = Vec::new();
            as_theirs(&own, version).encode(&mut theirs, version).unwrap();
            let encoded = encode(version, 77, ResponseBody::Fetch(own)).unwrap();
            assert_eq!(body_of(Api::Fetch, version, &encoded), theirs, "version {version}");
        }
    }
}

/// The same response, as `kafka-protocol` has it.
fn as_theirs(own: &FetchResponse, version: i16) -> kafka::FetchResponse {
    let partition = |part: &FetchedPartition| {
        PartitionData::default()
            .with_partition_index(part.partition_index)
            .with_error_code(part.error_code)
            .with_high_watermark(part.high_watermark)
            .with_last_stable_offset(part.last_stable_offset)
            .with_log_start_offset(part.log_start_offset)
            .with_aborted_transactions(Some(Vec::new()))
            .with_records(Some(part.records.concat().into()))
    };
    let topic = |topic: &FetchedTopic| {
        FetchableTopicResponse::default()
            .with_topic(topic.name.clone())
            .with_topic_id(topic.topic_id)
            .with_partitions(topic.partitions.iter().map(partition).collect())
    };
    let session_id = if version >= 7 { own.session_id } else { 0 };
    kafka::FetchResponse::default()
        .with_throttle_time_ms(own.throttle_time_ms)
        .with_error_code(own.error_code)
        .with_session_id(session_id)
        .with_responses(own.topics.iter().map(topic).collect())
}

#[test]
fn fetched_batches_are_not_copied() {
    let batches = [Bytes::from(vec![1; 100]), Bytes::from(vec![2; 5000])];
    let partition = |index, records: &[Bytes]| FetchedPartition {
        partition_index: index,
        records: records.to_vec(),
        ..FetchedPartition::default()
    };
    for version in Api::Fetch.served() {
        let response = FetchResponse {
            topics: vec![FetchedTopic {
                name: text("orders".to_owned()),
                topic_id: Uuid::nil(),
                partitions: vec![
                    partition(0, &batches),
                    partition(1, &[]),
                    partition(2, &batches[..1]),
                ],
            }],
            ..FetchResponse::default()
        };
        let encoded = encode(version, 77, ResponseBody::Fetch(response)).unwrap();
        let at: Vec<_> = encoded
            .chunks()
            .iter()
            .map(|chunk| chunk.as_ptr())
            .collect();
        for batch in &batches {
            assert!(at.contains(&batch.as_ptr()), "version {version}");
        }
        // The fields before, between and behind the three; one batch follows the other at once.
        assert_eq!(
            at.len(),
            if version >= 12 { 6 } else { 5 },
            "version {version}"
        );
    }
}

/// A flexible `ApiVersions` response with a flexible header could not be read by a client that does
/// not know yet what the broker speaks: the header has no byte for tagged fields, the body has.
#[test]
fn an_api_versions_response_has_the_oldest_header_in_every_version() {
    for version in Api::ApiVersions.served() {
        let body = ResponseBody::ApiVersions(response::api_versions(0));
        let encoded = encode(version, 77, body).unwrap();
        let bytes = encoded.chunks().concat();
        let mut body = Bytes::from(bytes).slice(8..);
        let read = kafka::ApiVersionsResponse::decode(&mut body, version).unwrap();
        assert!(body.is_empty());
        let advertised = Api::ALL
            .into_iter()
            .filter(|api| *api != Api::DescribeRolls);
        let wanted: Vec<_> = advertised
            .map(|api| {
                ApiVersion::default()
                    .with_api_key(api.key())
                    .with_min_version(*api.advertised().start())
                    .with_max_version(*api.advertised().end())
            })
            .collect();
        assert_eq!(read.api_keys, wanted);
        assert_eq!(read.error_code, 0);
    }
}

#[test]
fn one_coordinator_is_told_in_old_versions_and_new_ones() {
    let coordinator = Coordinator::default()
        .with_key("group".into())
        .with_node_id((-1).into())
        .with_port(-1)
        .with_error_code(15)
        .with_error_message(Some("no groups yet".into()));
    let response = kafka::FindCoordinatorResponse::default().with_coordinators(vec![coordinator]);
    for version in Api::FindCoordinator.served() {
        let body = ResponseBody::FindCoordinator(response.clone());
        let encoded = encode(version, 77, body).unwrap();
        let mut body = body_of(Api::FindCoordinator, version, &encoded);
        let read = kafka::FindCoordinatorResponse::decode(&mut body, version).unwrap();
        if version >= 4 {
            assert_eq!(read.coordinators, response.coordinators);
        } else {
            assert_eq!((read.error_code, read.node_id.0, read.port), (15, -1, -1));
            if version >= 1 {
                assert_eq!(read.error_message.as_deref().unwrap(), "no groups yet");
            }
        }
    }
}
