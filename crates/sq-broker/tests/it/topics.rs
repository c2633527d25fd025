//! Topics: how they come, what is said of them, and how they go.

use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest, MetadataRequest,
};
use sq_broker::config::HostPort;
use sq_broker::protocol::{Api, ResponseError};
use uuid::Uuid;

use crate::support::{
    Batch, CREATE_TOPICS, Client, METADATA, TestBroker, block_on, code, metadata, name, new_topic,
};

const HOSTILE: [&str; 9] = [
    "../../../x",
    "..",
    ".",
    "a/b",
    "a\\b",
    "a\0b",
    "",
    "@meta",
    "a b",
];

#[test]
fn a_topic_comes_into_being_when_it_is_asked_for() {
    block_on(async {
        let broker = TestBroker::with(|config| config.default_partitions = 3).await;
        let mut client = broker.client().await;
        let unknown = code(ResponseError::UnknownTopicOrPartition);
        assert_eq!(
            client.describe("t").await.error_code,
            unknown,
            "the client did not allow it"
        );
        let response = client.call(METADATA, &metadata(Some(&["t"]))).await;
        let topic = &response.topics[0];
        assert_eq!((topic.error_code, topic.partitions.len()), (0, 3));
        assert_eq!(client.append("t", Batch::of(1).bytes()).await, 0);
        broker.stop().await;

        let broker = TestBroker::with(|config| config.auto_create_topics = false).await;
        let mut client = broker.client().await;
        let response = client.call(METADATA, &metadata(Some(&["t"]))).await;
        assert_eq!(
            response.topics[0].error_code, unknown,
            "the broker does not allow it"
        );
        broker.stop().await;
    });
}

#[test]
fn a_name_that_leaves_the_data_directory_creates_nothing_anywhere() {
    // A topic called ../../../x, created by asking for its metadata, made directories outside of
    // the broker's own.
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        let invalid = code(ResponseError::InvalidTopicException);
        let long = "x".repeat(250);
        for text in HOSTILE.into_iter().chain([long.as_str()]) {
            assert_eq!(client.create(text, 1, &[]).await, invalid, "{text:?}");
            let response = client.call(METADATA, &metadata(Some(&[text]))).await;
            assert_eq!(response.topics[0].error_code, invalid, "{text:?}");
            assert_eq!(
                client.produce(text, Batch::of(1).bytes()).await.error_code,
                3,
                "{text:?}"
            );
        }
        assert_eq!(client.create("-0", 1, &[]).await, 0);
        client.append("-0", Batch::of(1).bytes()).await;
        let longest = "x".repeat(249);
        assert_eq!(client.create(&longest, 1, &[]).await, 0);
        client.append(&longest, Batch::of(1).bytes()).await;

        let data_dir = broker.data_dir().to_owned();
        let dir = broker.stop().await;
        let names = |path: &std::path::Path| -> Vec<String> {
            let entries = rustix_names(path);
            entries
                .into_iter()
                .filter(|name| name != "." && name != "..")
                .collect()
        };
        assert_eq!(names(dir.path()), ["data"]);
        let mut topics = names(&data_dir);
        topics.retain(|name| !name.starts_with('@'));
        topics.sort();
        assert_eq!(topics, ["-0".to_owned(), longest]);
    });
}

/// The names in a directory.
fn rustix_names(path: &std::path::Path) -> Vec<String> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let directory = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    rustix::fs::Dir::read_from(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn metadata_means_in_each_version_what_it_meant_then() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        for topic in ["b", "a"] {
            assert_eq!(client.create(topic, 2, &[]).await, 0);
        }
        let id = client.describe("a").await.topic_id;
        for version in Api::Metadata.served() {
            let names = |response: kafka_protocol::messages::MetadataResponse| -> Vec<String> {
                let topics = response.topics.iter();
                topics
                    .map(|t| t.name.as_ref().map_or(String::new(), |n| n.to_string()))
                    .collect()
            };
            let some = client.call(version, &metadata(Some(&["b"]))).await;
            let partition = &some.topics[0].partitions[1];
            assert_eq!(
                (partition.partition_index, partition.leader_id),
                (1, BrokerId(1))
            );
            assert_eq!(partition.replica_nodes, [BrokerId(1)]);
            assert_eq!(partition.isr_nodes, [BrokerId(1)]);
            assert_eq!(some.topics[0].topic_id == Uuid::nil(), version < 10);
            assert_eq!(names(some), ["b"]);
            let empty = client.call(version, &metadata(Some(&[]))).await;
            if version == 0 {
                assert_eq!(names(empty), ["a", "b"], "no list stood for all");
            } else {
                assert_eq!(names(empty), Vec::<String>::new());
                let all = client.call(version, &metadata(None)).await;
                assert_eq!(names(all), ["a", "b"]);
            }
            if version >= 12 {
                let by_id = |id| {
                    let topic = MetadataRequestTopic::default()
                        .with_topic_id(id)
                        .with_name(None);
                    MetadataRequest::default().with_topics(Some(vec![topic]))
                };
                assert_eq!(names(client.call(version, &by_id(id)).await), ["a"]);
                let unknown = client.call(version, &by_id(Uuid::from_u128(9))).await;
                assert_eq!(
                    unknown.topics[0].error_code,
                    code(ResponseError::UnknownTopicId)
                );
            }
        }
        broker.stop().await;
    });
}

