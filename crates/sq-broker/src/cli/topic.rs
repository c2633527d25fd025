//! `sq topic`: create, list, describe, delete.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, MetadataRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::client::{Client, ClientError};
use super::finish;
use crate::config::HostPort;

/// What `sq topic` can do.
#[derive(Clone, Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic.
    Create {
        /// Its name: letters, digits, dots, hyphens and underscores.
        name: String,
        /// How many partitions it has; the broker's default without this.
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
        partitions: Option<i32>,
        /// A setting of its own; may be given several times.
        #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
        config: Vec<(String, String)>,
        /// Where to ask.
        #[command(flatten)]
        broker: Broker,
    },
    /// List the topics.
    List {
        /// Where to ask.
        #[command(flatten)]
        broker: Broker,
    },
    /// Show a topic's partitions and settings.
    Describe {
        /// The topic.
        name: String,
        /// Where to ask.
        #[command(flatten)]
        broker: Broker,
    },
    /// Delete a topic and all that it holds.
    Delete {
        /// The topic.
        name: String,
        /// Where to ask.
        #[command(flatten)]
        broker: Broker,
    },
}

/// Which broker to ask, and for how long to wait.
#[derive(Clone, Debug, Args)]
pub struct Broker {
    /// A broker's host and port.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    bootstrap: HostPort,
    /// How long to wait for an answer, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    timeout_ms: u32,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// The broker could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The broker refused.
    #[error("{topic}: {error}{}", detail.as_ref().map_or(String::new(), |d| format!(": {d}")))]
    Refused {
        /// The topic.
        topic: String,
        /// The broker's error.
        error: ResponseError,
        /// What it says about it.
        detail: Option<String>,
    },
    /// The broker did not answer about the topic it was asked about.
    #[error("{topic}: the broker's answer does not mention it")]
    NotAnswered {
        /// The topic.
        topic: String,
    },
    /// The output could not be written.
    #[error("can't write: {0}")]
    Output(#[from] std::io::Error),
}

impl TopicCommand {
    /// Does it, with output to standard output and errors to standard error.
    pub async fn run(self) -> ExitCode {
        let mut out = Vec::new();
        let result = self.execute(&mut out).await;
        finish(&out, result)
    }

    /// Does it, with output to `out`.
    ///
    /// # Errors
    /// [`TopicError`].
    pub async fn execute(self, out: &mut impl Write) -> Result<(), TopicError> {
        match self {
            Self::Create {
                name,
                partitions,
                config,
                broker,
            } => {
                create(&name, partitions, &config, &broker).await?;
                writeln!(out, "created {name}")?;
            }
            Self::List { broker } => {
                for topic in metadata(&broker, None).await? {
                    let name = topic.name.as_deref().map_or("", |name| name.as_str());
                    writeln!(out, "{name}\t{} partitions", topic.partitions.len())?;
                }
            }
            Self::Describe { name, broker } => describe(&name, &broker, out).await?,
            Self::Delete { name, broker } => {
                delete(&name, &broker).await?;
                writeln!(out, "deleted {name}")?;
            }
        }
        Ok(())
    }
}

impl Broker {
    pub(super) async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(
            &self.bootstrap,
            Duration::from_millis(self.timeout_ms.into()),
        )
        .await
    }

    fn timeout_ms(&self) -> i32 {
        i32::try_from(self.timeout_ms).unwrap_or(i32::MAX)
    }
}

