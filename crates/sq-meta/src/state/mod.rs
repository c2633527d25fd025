//! What the metadata says, and what each command makes of it. No clock, no randomness, no I/O: the
//! same commands in the same order give the same state everywhere.
//!
//! A command is checked as a whole before anything changes: a refused one has changed nothing.

mod failover;
mod load;
mod partition;
mod retention;
mod roll;
mod topic;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use sq_storage::TopicName;

pub use load::Load;
pub use partition::{ActiveSegment, Link, LinkState, Partition, SealedSegment, Segment};
pub use topic::{Broker, Deleted, MAX_PARTITIONS_PER_TOPIC, Topic};
pub use validate::Violation;

use crate::command::{Applied, Command, Refusal};
use crate::ids::{BrokerId, PartitionId, TopicId};
use load::Loads;

/// Everything the metadata says at one moment.
///
/// Cloning copies no partition: clones share what neither has changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaState {
    pub(crate) revision: u64,
    pub(crate) next_producer_id: i64,
    pub(crate) brokers: BTreeMap<BrokerId, Arc<Broker>>,
    pub(crate) topics: BTreeMap<TopicId, Arc<Topic>>,
    pub(crate) deleted: BTreeMap<TopicId, Deleted>,
    /// The topics by name; follows from `topics`.
    names: BTreeMap<TopicName, TopicId>,
    /// What each broker carries; follows from `topics`.
    loads: Loads,
}

impl MetaState {
    /// How many commands changed something.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The first producer id that was never given out.
    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    /// The brokers that ever registered, by id.
    pub fn brokers(&self) -> impl ExactSizeIterator<Item = &Arc<Broker>> {
        self.brokers.values()
    }

    /// A broker.
    pub fn broker(&self, id: BrokerId) -> Option<&Arc<Broker>> {
        self.brokers.get(&id)
    }

    /// The topics, sorted by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.names.values().filter_map(|id| self.topics.get(id))
    }

    /// A topic by its id.
    pub fn topic(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(&id)
    }

    /// A topic by its name.
    pub fn topic_named(&self, name: &TopicName) -> Option<&Arc<Topic>> {
        self.names.get(name).and_then(|id| self.topics.get(id))
    }

    /// The topics that were deleted and whose name is not free yet.
    pub fn deleted(&self) -> impl ExactSizeIterator<Item = (TopicId, &Deleted)> {
        self.deleted.iter().map(|(id, deleted)| (*id, deleted))
    }

    /// A partition.
    pub fn partition(&self, id: PartitionId) -> Option<&Arc<Partition>> {
        let topic = self.topics.get(&id.topic)?;
        topic.partitions.get(usize::try_from(id.partition).ok()?)
    }

    /// What a broker carries.
    pub fn load(&self, broker: BrokerId) -> Load {
        self.loads.of(broker)
    }

    /// Applies a command.
    ///
    /// # Errors
    /// The reason why it was refused; nothing has changed then.
    pub fn apply(&mut self, command: &Command) -> Result<Applied, Refusal> {
        match command {
            Command::RegisterBroker(broker) => self.register_broker(broker),
            Command::CreateTopic(topic) => self.create_topic(topic),
            Command::DeleteTopic { topic } => self.delete_topic(*topic),
            Command::ForgetDeleted { topic, broker } => Ok(self.forget_deleted(*topic, *broker)),
            Command::AllocateProducerIds { count } => {
                self.allocate_producer_ids(*count).map(Applied::ProducerIds)
            }
            Command::SkipProducerIds { below } => {
                self.skip_producer_ids(*below);
                Ok(Applied::ProducerIdsSkipped)
            }
            Command::PrepareSegment {
                partition,
                epoch,
                predecessor,
                attempt,
                successor,
            } => self.prepare_segment(*partition, *epoch, *predecessor, *attempt, successor),
            Command::SealSegment {
                partition,
                epoch,
                segment,
                end,
                successor,
            } => self.seal_segment(*partition, *epoch, *segment, *end, *successor),
            Command::AbandonSegment {
                partition,
                epoch,
                segment,
            } => self.abandon_segment(*partition, *epoch, *segment),
            Command::BeginFailover { partition } => self.begin_failover(*partition),
            Command::ElectLeader {
                partition,
                epoch,
                leader,
                ends,
                segment,
            } => self.elect_leader(*partition, *epoch, *leader, *ends, segment),
            Command::AdvanceLogStart {
                partition,
                epoch,
                log_start,
            } => self.advance_log_start(*partition, *epoch, *log_start),
        }
    }

    /// A partition, whoever leads it.
    fn known(&self, id: PartitionId) -> Result<&Partition, Refusal> {
        let partition = self.partition(id);
        partition
            .map(Arc::as_ref)
            .ok_or(Refusal::UnknownPartition(id))
    }

    /// A partition whose elected leader's epoch is this one.
    fn led(&self, id: PartitionId, epoch: u32) -> Result<&Partition, Refusal> {
        let partition = self.known(id)?;
        partition.check_epoch(epoch)?;
        if partition.elected {
            Ok(partition)
        } else {
            Err(Refusal::NotElected(epoch))
        }
    }

    /// Changes a partition that is known to be there, and keeps the loads in step.
    fn change<T>(
        &mut self,
        id: PartitionId,
        change: impl FnOnce(&mut Partition) -> T,
    ) -> Option<T> {
        let topic = Arc::make_mut(self.topics.get_mut(&id.topic)?);
        let at = usize::try_from(id.partition).ok()?;
        let partition = Arc::make_mut(topic.partitions.get_mut(at)?);
        self.loads.remove(partition);
        let outcome = change(partition);
        self.loads.add(partition);
        self.revision += 1;
        Some(outcome)
    }

    fn allocate_producer_ids(&mut self, count: u32) -> Result<Range<i64>, Refusal> {
        let first = self.next_producer_id;
        let end = first
            .checked_add(i64::from(count))
            .ok_or(Refusal::ProducerIdsExhausted)?;
        self.next_producer_id = end;
        self.revision += 1;
        Ok(first..end)
    }

    fn skip_producer_ids(&mut self, below: i64) {
        if below > self.next_producer_id {
            self.next_producer_id = below;
            self.revision += 1;
        }
    }

    /// What follows from the rest, for a state that was read.
    pub(crate) fn from_parts(
        revision: u64,
        next_producer_id: i64,
        brokers: BTreeMap<BrokerId, Arc<Broker>>,
        topics: BTreeMap<TopicId, Arc<Topic>>,
        deleted: BTreeMap<TopicId, Deleted>,
    ) -> Self {
        let names = topics
            .iter()
            .map(|(id, topic)| (topic.name.clone(), *id))
            .collect();
        let loads = Loads::of_topics(topics.values().map(Arc::as_ref));
        Self {
            revision,
            next_producer_id,
            brokers,
            topics,
            deleted,
            names,
            loads,
        }
    }

    fn broker_ids(&self) -> BTreeSet<BrokerId> {
        self.brokers.keys().copied().collect()
    }
}