#[test]
fn every_answer_names_the_advertised_address() {
    // A broker behind another address told its clients the inner one in some of its answers, and
    // creating a topic timed out.
    block_on(async {
        let advertised = HostPort::new("broker.test", 19_092);
        let broker = TestBroker::with(|config| {
            config.listen = HostPort::new("0.0.0.0", 0);
            config.advertise = Some(advertised);
        })
        .await;
        let address = (std::net::Ipv4Addr::LOCALHOST, broker.address.port()).into();
        let mut client = Client::connect(address).await;
        for version in Api::Metadata.served() {
            let response = client.call(version, &metadata(Some(&[]))).await;
            let [only] = &response.brokers[..] else {
                panic!("one broker")
            };
            assert_eq!((only.host.as_str(), only.port), ("broker.test", 19_092));
            assert!(version < 1 || response.controller_id == only.node_id);
        }
        for version in Api::DescribeCluster.served() {
            let request = DescribeClusterRequest::default().with_endpoint_type(1);
            let response = client.call(version, &request).await;
            let [only] = &response.brokers[..] else {
                panic!("one broker")
            };
            assert_eq!((only.host.as_str(), only.port), ("broker.test", 19_092));
            assert_eq!(response.controller_id, only.broker_id);
            assert_eq!(response.cluster_id.len(), 22);
        }
        let controllers = DescribeClusterRequest::default().with_endpoint_type(2);
        let response = client.call(2, &controllers).await;
        assert_eq!(
            response.error_code,
            code(ResponseError::MismatchedEndpointType)
        );
        broker.stop().await;
    });
}

fn assign(partitions: &[(i32, &[i32])]) -> Vec<CreatableReplicaAssignment> {
    let one = |(partition, brokers): &(i32, &[i32])| {
        CreatableReplicaAssignment::default()
            .with_partition_index(*partition)
            .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
    };
    partitions.iter().map(one).collect()
}

#[test]
fn what_can_not_be_created_is_refused_with_the_reason() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("taken").await;
        let default = || new_topic("t", -1, &[]);
        for (topic, error) in [
            (
                new_topic("taken", 1, &[]),
                ResponseError::TopicAlreadyExists,
            ),
            (new_topic("t", 0, &[]), ResponseError::InvalidPartitions),
            (new_topic("t", -2, &[]), ResponseError::InvalidPartitions),
            (
                new_topic("t", i32::MAX, &[]),
                ResponseError::InvalidPartitions,
            ),
            (
                default().with_replication_factor(0),
                ResponseError::InvalidReplicationFactor,
            ),
            (
                default().with_replication_factor(2),
                ResponseError::InvalidReplicationFactor,
            ),
            (
                new_topic("t", 1, &[("segment.byte", "1")]),
                ResponseError::InvalidConfig,
            ),
            (
                new_topic("t", 1, &[("segment.bytes", "x")]),
                ResponseError::InvalidConfig,
            ),
            (
                new_topic("t", 1, &[("segment.bytes", "-1")]),
                ResponseError::InvalidConfig,
            ),
            (
                new_topic("t", 1, &[("max.message.bytes", "2000000000")]),
                ResponseError::InvalidConfig,
            ),
            (
                new_topic("t", 1, &[]).with_assignments(assign(&[(0, &[1])])),
                ResponseError::InvalidRequest,
            ),
            (
                default().with_assignments(assign(&[(1, &[1])])),
                ResponseError::InvalidReplicaAssignment,
            ),
            (
                default().with_assignments(assign(&[(0, &[2])])),
                ResponseError::InvalidReplicaAssignment,
            ),
            (
                default().with_assignments(assign(&[(0, &[1, 1])])),
                ResponseError::InvalidReplicaAssignment,
            ),
        ] {
            let request = CreateTopicsRequest::default().with_topics(vec![topic.clone()]);
            let result = client.call(CREATE_TOPICS, &request).await.topics.remove(0);
            assert_eq!(
                result.error_code,
                code(error),
                "{topic:?}: {:?}",
                result.error_message
            );
            assert!(
                result
                    .error_message
                    .is_some_and(|message| !message.is_empty())
            );
        }
        broker.stop().await;
    });
}

