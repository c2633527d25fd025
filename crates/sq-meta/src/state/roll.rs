//! The roll, as the metadata sees it: a successor is prepared, and takes over or is given up.

use super::{ActiveSegment, LinkState, MetaState, Partition, SealedSegment, Segment};
use crate::command::{Applied, NewSegment, Refusal};
use crate::ids::{PartitionId, SegmentId};

impl MetaState {
    pub(super) fn prepare_segment(
        &mut self,
        id: PartitionId,
        epoch: u32,
        predecessor: SegmentId,
        attempt: u32,
        new: &NewSegment,
    ) -> Result<Applied, Refusal> {
        let partition = self.led(id, epoch)?;
        partition.check_active(predecessor)?;
        if let Some(successor) = &partition.prepared {
            return Ok(Applied::Prepared {
                successor: successor.clone(),
                repeated: true,
            });
        }
        if attempt != partition.attempt {
            return Err(Refusal::Attempt {
                given: attempt,
                current: partition.attempt,
            });
        }
        if partition.find(new.id).is_some() {
            return Err(Refusal::SegmentIdTaken(new.id));
        }
        self.check_placement(new, partition.leader)?;
        let successor = partition.successor(new, Some(predecessor));
        self.change(id, |p| p.prepared = Some(successor.clone()));
        Ok(Applied::Prepared {
            successor,
            repeated: false,
        })
    }

    pub(super) fn seal_segment(
        &mut self,
        id: PartitionId,
        epoch: u32,
        segment: SegmentId,
        end: u64,
        successor: SegmentId,
    ) -> Result<Applied, Refusal> {
        let partition = self.led(id, epoch)?;
        if partition.is_sealed_so(segment, end, successor)? {
            return Ok(Applied::Sealed { repeated: true });
        }
        partition.check_active(segment)?;
        partition.check_prepared(successor)?;
        let base = partition.active.base;
        if end < base || end > i64::MAX.unsigned_abs() {
            return Err(Refusal::Offsets { base, end });
        }
        self.change(id, |p| p.seal(end));
        Ok(Applied::Sealed { repeated: false })
    }

    pub(super) fn abandon_segment(
        &mut self,
        id: PartitionId,
        epoch: u32,
        segment: SegmentId,
    ) -> Result<Applied, Refusal> {
        let partition = self.led(id, epoch)?;
        partition.check_prepared(segment)?;
        self.change(id, |p| {
            p.prepared = None;
            p.attempt = p.attempt.saturating_add(1);
        });
        Ok(Applied::Abandoned)
    }
}

impl Partition {
    fn check_active(&self, segment: SegmentId) -> Result<(), Refusal> {
        let active = self.active.segment.id;
        if segment == active {
            Ok(())
        } else {
            Err(Refusal::NotActive { segment, active })
        }
    }

    fn check_prepared(&self, segment: SegmentId) -> Result<(), Refusal> {
        match &self.prepared {
            Some(prepared) if prepared.id == segment => Ok(()),
            _ => Err(Refusal::NotPrepared(segment)),
        }
    }

    /// Whether a seal was applied before. It is told by the successor, which outlives the segment:
    /// retention may have taken that in between.
    fn is_sealed_so(
        &self,
        segment: SegmentId,
        end: u64,
        successor: SegmentId,
    ) -> Result<bool, Refusal> {
        let begun = self.find(successor).and_then(|link| match link.state {
            LinkState::Sealed { base, .. } | LinkState::Active { base } => {
                Some((link.segment.predecessor, base))
            }
            LinkState::Prepared => None,
        });
        if begun == Some((Some(segment), end)) {
            return Ok(true);
        }
        match self.find(segment).map(|link| link.state) {
            Some(LinkState::Sealed { end, .. }) => Err(Refusal::SealedOtherwise { segment, end }),
            _ => Ok(false),
        }
    }

    /// The prepared successor takes over from the active segment.
    fn seal(&mut self, end: u64) {
        if let Some(successor) = self.prepared.take() {
            let sealed = self.begin(successor, end);
            self.sealed.push_back(sealed);
        }
    }

    /// Makes `next` the active segment, from `base` on, and gives the one before, ended there.
    pub(super) fn begin(&mut self, next: Segment, base: u64) -> SealedSegment {
        let next = ActiveSegment {
            segment: next,
            base,
        };
        let before = std::mem::replace(&mut self.active, next);
        self.attempt = 0;
        SealedSegment {
            segment: before.segment,
            base: before.base,
            end: base,
        }
    }
}
