//! Topics and brokers: how they come and go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sq_storage::TopicName;

use super::{ActiveSegment, MetaState, Partition, SealedSegment, Segment};
use crate::command::{Applied, NewPartition, NewSegment, NewTopic, Refusal};
use crate::ids::{BrokerId, MAX_BROKER_ID, SegmentId, TopicId};

/// The most partitions of one topic.
pub const MAX_PARTITIONS_PER_TOPIC: usize = 10_000;

/// The longest host or rack of a broker, and the longest name of a setting, in bytes.
const MAX_ADDRESS_LEN: usize = 255;

/// The longest value of a setting, in bytes.
const MAX_SETTING_LEN: usize = 1 << 16;

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its durable id.
    pub id: TopicId,
    /// Its name, unique among the living.
    pub name: TopicName,
    /// The settings given for it; all else follows the broker's defaults.
    pub configs: BTreeMap<String, String>,
    /// Its partitions, from 0 on.
    pub partitions: Vec<Arc<Partition>>,
}

/// A topic that was deleted and whose name is not free yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Its name.
    pub name: TopicName,
    /// The brokers that may still hold files of it; never none.
    pub holders: BTreeSet<BrokerId>,
}

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its number.
    pub id: BrokerId,
    /// Drawn anew at each start of its process.
    pub incarnation: u64,
    /// The host at which others reach it.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// What it shares with brokers that are likely to fail together with it.
    pub rack: Option<String>,
}

impl MetaState {
    pub(super) fn register_broker(&mut self, broker: &Broker) -> Result<Applied, Refusal> {
        if broker.id.0 > MAX_BROKER_ID {
            return Err(Refusal::BrokerId(broker.id.0));
        }
        let fits = |text: &str| (1..=MAX_ADDRESS_LEN).contains(&text.len());
        if !fits(&broker.host) {
            return Err(Refusal::BrokerAddress("host"));
        }
        if !broker.rack.as_deref().is_none_or(fits) {
            return Err(Refusal::BrokerAddress("rack"));
        }
        if self.brokers.get(&broker.id).is_none_or(|b| **b != *broker) {
            self.brokers.insert(broker.id, Arc::new(broker.clone()));
            self.revision += 1;
        }
        Ok(Applied::BrokerRegistered)
    }

    pub(super) fn create_topic(&mut self, new: &NewTopic) -> Result<Applied, Refusal> {
        if let Some(present) = self.topic_named(&new.name) {
            return if present.id == new.id {
                Ok(Applied::TopicCreated { repeated: true })
            } else {
                Err(Refusal::TopicExists {
                    name: new.name.clone(),
                    id: present.id,
                })
            };
        }
        if self.deleted.values().any(|d| d.name == new.name) {
            return Err(Refusal::BeingDeleted(new.name.clone()));
        }
        if self.topics.contains_key(&new.id) || self.deleted.contains_key(&new.id) {
            return Err(Refusal::TopicIdTaken(new.id));
        }
        if !(1..=MAX_PARTITIONS_PER_TOPIC).contains(&new.partitions.len()) {
            return Err(Refusal::Partitions(new.partitions.len()));
        }
        check_configs(&new.configs)?;
        let mut partitions = Vec::with_capacity(new.partitions.len());
        for partition in &new.partitions {
            partitions.push(Arc::new(self.new_partition(partition)?));
        }
        for partition in &partitions {
            self.loads.add(partition);
        }
        self.names.insert(new.name.clone(), new.id);
        let topic = Topic {
            id: new.id,
            name: new.name.clone(),
            configs: new.configs.clone(),
            partitions,
        };
        self.topics.insert(new.id, Arc::new(topic));
        self.revision += 1;
        Ok(Applied::TopicCreated { repeated: false })
    }

