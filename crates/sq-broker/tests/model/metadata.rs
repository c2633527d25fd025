//! The metadata of the world: sq-meta's state machine, with one topic of one partition.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sq_meta::{
    Broker, BrokerId, Command, Ends, Kept, LinkState, MetaState, NewPartition, NewSegment,
    NewTopic, Partition, PartitionId, ReplicaSet, SegmentId, TopicId,
};
use sq_storage::TopicName;

use crate::model::chain::{NONE, Placed, SLOTS, Stage, UNPLACED, Verdict};

const BROKERS: u8 = 4;

/// The state machine, and what the world sees of it. A world's segments are numbered; the numbers are
/// their ids.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    /// The first term is 1 in a world, and 0 here.
    pub(crate) epoch: u8,
    pub(crate) elected: bool,
    /// What it says of each segment, and of those that it has forgotten what it said last.
    pub(crate) chain: [Placed; SLOTS],
    state: Arc<MetaState>,
}

/// What a command was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Seal,
    Abandonment,
    Otherwise,
}

/// Worlds are the same in which the same can happen. What the state machine holds besides what is seen
/// is how many commands there were, which decides nothing.
impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Meta {}

impl Hash for Meta {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

fn id() -> PartitionId {
    PartitionId {
        topic: TopicId::from_random(1),
        partition: 0,
    }
}

fn replica_set(mask: u8) -> ReplicaSet {
    let brokers = (0..BROKERS).filter(|broker| mask & (1 << broker) != 0);
    ReplicaSet::new(brokers.map(|b| BrokerId(b.into())).collect::<Vec<_>>()).unwrap()
}

fn mask(replicas: &ReplicaSet) -> u8 {
    replicas
        .iter()
        .fold(0, |mask, broker| mask | (1 << broker.0))
}

fn segment(slot: u8) -> SegmentId {
    SegmentId(slot.into())
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

fn new_segment(slot: u8, replicas: u8) -> NewSegment {
    NewSegment {
        id: segment(slot),
        replicas: replica_set(replicas),
    }
}

impl Meta {
    pub(crate) fn new(replicas: u8) -> Self {
        let mut state = MetaState::default();
        for broker in 0..BROKERS {
            let broker = Broker {
                id: BrokerId(broker.into()),
                incarnation: 1,
                host: "localhost".into(),
                port: 9092,
                rack: None,
            };
            state.apply(&Command::RegisterBroker(broker)).unwrap();
        }
        let topic = NewTopic {
            id: id().topic,
            name: TopicName::new("t").unwrap(),
            configs: BTreeMap::new(),
            partitions: vec![NewPartition::empty(BrokerId(0), new_segment(0, replicas))],
        };
        state.apply(&Command::CreateTopic(topic)).unwrap();
        let mut meta = Self {
            epoch: 1,
            elected: true,
            chain: [UNPLACED; SLOTS],
            state: Arc::new(state),
        };
        meta.look(How::Otherwise);
        meta
    }

    fn key(&self) -> (u8, bool, u32, &[Placed; SLOTS]) {
        (self.epoch, self.elected, self.attempt(), &self.chain)
    }

    fn partition(&self) -> &Partition {
        self.state.partition(id()).unwrap()
    }

    /// Applies a command. Whether it changed anything.
    fn apply(&mut self, command: &Command, how: How) -> bool {
        let before = self.state.revision();
        let applied = Arc::make_mut(&mut self.state).apply(command);
        let changed = self.state.revision() != before;
        assert!(
            applied.is_ok() || !changed,
            "a refused command changed something"
        );
        if changed {
            self.state.validate().unwrap();
            self.look(how);
        }
        changed
    }

    /// Brings what the world sees up to date.
    fn look(&mut self, how: How) {
        let state = Arc::clone(&self.state);
        let partition = state.partition(id()).unwrap();
        self.epoch = small(partition.epoch.into()) + 1;
        self.elected = partition.elected;
        for (slot, seen) in (0..).zip(&mut self.chain) {
            match partition.find(segment(slot)) {
                Some(link) => see(seen, link.segment, link.state, how == How::Seal),
                None => forget(seen, how),
            }
        }
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "the model of it has worlds without one"
    )]
    pub(crate) fn active(&self) -> Option<u8> {
        Some(small(self.partition().active.segment.id.0))
    }

    pub(crate) fn prepared_after(&self, slot: u8) -> Option<u8> {
        let prepared = self.partition().prepared.as_ref()?;
        (prepared.predecessor == Some(segment(slot))).then(|| small(prepared.id.0))
    }

    /// What a request of now says, so that it does nothing once it is late.
    pub(crate) fn attempt(&self) -> u32 {
        self.partition().attempt
    }

    /// `again`: the request says that it is of now, whenever it was made.
    pub(crate) fn prepare(
        &mut self,
        slot: u8,
        predecessor: u8,
        replicas: u8,
        (epoch, attempt): (u8, u32),
        again: bool,
    ) -> bool {
        let attempt = if again { self.attempt() } else { attempt };
        let command = Command::PrepareSegment {
            partition: id(),
            epoch: u32::from(epoch) - 1,
            predecessor: segment(predecessor),
            attempt,
            successor: new_segment(slot, replicas),
        };
        self.apply(&command, How::Otherwise)
    }

    /// `again`: a sealed segment is seen to change, as if its guard were missing.
    pub(crate) fn seal(
        &mut self,
        slot: u8,
        end: u8,
        successor: u8,
        epoch: u8,
        again: bool,
    ) -> bool {
        if again && self.at(slot).stage == Stage::Sealed {
            self.chain[usize::from(slot)].end = end;
            return true;
        }
        let command = Command::SealSegment {
            partition: id(),
            epoch: u32::from(epoch) - 1,
            segment: segment(slot),
            end: end.into(),
            successor: segment(successor),
        };
        self.apply(&command, How::Seal)
    }

    pub(crate) fn abandon(&mut self, slot: u8, epoch: u8) -> bool {
        let command = Command::AbandonSegment {
            partition: id(),
            epoch: u32::from(epoch) - 1,
            segment: segment(slot),
        };
        self.apply(&command, How::Abandonment)
    }

    pub(crate) fn begin_failover(&mut self) {
        self.apply(&Command::BeginFailover { partition: id() }, How::Otherwise);
    }

    /// `ends` holds what the failover keeps and `known` the highest commit it knows; `fresh` takes what
    /// lies between.
    pub(crate) fn elect(
        &mut self,
        epoch: u8,
        ends: Verdict,
        known: u8,
        fresh: u8,
        (leader, replicas): (u8, u8),
    ) -> bool {
        let bound = ends.successor_base.filter(|base| known > *base);
        let kept = bound.map(|base| Kept {
            base: base.into(),
            end: known.into(),
        });
        let command = Command::ElectLeader {
            partition: id(),
            epoch: u32::from(epoch) - 1,
            leader: BrokerId(leader.into()),
            ends: Ends {
                active_end: bound.unwrap_or(known).into(),
                successor: kept,
            },
            segment: new_segment(fresh, replicas),
        };
        self.apply(&command, How::Otherwise)
    }
}

/// Of a sealed segment the world may have forgotten where it was, since that plays no part any more.
fn see(seen: &mut Placed, segment: &sq_meta::Segment, state: LinkState, by_seal: bool) {
    let predecessor = segment.predecessor.map_or(NONE, |id| small(id.0));
    let replicas = mask(&segment.replicas);
    *seen = match state {
        LinkState::Sealed { base, end } if seen.stage == Stage::Sealed => Placed {
            base: small(base),
            end: small(end),
            ..*seen
        },
        LinkState::Sealed { base, end } => Placed {
            stage: Stage::Sealed,
            base: small(base),
            end: small(end),
            by_seal,
            ..*seen
        },
        LinkState::Active { base } => Placed {
            stage: Stage::Active,
            replicas,
            base: small(base),
            predecessor: match seen.stage {
                Stage::Prepared | Stage::Active => seen.predecessor,
                _ => NONE,
            },
            ..UNPLACED
        },
        LinkState::Prepared => Placed {
            stage: Stage::Prepared,
            replicas,
            predecessor,
            ..UNPLACED
        },
    };
}

/// What a segment was that is no longer in the chain: an abandoned successor, or one that a failover
/// found to be empty or unbound.
fn forget(seen: &mut Placed, how: How) {
    let (stage, end) = match (seen.stage, how) {
        (Stage::Prepared, How::Abandonment) => (Stage::Abandoned, seen.end),
        (Stage::Prepared, _) => (Stage::Dropped, seen.end),
        (Stage::Active, _) => (Stage::Dropped, seen.base),
        (stage, _) => (stage, seen.end),
    };
    (seen.stage, seen.end) = (stage, end);
}
