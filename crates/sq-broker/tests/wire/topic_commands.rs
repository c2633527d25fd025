//! `sq topic` against a broker that says what each test wants.

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use clap::Parser;
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponsePartition, MetadataResponseTopic,
};
use sq_broker::cli::{TopicCommand, TopicError};
use sq_broker::protocol::{
    Request, RequestBody, ResponseBody, decode, encode, read_frame, response, write_frame,
};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, Parser)]
struct Sq {
    #[command(subcommand)]
    command: TopicCommand,
}

/// Answers the requests of one connection until it is closed, or until there is no answer.
async fn answer(
    mut stream: TcpStream,
    seen: &Mutex<Vec<RequestBody>>,
    say: &(dyn Fn(&RequestBody) -> Option<ResponseBody> + Send + Sync),
) {
    let mut buf = BytesMut::new();
    while let Ok(Some(frame)) = read_frame(&mut stream, &mut buf, 10_000).await {
        let Request {
            version,
            correlation_id,
            body,
            ..
        } = decode(frame).unwrap();
        let response = match &body {
            RequestBody::ApiVersions(_) => {
                Some(ResponseBody::ApiVersions(response::api_versions(0)))
            }
            other => say(other),
        };
        seen.lock().unwrap().push(body);
        let Some(response) = response else { return };
        let encoded = encode(version, correlation_id, response).unwrap();
        write_frame(&mut stream, &encoded).await.unwrap();
    }
}

/// Runs a command against a broker that answers so; gives what it printed and what it asked.
fn run(
    arguments: &[&str],
    say: impl Fn(&RequestBody) -> Option<ResponseBody> + Send + Sync + 'static,
) -> (Result<String, TopicError>, Vec<RequestBody>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bootstrap = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let broker = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                answer(stream, &log, &say).await;
            }
        });
        let line = [&["sq"], arguments, &["--bootstrap", &bootstrap]].concat();
        let mut out = Vec::new();
        let result = Sq::parse_from(line).command.execute(&mut out).await;
        broker.abort();
        let asked = seen.lock().unwrap().clone();
        (result.map(|()| String::from_utf8(out).unwrap()), asked)
    })
}

fn name(name: &'static str) -> TopicName {
    TopicName(name.into())
}

fn created(error_code: i16, message: Option<&'static str>) -> ResponseBody {
    let result = CreatableTopicResult::default()
        .with_name(name("orders"))
        .with_error_code(error_code)
        .with_error_message(message.map(Into::into));
    let response = kafka::CreateTopicsResponse::default().with_topics(vec![result]);
    ResponseBody::CreateTopics(response)
}

#[test]
fn create_sends_what_was_given() {
    let arguments = [
        "create",
        "orders",
        "--partitions",
        "3",
        "--config",
        "segment.bytes=4096",
        "--config",
        "retention.ms=-1",
    ];
    let (result, asked) = run(&arguments, |_| Some(created(0, None)));
    assert_eq!(result.unwrap(), "created orders\n");
    let RequestBody::CreateTopics(request) = &asked[1] else {
        panic!("{asked:?}")
    };
    let topic = &request.topics[0];
    assert_eq!((topic.name.as_str(), topic.num_partitions), ("orders", 3));
    let configs: Vec<_> = topic
        .configs
        .iter()
        .map(|c| (c.name.as_str(), c.value.as_deref().unwrap()))
        .collect();
    assert_eq!(configs, [("segment.bytes", "4096"), ("retention.ms", "-1")]);

    let (_, asked) = run(&["create", "orders"], |_| Some(created(0, None)));
    let RequestBody::CreateTopics(request) = &asked[1] else {
        panic!("{asked:?}")
    };
    assert_eq!(request.topics[0].num_partitions, -1, "the broker's default");
}

#[test]
fn what_the_broker_refuses_is_said_in_its_words() {
    let (result, _) = run(&["create", "orders"], |_| {
        Some(created(36, Some("there is one")))
    });
    assert_eq!(
        result.unwrap_err().to_string(),
        "orders: TopicAlreadyExists: there is one"
    );
    let (result, _) = run(&["create", "orders"], |_| Some(created(40, None)));
    assert_eq!(result.unwrap_err().to_string(), "orders: InvalidConfig");
    let (result, _) = run(&["create", "other"], |_| Some(created(0, None)));
    assert!(matches!(
        result.unwrap_err(),
        TopicError::NotAnswered { .. }
    ));
}