    fn new_partition(&self, new: &NewPartition) -> Result<Partition, Refusal> {
        self.check_placement(&new.active, new.leader)?;
        let mut ids = BTreeSet::from([new.active.id]);
        let mut sealed = VecDeque::with_capacity(new.sealed.len());
        let mut predecessor = None;
        let mut at = new.sealed.first().map_or(new.active_base, |s| s.base);
        for before in &new.sealed {
            let (base, end) = (before.base, before.end);
            if base != at || end < base || end <= new.log_start {
                return Err(Refusal::Offsets { base, end });
            }
            self.check_known(&before.segment)?;
            if !ids.insert(before.segment.id) {
                return Err(Refusal::SegmentIdTaken(before.segment.id));
            }
            sealed.push_back(SealedSegment {
                segment: first_epoch(&before.segment, predecessor),
                base,
                end,
            });
            predecessor = Some(before.segment.id);
            at = end;
        }
        let start = new.sealed.first().map_or(new.active_base, |s| s.base);
        if at != new.active_base || at > i64::MAX.unsigned_abs() {
            return Err(Refusal::Offsets {
                base: new.active_base,
                end: at,
            });
        }
        if new.log_start < start || new.log_start > new.active_base {
            return Err(Refusal::LogStart {
                log_start: new.log_start,
                active_base: new.active_base,
            });
        }
        Ok(Partition {
            epoch: 0,
            elected: true,
            leader: new.leader,
            log_start: new.log_start,
            sealed,
            active: ActiveSegment {
                segment: first_epoch(&new.active, predecessor),
                base: new.active_base,
            },
            prepared: None,
            attempt: 0,
        })
    }

    pub(super) fn delete_topic(&mut self, id: TopicId) -> Result<Applied, Refusal> {
        if let Some(deleted) = self.deleted.get(&id) {
            let holders = deleted.holders.clone();
            return Ok(Applied::TopicDeleted { holders });
        }
        let topic = self.topics.remove(&id).ok_or(Refusal::UnknownTopic(id))?;
        self.names.remove(&topic.name);
        for partition in &topic.partitions {
            self.loads.remove(partition);
        }
        // Any broker may have held a segment that is no longer in the chain, files and all.
        let deleted = Deleted {
            name: topic.name.clone(),
            holders: self.broker_ids(),
        };
        let holders = deleted.holders.clone();
        self.deleted.insert(id, deleted);
        self.revision += 1;
        Ok(Applied::TopicDeleted { holders })
    }

    pub(super) fn forget_deleted(&mut self, id: TopicId, broker: BrokerId) -> Applied {
        let mut name_is_free = true;
        if let Some(deleted) = self.deleted.get_mut(&id) {
            self.revision += u64::from(deleted.holders.remove(&broker));
            name_is_free = deleted.holders.is_empty();
        }
        if name_is_free {
            self.deleted.remove(&id);
        }
        Applied::DeletedForgotten { name_is_free }
    }

    /// Whether a segment that a leader is to write can be where it was placed.
    pub(super) fn check_placement(
        &self,
        new: &NewSegment,
        leader: BrokerId,
    ) -> Result<(), Refusal> {
        if !new.replicas.contains(leader) {
            return Err(Refusal::LeaderNotReplica {
                leader,
                segment: new.id,
            });
        }
        self.check_known(new)
    }

    fn check_known(&self, new: &NewSegment) -> Result<(), Refusal> {
        let unknown = new.replicas.iter().find(|b| !self.brokers.contains_key(b));
        unknown.map_or(Ok(()), |broker| Err(Refusal::UnknownBroker(broker)))
    }
}

fn first_epoch(new: &NewSegment, predecessor: Option<SegmentId>) -> Segment {
    Segment {
        id: new.id,
        replicas: new.replicas.clone(),
        predecessor,
        writer_epoch: 0,
    }
}

fn check_configs(configs: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let too_long = |(name, value): &(&String, &String)| {
        name.len() > MAX_ADDRESS_LEN || value.len() > MAX_SETTING_LEN
    };
    match configs.iter().find(too_long) {
        None => Ok(()),
        Some((name, _)) => Err(Refusal::SettingTooLong {
            name: name.chars().take(64).collect(),
        }),
    }
}
