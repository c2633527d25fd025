//! What is said about settings.

use kafka_protocol::messages::DescribeConfigsRequest;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::protocol::StrBytes;
use sq_broker::protocol::{Api, ResponseError};

use crate::support::{Client, TestBroker, block_on, code};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

async fn describe(
    client: &mut Client,
    version: i16,
    kind: i8,
    name: &str,
    keys: Option<&[&'static str]>,
) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(StrBytes::from_string(name.to_owned()))
        .with_configuration_keys(keys.map(|keys| {
            keys.iter()
                .map(|key| StrBytes::from_static_str(key))
                .collect()
        }));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    client.call(version, &request).await.results.remove(0)
}

#[test]
fn a_topics_settings_say_where_they_come_from() {
    block_on(async {
        let broker = TestBroker::with(|config| config.topic.segment_ms = 5_000).await;
        let mut client = broker.client().await;
        let configs = [("segment.bytes", "2048"), ("retention.ms", "-1")];
        assert_eq!(client.create("t", 1, &configs).await, 0);
        for version in Api::DescribeConfigs.served() {
            let result = describe(&mut client, version, TOPIC, "t", None).await;
            assert_eq!(result.error_code, 0);
            let all: Vec<_> = result
                .configs
                .iter()
                .map(|c| {
                    (
                        c.name.as_str(),
                        c.value.as_deref().unwrap(),
                        c.config_source,
                    )
                })
                .collect();
            // 1: the topic's own; 4: the broker's file; 5: nobody's.
            assert_eq!(
                all,
                [
                    ("max.message.bytes", "1048588", 5),
                    ("retention.bytes", "-1", 5),
                    ("retention.ms", "-1", 1),
                    ("segment.bytes", "2048", 1),
                    ("segment.ms", "5000", 4),
                ]
            );
            let segment_bytes = &result.configs[3];
            let synonyms: Vec<_> = segment_bytes
                .synonyms
                .iter()
                .map(|s| (s.name.as_str(), s.value.as_deref().unwrap(), s.source))
                .collect();
            assert_eq!(
                synonyms,
                [
                    ("segment.bytes", "2048", 1),
                    ("log.segment.bytes", "1073741824", 5)
                ]
            );
            let documented = segment_bytes
                .documentation
                .as_ref()
                .is_some_and(|d| !d.is_empty());
            assert_eq!(documented, version >= 3);
        }
        broker.stop().await;
    });
}

#[test]
fn only_what_is_asked_for_is_described() {
    block_on(async {
        let broker = TestBroker::start().await;
        let mut client = broker.client_with("t").await;
        let keys = ["segment.ms", "no.such.key"];
        let result = describe(&mut client, 4, TOPIC, "t", Some(&keys)).await;
        let names: Vec<_> = result.configs.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["segment.ms"]);
        let result = describe(&mut client, 4, BROKER, "1", Some(&["num.partitions"])).await;
        assert_eq!(result.configs[0].value.as_deref(), Some("1"));
        let cluster = describe(&mut client, 4, BROKER, "", None).await;
        assert_eq!((cluster.error_code, cluster.configs.len()), (0, 0));
        for (kind, name, error) in [
            (TOPIC, "missing", ResponseError::UnknownTopicOrPartition),
            (TOPIC, "../x", ResponseError::InvalidTopicException),
            (BROKER, "2", ResponseError::InvalidRequest),
            (BROKER, "x", ResponseError::InvalidRequest),
            (77, "t", ResponseError::InvalidRequest),
        ] {
            let result = describe(&mut client, 4, kind, name, None).await;
            assert_eq!(result.error_code, code(error), "{kind} {name}");
        }
        broker.stop().await;
    });
}
