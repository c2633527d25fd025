//! What is no longer kept.

use super::{MetaState, Partition, SealedSegment};
use crate::command::{Applied, Refusal};
use crate::ids::PartitionId;

impl MetaState {
    pub(super) fn advance_log_start(
        &mut self,
        id: PartitionId,
        epoch: u32,
        log_start: u64,
    ) -> Result<Applied, Refusal> {
        let partition = self.led(id, epoch)?;
        let active_base = partition.active.base;
        if log_start > active_base {
            return Err(Refusal::LogStart {
                log_start,
                active_base,
            });
        }
        if log_start <= partition.log_start {
            return Ok(Applied::LogStart {
                log_start: partition.log_start,
                dropped: Vec::new(),
            });
        }
        let dropped = self.change(id, |p| p.drop_before(log_start));
        Ok(Applied::LogStart {
            log_start,
            dropped: dropped.unwrap_or_default(),
        })
    }
}

impl Partition {
    fn drop_before(&mut self, log_start: u64) -> Vec<SealedSegment> {
        self.log_start = log_start;
        let gone = self.sealed.partition_point(|s| s.end <= log_start);
        self.sealed.drain(..gone).collect()
    }
}
