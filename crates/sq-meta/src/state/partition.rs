//! A partition and its chain of segments.

use std::collections::VecDeque;

use crate::command::{NewSegment, Refusal};
use crate::ids::{BrokerId, ReplicaSet, SegmentId};

/// What stays the same of a segment from its preparation to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its id.
    pub id: SegmentId,
    /// Who holds it.
    pub replicas: ReplicaSet,
    /// The segment before it in the chain when it was made; none for a partition's first.
    pub predecessor: Option<SegmentId>,
    /// The one epoch in which it is written.
    pub writer_epoch: u32,
}

/// A segment that takes no more records and never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// The segment.
    pub segment: Segment,
    /// Its first offset.
    pub base: u64,
    /// The offset behind its last; `base` if it holds none.
    pub end: u64,
}

/// The segment that the chain ends in, as far as the metadata knows: its leader may be one ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveSegment {
    /// The segment.
    pub segment: Segment,
    /// Its first offset.
    pub base: u64,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// How many terms of leaders there were before this one.
    pub epoch: u32,
    /// Whether this epoch has its leader; if not, a failover is under way.
    pub elected: bool,
    /// The leader that was elected last.
    pub leader: BrokerId,
    /// The first offset that can be read.
    pub log_start: u64,
    /// The sealed segments, first to last.
    pub sealed: VecDeque<SealedSegment>,
    /// The active segment.
    pub active: ActiveSegment,
    /// Its prepared successor.
    pub prepared: Option<Segment>,
    /// How many successors of the active segment were abandoned.
    pub attempt: u32,
}

/// A segment as one of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// The segment.
    pub segment: &'a Segment,
    /// Where it stands.
    pub state: LinkState,
}

/// Where a segment of the chain stands. Offsets as in [`SealedSegment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Its offsets are final.
    Sealed {
        /// Its first offset.
        base: u64,
        /// The offset behind its last.
        end: u64,
    },
    /// It is written to.
    Active {
        /// Its first offset.
        base: u64,
    },
    /// It is to be the next; it begins where the active one will end.
    Prepared,
}

impl Partition {
    /// The chain, first to last, the prepared successor at its end.
    pub fn chain(&self) -> impl Iterator<Item = Link<'_>> {
        let sealed = self.sealed.iter().map(|s| Link {
            segment: &s.segment,
            state: LinkState::Sealed {
                base: s.base,
                end: s.end,
            },
        });
        let active = Link {
            segment: &self.active.segment,
            state: LinkState::Active {
                base: self.active.base,
            },
        };
        let prepared = self.prepared.iter().map(|segment| Link {
            segment,
            state: LinkState::Prepared,
        });
        sealed.chain([active]).chain(prepared)
    }

    /// The segment of an id, if it is in the chain.
    pub fn find(&self, id: SegmentId) -> Option<Link<'_>> {
        self.chain().find(|link| link.segment.id == id)
    }

    /// The sealed segment that holds an offset.
    pub fn sealed_with(&self, offset: u64) -> Option<&SealedSegment> {
        let at = self.sealed.partition_point(|s| s.end <= offset);
        self.sealed.get(at).filter(|s| s.base <= offset)
    }

    /// Whether a broker that starts again goes on as the leader, in the same epoch and the same
    /// segments: if no other can hold other bytes for their offsets. Any other leader's restart is a
    /// failover.
    pub fn resumable_by(&self, broker: BrokerId) -> bool {
        let alone = ReplicaSet::of(broker);
        self.elected
            && self.leader == broker
            && self.active.segment.replicas == alone
            && self.prepared.as_ref().is_none_or(|s| s.replicas == alone)
    }

    /// The segments that records may still be written to, at most two.
    pub fn open_segments(&self) -> impl Iterator<Item = &Segment> {
        [&self.active.segment].into_iter().chain(&self.prepared)
    }

    pub(super) fn check_epoch(&self, given: u32) -> Result<(), Refusal> {
        let current = self.epoch;
        if given == current {
            Ok(())
        } else {
            Err(Refusal::Epoch { given, current })
        }
    }

    /// What a new segment of this partition would be.
    pub(super) fn successor(&self, new: &NewSegment, predecessor: Option<SegmentId>) -> Segment {
        Segment {
            id: new.id,
            replicas: new.replicas.clone(),
            predecessor,
            writer_epoch: self.epoch,
        }
    }
}