async fn create(
    name: &str,
    partitions: Option<i32>,
    config: &[(String, String)],
    broker: &Broker,
) -> Result<(), TopicError> {
    let configs = config.iter().map(|(key, value)| {
        CreatableTopicConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions.unwrap_or(-1))
        .with_replication_factor(-1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(broker.timeout_ms());
    let response = broker.connect().await?.call(&request).await?;
    let result = response
        .topics
        .into_iter()
        .find(|topic| topic.name.as_str() == name);
    let result = result.ok_or_else(|| TopicError::NotAnswered {
        topic: name.to_owned(),
    })?;
    accepted(name, result.error_code, result.error_message.as_deref())
}

async fn delete(name: &str, broker: &Broker) -> Result<(), TopicError> {
    let mut client = broker.connect().await?;
    // Version 6 has the one field, those before it the other; each version drops what it lacks.
    let request = DeleteTopicsRequest::default().with_timeout_ms(broker.timeout_ms());
    let request = if client
        .highest::<DeleteTopicsRequest>()
        .is_some_and(|version| version >= 6)
    {
        let topic = DeleteTopicState::default().with_name(Some(topic_name(name)));
        request.with_topics(vec![topic])
    } else {
        request.with_topic_names(vec![topic_name(name)])
    };
    let response = client.call(&request).await?;
    let named = |n: &Option<TopicName>| n.as_deref().is_some_and(|n| n.as_str() == name);
    let result = response
        .responses
        .into_iter()
        .find(|topic| named(&topic.name));
    let result = result.ok_or_else(|| TopicError::NotAnswered {
        topic: name.to_owned(),
    })?;
    accepted(name, result.error_code, result.error_message.as_deref())
}

async fn describe(name: &str, broker: &Broker, out: &mut impl Write) -> Result<(), TopicError> {
    let topic = topic(name, broker).await?;
    writeln!(
        out,
        "topic\t{name}\nid\t{}\npartitions\t{}",
        topic.topic_id,
        topic.partitions.len()
    )?;
    for partition in &topic.partitions {
        let replicas: Vec<_> = partition
            .replica_nodes
            .iter()
            .map(|id| id.0.to_string())
            .collect();
        let mut line = format!(
            "partition {}\tleader {}",
            partition.partition_index, partition.leader_id.0
        );
        let _ = write!(line, "\treplicas {}", replicas.join(","));
        if let Some(error) = ResponseError::try_from_code(partition.error_code) {
            let _ = write!(line, "\t{error}");
        }
        writeln!(out, "{line}")?;
    }
    for (key, (value, source)) in settings(name, broker).await? {
        writeln!(out, "{key}={value}\t({source})")?;
    }
    Ok(())
}

/// A topic's settings by name: the value, and where it comes from.
async fn settings(
    name: &str,
    broker: &Broker,
) -> Result<BTreeMap<String, (String, &'static str)>, TopicError> {
    const TOPIC: i8 = 2;
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let response = broker.connect().await?.call(&request).await?;
    let result = response.results.into_iter().next();
    let result = result.ok_or_else(|| TopicError::NotAnswered {
        topic: name.to_owned(),
    })?;
    accepted(name, result.error_code, result.error_message.as_deref())?;
    let entry = |config: DescribeConfigsResourceResult| {
        let value = config
            .value
            .map_or_else(String::new, |value| value.to_string());
        let source = if config.config_source == 1 {
            "set for this topic"
        } else {
            "default"
        };
        (config.name.to_string(), (value, source))
    };
    Ok(result.configs.into_iter().map(entry).collect())
}

/// One topic, which is there.
pub(super) async fn topic(
    name: &str,
    broker: &Broker,
) -> Result<MetadataResponseTopic, TopicError> {
    let topic = metadata(broker, Some(name)).await?.into_iter().next();
    let topic = topic.ok_or_else(|| TopicError::NotAnswered {
        topic: name.to_owned(),
    })?;
    accepted(name, topic.error_code, None)?;
    Ok(topic)
}

/// All topics or one, sorted by name. A topic that is not there is not created by the question.
async fn metadata(
    broker: &Broker,
    topic: Option<&str>,
) -> Result<Vec<MetadataResponseTopic>, TopicError> {
    let topics =
        topic.map(|name| vec![MetadataRequestTopic::default().with_name(Some(topic_name(name)))]);
    let request = MetadataRequest::default()
        .with_topics(topics)
        .with_allow_auto_topic_creation(false);
    let mut topics = broker.connect().await?.call(&request).await?.topics;
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    for topic in &mut topics {
        topic
            .partitions
            .sort_by_key(|partition| partition.partition_index);
    }
    Ok(topics)
}

pub(super) fn accepted(
    topic: &str,
    error_code: i16,
    detail: Option<&str>,
) -> Result<(), TopicError> {
    match ResponseError::try_from_code(error_code) {
        None => Ok(()),
        Some(error) => {
            let detail = detail.filter(|text| !text.is_empty()).map(str::to_owned);
            Err(TopicError::Refused {
                topic: topic.to_owned(),
                error,
                detail,
            })
        }
    }
}

fn key_value(argument: &str) -> Result<(String, String), String> {
    match argument.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("KEY=VALUE is wanted".to_owned()),
    }
}

pub(super) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