#[test]
fn delete_names_the_topic() {
    let (result, asked) = run(&["delete", "orders"], |_| {
        let result = DeletableTopicResult::default().with_name(Some(name("orders")));
        let response = kafka::DeleteTopicsResponse::default().with_responses(vec![result]);
        Some(ResponseBody::DeleteTopics(response))
    });
    assert_eq!(result.unwrap(), "deleted orders\n");
    let RequestBody::DeleteTopics(request) = &asked[1] else {
        panic!("{asked:?}")
    };
    assert_eq!(request.topics[0].name, Some(name("orders")));
}

fn topic(topic_name: &'static str, partitions: i32) -> MetadataResponseTopic {
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index)
            .with_leader_id(1.into())
            .with_replica_nodes(vec![1.into(), 2.into()])
    };
    MetadataResponseTopic::default()
        .with_name(Some(name(topic_name)))
        .with_partitions((0..partitions).rev().map(partition).collect())
}

#[test]
fn list_is_sorted() {
    let (result, asked) = run(&["list"], |_| {
        let topics = vec![topic("b", 2), topic("a", 1)];
        Some(ResponseBody::Metadata(
            kafka::MetadataResponse::default().with_topics(topics),
        ))
    });
    assert_eq!(result.unwrap(), "a\t1 partitions\nb\t2 partitions\n");
    let RequestBody::Metadata(request) = &asked[1] else {
        panic!("{asked:?}")
    };
    assert_eq!(request.topics, None);
}

/// A question about a topic that is not there must not create it.
#[test]
fn describe_shows_partitions_and_settings_and_creates_nothing() {
    let say = |request: &RequestBody| {
        Some(if let RequestBody::Metadata(request) = request {
            assert!(!request.allow_auto_topic_creation);
            let topics = vec![topic("orders", 2)];
            ResponseBody::Metadata(kafka::MetadataResponse::default().with_topics(topics))
        } else {
            let setting = |name: &'static str, value: &'static str, source| {
                DescribeConfigsResourceResult::default()
                    .with_name(name.into())
                    .with_value(Some(value.into()))
                    .with_config_source(source)
            };
            let configs = vec![
                setting("segment.ms", "9", 5),
                setting("retention.ms", "-1", 1),
            ];
            let result = DescribeConfigsResult::default().with_configs(configs);
            let response = kafka::DescribeConfigsResponse::default().with_results(vec![result]);
            ResponseBody::DescribeConfigs(response)
        })
    };
    let (result, _) = run(&["describe", "orders"], say);
    assert_eq!(
        result.unwrap(),
        "topic\torders\n\
         id\t00000000-0000-0000-0000-000000000000\n\
         partitions\t2\n\
         partition 0\tleader 1\treplicas 1,2\n\
         partition 1\tleader 1\treplicas 1,2\n\
         retention.ms=-1\t(set for this topic)\n\
         segment.ms=9\t(default)\n"
    );
}

#[test]
fn a_broker_that_hangs_up_or_is_not_there_is_named() {
    let (result, _) = run(&["list"], |_| None);
    let message = result.unwrap_err().to_string();
    assert!(
        message.contains("closed the connection without an answer"),
        "{message}"
    );

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let error = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bootstrap = listener.local_addr().unwrap().to_string();
        drop(listener);
        let command = Sq::parse_from(["sq", "list", "--bootstrap", &bootstrap]).command;
        command.execute(&mut Vec::new()).await.unwrap_err()
    });
    assert!(
        error.to_string().starts_with("can't connect to 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn a_broker_that_is_silent_is_given_up_in_time() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let error = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bootstrap = listener.local_addr().unwrap().to_string();
        let line = [
            "sq",
            "list",
            "--bootstrap",
            &bootstrap,
            "--timeout-ms",
            "7000",
        ];
        let command = Sq::parse_from(line).command;
        command.execute(&mut Vec::new()).await.unwrap_err()
    });
    assert!(
        error.to_string().ends_with("did not answer within 7s"),
        "{error}"
    );
}

#[test]
fn mistakes_on_the_command_line_are_found_before_a_broker_is_asked() {
    for arguments in [
        &["create", "orders", "--partitions", "0"][..],
        &["create", "orders", "--config", "segment.bytes"],
        &["create", "orders", "--config", "=1"],
        &["create"],
        &["list", "--bootstrap", "9092"],
        &["drop", "orders"],
    ] {
        assert!(
            Sq::try_parse_from([&["sq"], arguments].concat()).is_err(),
            "{arguments:?}"
        );
    }
}