#[test]
fn a_refusal_helps_and_creates_nothing() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        let default = || new_topic("t", -1, &[]);
        let request = CreateTopicsRequest::default().with_topics(vec![new_topic(
            "t",
            1,
            &[("segment.byte", "1")],
        )]);
        let result = client.call(CREATE_TOPICS, &request).await.topics.remove(0);
        let message = result.error_message.unwrap();
        assert!(message.contains("did you mean segment.bytes?"), "{message}");

        let twice = CreateTopicsRequest::default().with_topics(vec![default(), default()]);
        let results = client.call(CREATE_TOPICS, &twice).await.topics;
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].error_code, code(ResponseError::InvalidRequest));
        assert_eq!(
            client.describe("t").await.error_code,
            3,
            "nothing was created"
        );
        broker.stop().await;
    });
}

#[test]
fn a_topic_can_be_assigned_by_hand_and_checked_before() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        let default = || new_topic("t", -1, &[]);
        let assigned = default().with_assignments(assign(&[(1, &[1]), (0, &[1])]));
        let request = CreateTopicsRequest::default().with_topics(vec![assigned]);
        let check = request.clone().with_validate_only(true);
        assert_eq!(
            client.call(CREATE_TOPICS, &check).await.topics[0].error_code,
            0
        );
        assert_eq!(
            client.describe("t").await.error_code,
            3,
            "it was only checked"
        );
        for version in Api::CreateTopics.served() {
            let text = format!("v{version}");
            let mut request = request.clone();
            request.topics[0].name = name(&text);
            let result = client.call(version, &request).await.topics.remove(0);
            assert_eq!(result.error_code, 0, "{version}");
            if version >= 5 {
                assert_eq!((result.num_partitions, result.replication_factor), (2, 1));
                let segment_bytes = result.configs.unwrap();
                assert!(
                    segment_bytes
                        .iter()
                        .any(|c| c.name.as_str() == "segment.bytes")
                );
            }
            let described = client.describe(&text).await;
            assert_eq!(described.partitions.len(), 2);
            assert_eq!(result.topic_id == described.topic_id, version >= 7);
        }
        broker.stop().await;
    });
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_begins_anew() {
    block_on(async {
        let mut broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        for version in Api::DeleteTopics.served() {
            let old = client.describe("t").await.topic_id;
            client.append("t", Batch::of(5).bytes()).await;
            let request = if version < 6 {
                DeleteTopicsRequest::default().with_topic_names(vec![name("t"), name("missing")])
            } else {
                let by_id = |id| {
                    DeleteTopicState::default()
                        .with_name(None)
                        .with_topic_id(id)
                };
                DeleteTopicsRequest::default()
                    .with_topics(vec![by_id(old), by_id(Uuid::from_u128(9))])
            };
            let response = client.call(version, &request).await;
            let codes: Vec<i16> = response.responses.iter().map(|r| r.error_code).collect();
            let unknown = if version < 6 {
                ResponseError::UnknownTopicOrPartition
            } else {
                ResponseError::UnknownTopicId
            };
            assert_eq!(codes, [0, code(unknown)]);
            assert_eq!(client.describe("t").await.error_code, 3);
            assert_eq!(
                client.produce("t", Batch::of(1).bytes()).await.error_code,
                3
            );

            if version % 2 == 0 {
                broker = broker.restart().await;
                client = broker.client().await;
            }
            assert_eq!(client.create("t", 1, &[]).await, 0);
            assert_eq!(client.end("t").await, 0, "no old segment is seen");
            assert_ne!(client.describe("t").await.topic_id, old);
        }
        let neither = DeleteTopicState::default().with_name(None);
        let request = DeleteTopicsRequest::default().with_topics(vec![neither]);
        let response = client.call(6, &request).await;
        assert_eq!(
            response.responses[0].error_code,
            code(ResponseError::InvalidRequest)
        );
        broker.stop().await;
    });
}

#[test]
fn topics_are_the_same_after_a_restart() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client().await;
        assert_eq!(client.create("t", 3, &[("segment.bytes", "2048")]).await, 0);
        client.append("t", Batch::of(5).bytes()).await;
        let before = client.describe("t").await;
        let broker = broker.restart().await;
        let mut client = broker.client().await;
        assert_eq!(client.describe("t").await, before);
        let (error, values) = client.fetch("t", 0).await;
        assert_eq!((error, values.len()), (0, 5));
        assert_eq!(client.append("t", Batch::of(1).bytes()).await, 5);
        broker.stop().await;
    });
}
