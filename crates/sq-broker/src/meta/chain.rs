//! Keeping a partition's chain in the metadata in line with the log on this broker's disk.
//!
//! A switch does not wait for the metadata, so what it says may be a step behind what the log holds;
//! and a log may hold segments that it was never told of: a process that died in between, a file that
//! took the place of one whose sync failed, an earlier version. The log is right about what it holds.
//! Where the metadata says more than that, records were lost, and no command mends it.

use std::sync::Arc;

use sq_meta::{Command, LinkState, NewSegment, Partition, PartitionId, ReplicaSet, SegmentId};
use sq_roll::{Epoch, Start};
use sq_sim::FileSystem;
use sq_storage::{LogReader, SegmentInfo, WalWriter};

use super::{MetaError, Metadata};

/// Why a partition can't go on from what its directory and the metadata say.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The metadata does not know it.
    #[error("the metadata knows no partition {0}")]
    Unknown(PartitionId),
    /// Its term has no leader, or another one.
    #[error("this broker does not lead the partition, or not alone")]
    NotOurs,
    /// Records are lost that were durable once.
    #[error("every offset below {sealed} was durable, and the log ends at {end}")]
    Lost {
        /// Where the active segment begins, by the metadata.
        sealed: u64,
        /// Where the log ends.
        end: u64,
    },
    /// The metadata can't be changed now. It stays behind.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// One segment of a log: its id, and its first offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its id.
    pub id: SegmentId,
    /// Its first offset.
    pub base: u64,
}

impl From<&SegmentInfo> for Held {
    fn from(segment: &SegmentInfo) -> Self {
        Self {
            id: SegmentId(segment.id),
            base: segment.base_offset,
        }
    }
}

/// What else is to be brought in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// All: nobody writes to the log yet, so a prepared successor that the log does not hold is unused.
    Opening,
    /// Only what the log holds.
    Running,
}

/// Whether a segment comes behind the active one, and is not known to be there.
fn continues(partition: &Partition, held: &Held) -> bool {
    let link = partition.find(held.id);
    let is_bound = link.is_some_and(|link| link.state != LinkState::Prepared);
    held.base >= partition.active.base && !is_bound
}

/// The first command of those that bring a chain in line with a log that holds these segments and begins
/// at `log_start`; `None` once it is.
pub fn next_step(
    id: PartitionId,
    partition: &Partition,
    held: &[Held],
    log_start: u64,
    rest: Rest,
) -> Option<Command> {
    let (epoch, active) = (partition.epoch, &partition.active);
    // Empty segments before the active one may be dropped already, and begin where it does.
    let after = held.iter().position(|h| h.id == active.segment.id);
    let unknown = held
        .iter()
        .skip(after.map_or(0, |at| at + 1))
        .find(|held| continues(partition, held));
    match (unknown, &partition.prepared) {
        (Some(next), Some(prepared)) if prepared.id == next.id => Some(Command::SealSegment {
            partition: id,
            epoch,
            segment: active.segment.id,
            end: next.base,
            successor: next.id,
        }),
        (Some(_), Some(prepared)) => Some(Command::AbandonSegment {
            partition: id,
            epoch,
            segment: prepared.id,
        }),
        (Some(next), None) => Some(Command::PrepareSegment {
            partition: id,
            epoch,
            predecessor: active.segment.id,
            attempt: partition.attempt,
            successor: NewSegment {
                id: next.id,
                replicas: ReplicaSet::of(partition.leader),
            },
        }),
        (None, Some(prepared)) if rest == Rest::Opening => Some(Command::AbandonSegment {
            partition: id,
            epoch,
            segment: prepared.id,
        }),
        (None, _) => {
            let log_start = log_start.min(active.base);
            (log_start > partition.log_start).then_some(Command::AdvanceLogStart {
                partition: id,
                epoch,
                log_start,
            })
        }
    }
}

/// A partition as the metadata has it now.
///
/// # Errors
/// [`ChainError::Unknown`] and [`ChainError::NotOurs`].
fn ours<F: FileSystem>(
    metadata: &Metadata<F>,
    id: PartitionId,
) -> Result<Arc<Partition>, ChainError> {
    let state = metadata.state();
    let partition = state.partition(id).ok_or(ChainError::Unknown(id))?;
    if partition.resumable_by(metadata.broker()) {
        Ok(Arc::clone(partition))
    } else {
        Err(ChainError::NotOurs)
    }
}

/// Brings a partition's chain in line with these segments, which are in order.
///
/// # Errors
/// [`ChainError`].
pub async fn bring_in_line<F: FileSystem>(
    metadata: &Metadata<F>,
    id: PartitionId,
    held: &[Held],
    log_start: u64,
    rest: Rest,
) -> Result<Arc<Partition>, ChainError> {
    loop {
        let partition = ours(metadata, id)?;
        let Some(step) = next_step(id, &partition, held, log_start, rest) else {
            return Ok(partition);
        };
        // Dropped, so that the step need not copy the state.
        drop(partition);
        tracing::info!(%id, ?step, "the metadata is behind the log");
        metadata.submit(step).await?;
    }
}

/// The same for what a log holds now, while it is written to.
///
/// # Errors
/// [`ChainError`].
pub async fn follow<F: FileSystem>(
    metadata: &Metadata<F>,
    id: PartitionId,
    log: &LogReader<F>,
) -> Result<Arc<Partition>, ChainError> {
    let held: Vec<_> = log.segments().iter().map(Held::from).collect();
    bring_in_line(metadata, id, &held, log.start_offset(), Rest::Running).await
}

