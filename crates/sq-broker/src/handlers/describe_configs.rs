//! `DescribeConfigs`: the settings of a topic and of the broker, and where each comes from.

use std::collections::HashSet;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use sq_sim::FileSystem;
use sq_storage::TopicName;

use super::text;
use crate::broker::Broker;
use crate::config::{Config, TopicConfig, TopicKey, TopicOverrides};
use crate::protocol::ResponseError;

/// The kinds of resource that have settings here.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Where a setting comes from, as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(super) enum Source {
    /// Given at the topic's creation.
    Topic = 1,
    /// In the broker's file.
    Broker = 4,
    /// Nobody said otherwise.
    Default = 5,
}

/// A setting as it is described.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) source: Source,
    /// Nothing can be altered yet.
    pub(super) read_only: bool,
    type_number: i8,
    documentation: &'static str,
    /// Every place that has a say, the one that counts first.
    synonyms: Vec<(&'static str, String, Source)>,
}

type Refusal = (ResponseError, String);

pub(super) fn handle<F: FileSystem>(
    broker: &Broker<F>,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
    let mut seen = HashSet::with_capacity(request.resources.len());
    // What is named again is answered once: an answer is far larger than the name it takes to ask.
    let resources = request
        .resources
        .into_iter()
        .filter(|r| seen.insert((r.resource_type, r.resource_name.clone())));
    let results = resources.map(|resource| {
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match describe(broker, &resource) {
            Ok(described) => {
                let asked = |d: &Described| is_asked(&resource, d.name);
                let configs = described.into_iter().filter(asked);
                let configs = configs
                    .map(|d| d.into_wire(synonyms, documentation))
                    .collect();
                result.with_configs(configs)
            }
            Err((error, message)) => result
                .with_error_code(error.code())
                .with_error_message(Some(text(message))),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

/// Without names, or with none of them, all are meant.
fn is_asked(resource: &DescribeConfigsResource, name: &str) -> bool {
    resource
        .configuration_keys
        .as_ref()
        .is_none_or(|keys| keys.is_empty() || keys.iter().any(|key| key.as_str() == name))
}

fn describe<F: FileSystem>(
    broker: &Broker<F>,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Described>, Refusal> {
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        TOPIC => {
            let name = TopicName::new(name)
                .map_err(|e| (ResponseError::InvalidTopicException, e.to_string()))?;
            let topics = broker.topics.current();
            let topic = topics.by_name(name.as_str()).ok_or_else(|| {
                (
                    ResponseError::UnknownTopicOrPartition,
                    format!("there is no topic {name}"),
                )
            })?;
            let defaults = broker.topics.defaults();
            let key = |key| describe_topic_key(key, &topic.overrides, defaults);
            Ok(TopicKey::ALL.into_iter().map(key).collect())
        }
        // The empty name stands for what is set for all brokers at once: nothing.
        BROKER if name.is_empty() => Ok(Vec::new()),
        BROKER if name == broker.identity.broker_id.to_string() => {
            Ok(describe_broker(&broker.config, broker.identity.broker_id))
        }
        BROKER => {
            let this = broker.identity.broker_id;
            let message = format!("this is broker {this}, and it knows the settings of no other");
            Err((ResponseError::InvalidRequest, message))
        }
        other => {
            let message = format!("resources of type {other} have no settings here");
            Err((ResponseError::InvalidRequest, message))
        }
    }
}

/// A topic's setting: what was given at its creation, over what the broker has for all topics.
pub(super) fn describe_topic_key(
    key: TopicKey,
    overrides: &TopicOverrides,
    defaults: &TopicConfig,
) -> Described {
    let mut described = broker_key(key, defaults);
    described.name = key.name();
    described.documentation = key.documentation();
    if let Some(value) = overrides.get(key) {
        described.value = value.to_string();
        described.source = Source::Topic;
        described
            .synonyms
            .insert(0, (key.name(), value.to_string(), Source::Topic));
    }
    described
}

/// The broker's setting that a topic's follows, under the name that Kafka has for it.
fn broker_key(key: TopicKey, defaults: &TopicConfig) -> Described {
    let name = match key {
        TopicKey::MaxMessageBytes => "message.max.bytes",
        TopicKey::RetentionBytes => "log.retention.bytes",
        TopicKey::RetentionMs => "log.retention.ms",
        TopicKey::SegmentBytes => "log.segment.bytes",
        TopicKey::SegmentMs => "log.roll.ms",
    };
    let built_in = TopicConfig::default().get(key).to_string();
    let value = defaults.get(key).to_string();
    setting(
        name,
        key.config_type() as i8,
        key.documentation(),
        value,
        built_in,
    )
}

fn describe_broker(config: &Config, broker_id: i32) -> Vec<Described> {
    const BOOLEAN: i8 = 1;
    const STRING: i8 = 2;
    const INT: i8 = 3;
    let built_in = Config::default();
    let mut all: Vec<Described> = TopicKey::ALL
        .into_iter()
        .map(|key| broker_key(key, &config.topic))
        .collect();
    all.extend([
        setting(
            "auto.create.topics.enable",
            BOOLEAN,
            "Whether a client's interest in a topic creates it.",
            config.auto_create_topics.to_string(),
            built_in.auto_create_topics.to_string(),
        ),
        setting(
            "num.partitions",
            INT,
            "Partitions of a topic that does not say how many.",
            config.default_partitions.to_string(),
            built_in.default_partitions.to_string(),
        ),
        setting(
            "broker.id",
            INT,
            "The broker's number in its cluster.",
            broker_id.to_string(),
            crate::broker::BROKER_ID.to_string(),
        ),
        setting(
            "log.dirs",
            STRING,
            "Where everything durable is.",
            config.data_dir.display().to_string(),
            built_in.data_dir.display().to_string(),
        ),
    ]);
    all.sort_by_key(|described| described.name);
    all
}

fn setting(
    name: &'static str,
    type_number: i8,
    documentation: &'static str,
    value: String,
    built_in: String,
) -> Described {
    let source = if value == built_in {
        Source::Default
    } else {
        Source::Broker
    };
    let mut synonyms = vec![(name, built_in, Source::Default)];
    if source == Source::Broker {
        synonyms.insert(0, (name, value.clone(), Source::Broker));
    }
    Described {
        name,
        value,
        source,
        read_only: true,
        type_number,
        documentation,
        synonyms,
    }
}

impl Described {
    fn into_wire(self, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult {
        let synonym = |(name, value, source): (&str, String, Source)| {
            DescribeConfigsSynonym::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
                .with_source(source as i8)
        };
        let result = DescribeConfigsResourceResult::default()
            .with_name(text(self.name))
            .with_value(Some(text(self.value)))
            .with_read_only(self.read_only)
            .with_config_source(self.source as i8)
            .with_config_type(self.type_number)
            .with_documentation(documentation.then(|| text(self.documentation)));
        if synonyms {
            result.with_synonyms(self.synonyms.into_iter().map(synonym).collect())
        } else {
            result
        }
    }
}
