//! A change of leaders, as the metadata sees it: a term ends, and another begins. What is decided in
//! between is in [`crate::failover`].

use super::{MetaState, Partition, SealedSegment};
use crate::command::{Applied, Ends, NewSegment, Refusal};
use crate::ids::{BrokerId, PartitionId};

/// Kafka carries epochs as signed 32-bit numbers.
const MAX_EPOCH: u32 = i32::MAX as u32;

impl MetaState {
    pub(super) fn begin_failover(&mut self, id: PartitionId) -> Result<Applied, Refusal> {
        let partition = self.known(id)?;
        if partition.epoch >= MAX_EPOCH {
            return Err(Refusal::EpochsExhausted(partition.epoch));
        }
        let begun = Applied::FailoverBegun {
            epoch: partition.epoch + 1,
            active: partition.active.clone(),
            successor: partition.prepared.clone(),
        };
        self.change(id, |p| {
            p.epoch += 1;
            p.elected = false;
        });
        Ok(begun)
    }

    pub(super) fn elect_leader(
        &mut self,
        id: PartitionId,
        epoch: u32,
        leader: BrokerId,
        ends: Ends,
        new: &NewSegment,
    ) -> Result<Applied, Refusal> {
        let partition = self.known(id)?;
        partition.check_epoch(epoch)?;
        if partition.elected {
            return Err(Refusal::AlreadyElected {
                epoch,
                leader: partition.leader,
                segment: partition.active.segment.id,
            });
        }
        partition.check_ends(ends)?;
        if partition.find(new.id).is_some() {
            return Err(Refusal::SegmentIdTaken(new.id));
        }
        self.check_placement(new, leader)?;
        let base = self.change(id, |p| p.elect(leader, ends, new));
        Ok(Applied::Elected {
            base: base.unwrap_or_default(),
        })
    }
}

impl Partition {
    /// The ends must continue the chain. That they lose nothing is not to be seen from here.
    fn check_ends(&self, ends: Ends) -> Result<(), Refusal> {
        let (base, end) = (self.active.base, ends.active_end);
        if end < base || end > i64::MAX.unsigned_abs() {
            return Err(Refusal::Offsets { base, end });
        }
        match (ends.successor, &self.prepared) {
            (None, _) => Ok(()),
            (Some(kept), Some(_))
                if kept.base == end
                    && kept.base <= kept.end
                    && kept.end <= i64::MAX.unsigned_abs() =>
            {
                Ok(())
            }
            (Some(kept), _) => Err(Refusal::Offsets {
                base: kept.base,
                end: kept.end,
            }),
        }
    }

    /// Ends what the terms before left open, and begins the new segment there.
    fn elect(&mut self, leader: BrokerId, ends: Ends, new: &NewSegment) -> u64 {
        let base = ends.end();
        let successor = self.prepared.take();
        let active = self.begin(self.successor(new, None), base);
        let mut last = active.segment.predecessor;
        let active = SealedSegment {
            end: ends.active_end,
            ..active
        };
        let kept = ends.successor.zip(successor);
        let kept = kept.map(|(kept, segment)| SealedSegment {
            segment,
            base: kept.base,
            end: kept.end,
        });
        let ended = [Some(active), kept].into_iter().flatten();
        for mut ended in ended.filter(|s| s.base < s.end) {
            // The one before may have been empty, and dropped.
            ended.segment.predecessor = last;
            last = Some(ended.segment.id);
            self.sealed.push_back(ended);
        }
        self.active.segment.predecessor = last;
        self.leader = leader;
        self.elected = true;
        base
    }
}
