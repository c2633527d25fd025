//! Where segments go: a pure function of the cluster's state.
//!
//! Brokers that were told to be failing get nothing. Of the others those come first whose rack has no
//! replica of the segment yet, then those that hold the fewest segments that are written to, then by
//! a hash of segment and broker, so that equals share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{BrokerId, MAX_REPLICAS, ReplicaSet, SegmentId};
use crate::state::{Broker, Load, MetaState};

/// How many replicas a segment is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaCount {
    /// As many as there should be.
    pub wanted: usize,
    /// As few as there may be where not so many can be placed; what is missing is repaired later.
    pub least: usize,
}

/// Why a segment can't be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaceable {
    /// Too few brokers are well.
    #[error("{well} brokers are well, a segment needs {needed}")]
    TooFew {
        /// How many are, the leader counted.
        well: usize,
        /// How many replicas there have to be.
        needed: usize,
    },
    /// The leader never registered.
    #[error("broker {0} is not known")]
    UnknownLeader(BrokerId),
}

/// Places segments, one after the other: what it placed counts for the next.
#[derive(Clone, Debug)]
pub struct Placer {
    well: BTreeMap<BrokerId, Candidate>,
    known: BTreeMap<BrokerId, Arc<Broker>>,
}

#[derive(Clone, Debug)]
struct Candidate {
    rack: Option<String>,
    load: Load,
}

impl Placer {
    /// A placer on a cluster's state, of whose brokers these are failing.
    pub fn new(state: &MetaState, failing: &BTreeSet<BrokerId>) -> Self {
        let known: BTreeMap<_, _> = state.brokers().map(|b| (b.id, Arc::clone(b))).collect();
        let well = known.values().filter(|b| !failing.contains(&b.id));
        let well = well.map(|broker| {
            let candidate = Candidate {
                rack: broker.rack.clone(),
                load: state.load(broker.id),
            };
            (broker.id, candidate)
        });
        Self {
            well: well.collect(),
            known,
        }
    }

    /// Chooses a leader: of those that are well and among `from` the one that leads the fewest
    /// partitions. For a new partition `from` is every broker, after a failover those that hold the
    /// tail.
    pub fn choose_leader(
        &mut self,
        segment: SegmentId,
        from: impl Fn(BrokerId) -> bool,
    ) -> Option<BrokerId> {
        let candidates = self.well.iter().filter(|(b, _)| from(**b));
        let (broker, _) = candidates.min_by_key(|(b, c)| {
            let Load {
                leaderships,
                open_segments,
            } = c.load;
            (leaderships, open_segments, mixed(segment, **b))
        })?;
        let broker = *broker;
        if let Some(leader) = self.well.get_mut(&broker) {
            leader.load.leaderships += 1;
        }
        Some(broker)
    }

    /// Chooses the replicas of a segment: its leader and the best of the others.
    ///
    /// # Errors
    /// [`Unplaceable`].
    pub fn place(
        &mut self,
        segment: SegmentId,
        leader: BrokerId,
        count: ReplicaCount,
    ) -> Result<ReplicaSet, Unplaceable> {
        let Some(own) = self.known.get(&leader) else {
            return Err(Unplaceable::UnknownLeader(leader));
        };
        let wanted = count.wanted.clamp(1, MAX_REPLICAS);
        let mut racks: BTreeSet<Option<String>> = BTreeSet::from([own.rack.clone()]);
        let mut chosen = vec![leader];
        while chosen.len() < wanted {
            let Some((broker, rack)) = self.best(segment, &chosen, &racks) else {
                break;
            };
            racks.insert(rack);
            chosen.push(broker);
        }
        if chosen.len() < count.least.min(wanted) {
            return Err(Unplaceable::TooFew {
                well: chosen.len(),
                needed: count.least,
            });
        }
        for broker in &chosen {
            if let Some(candidate) = self.well.get_mut(broker) {
                candidate.load.open_segments += 1;
            }
        }
        ReplicaSet::new(chosen).map_err(|_| Unplaceable::UnknownLeader(leader))
    }

    fn best(
        &self,
        segment: SegmentId,
        chosen: &[BrokerId],
        racks: &BTreeSet<Option<String>>,
    ) -> Option<(BrokerId, Option<String>)> {
        let rest = self.well.iter().filter(|(b, _)| !chosen.contains(b));
        let best = rest.min_by_key(|(b, c)| {
            let rack_is_taken = c.rack.is_some() && racks.contains(&c.rack);
            (rack_is_taken, c.load.open_segments, mixed(segment, **b))
        });
        best.map(|(broker, candidate)| (*broker, candidate.rack.clone()))
    }
}

/// The finaliser of `SplitMix64`: a bijection in which every bit of the input moves every bit.
fn mixed(segment: SegmentId, broker: BrokerId) -> u64 {
    let mut x = segment.0 ^ u64::from(broker.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