/// Brings the metadata in line with a log that was opened and takes no append yet, and says where
/// appends go on.
///
/// A metadata log that takes no commands now is no reason to refuse records: the log goes on, and the
/// metadata follows with the next roll, or at the next opening.
///
/// # Errors
/// [`ChainError`], but for [`ChainError::Meta`].
pub async fn resume<F: FileSystem>(
    metadata: &Metadata<F>,
    id: PartitionId,
    writer: &WalWriter<F>,
) -> Result<Start, ChainError> {
    let before = ours(metadata, id)?;
    let (end, sealed) = (writer.next_offset(), before.active.base);
    if end < sealed {
        return Err(ChainError::Lost { sealed, end });
    }
    let reader = writer.reader();
    let mut held: Vec<_> = reader.segments().iter().map(Held::from).collect();
    let epoch = Epoch(before.epoch);
    let start = if goes_on(writer, &before) {
        Start::resume(writer, epoch)
    } else {
        let active = before.active.segment.id;
        let is_unused = sealed == end && !held.iter().any(|held| held.id == active);
        let fresh = if is_unused {
            active
        } else {
            let id = metadata.new_segment().id;
            held.push(Held { id, base: end });
            id
        };
        Start::empty(epoch, sq_roll::SegmentId(fresh.0), end)
    };
    drop(before);
    let brought = bring_in_line(metadata, id, &held, reader.start_offset(), Rest::Opening).await;
    match brought {
        Ok(_) => Ok(start),
        Err(ChainError::Meta(error)) => {
            tracing::warn!(%id, %error, "the metadata does not follow the log yet");
            Ok(start)
        }
        Err(error) => Err(error),
    }
}

/// Whether appends go on in the segment that the log's last ones went to. Not where the metadata has
/// ended it: a seal is committed once the first record of the next segment is acknowledged, which may be
/// before that is synced, and a power failure then leaves the one and takes the other.
fn goes_on<F: FileSystem>(writer: &WalWriter<F>, partition: &Partition) -> bool {
    writer.active_segment().is_some_and(|open| {
        let open = Held {
            id: SegmentId(open.id),
            base: open.base_offset,
        };
        open.id == partition.active.segment.id || continues(partition, &open)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sq_meta::{BrokerId, MetaState, NewPartition, NewTopic};

    use super::super::chain_tests::{broker, partition, topic};
    use super::*;

    fn state(active: u64, base: u64, prepared: Option<u64>) -> MetaState {
        let here = |id| NewSegment {
            id: SegmentId(id),
            replicas: ReplicaSet::of(BrokerId(1)),
        };
        let mut state = MetaState::default();
        state.apply(&Command::RegisterBroker(broker(1))).unwrap();
        let new = NewTopic {
            id: topic().id,
            name: topic().name,
            configs: BTreeMap::new(),
            partitions: vec![NewPartition {
                log_start: base,
                active_base: base,
                ..NewPartition::empty(BrokerId(1), here(active))
            }],
        };
        state.apply(&Command::CreateTopic(new)).unwrap();
        if let Some(prepared) = prepared {
            let prepare = Command::PrepareSegment {
                partition: partition(),
                epoch: 0,
                predecessor: SegmentId(active),
                attempt: 0,
                successor: here(prepared),
            };
            state.apply(&prepare).unwrap();
        }
        state
    }

    proptest! {
        #[test]
        fn any_log_that_continues_the_metadata_is_followed(
            base in 0_u64..100,
            lengths in proptest::collection::vec(0_u64..5, 0..6),
            knows_active: bool,
            prepared in proptest::option::of(0_usize..8),
            log_start in 0_u64..120,
            opening: bool,
        ) {
            // Ids from 10 on; the metadata's prepared successor is one of the log, or another.
            let mut held = Vec::new();
            let mut at = base;
            for (id, length) in (10..).zip(&lengths) {
                held.push(Held { id: SegmentId(id), base: at });
                at += length;
            }
            let active = if knows_active { 10 } else { 1 };
            let prepared = prepared.map(|n| n as u64 + 11);
            let mut state = state(active, base, prepared);
            let rest = if opening { Rest::Opening } else { Rest::Running };
            let mut steps = 0;
            while let Some(step) = {
                let known = state.partition(partition()).unwrap();
                next_step(partition(), known, &held, log_start, rest)
            } {
                state.apply(&step).unwrap();
                state.validate().unwrap();
                steps += 1;
                prop_assert!(steps <= 2 * lengths.len() + 3, "it does not end");
            }
            let known = state.partition(partition()).unwrap();
            if let Some(last) = held.last() {
                prop_assert_eq!(known.active.segment.id, last.id);
                prop_assert_eq!(known.active.base, last.base);
            }
            prop_assert!(!opening || known.prepared.is_none());
            for held in held.iter().filter(|held| held.base >= known.log_start) {
                let found = known.find(held.id);
                let is_empty_and_gone = held.base == known.log_start && found.is_none();
                prop_assert!(found.is_some() || is_empty_and_gone);
            }
            prop_assert_eq!(known.log_start, log_start.min(known.active.base).max(base));
        }
    }
}
