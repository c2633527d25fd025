//! Deleting records: the log begins where somebody says, from now on.

use std::sync::Arc;

use sq_sim::FileSystem;

use super::{Partition, Unavailable};

/// Up to where records are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteTo {
    /// Those below this offset.
    Offset(u64),
    /// All that are stored when it comes to that.
    End,
}

impl DeleteTo {
    /// The offset, in a log that ends at `end`.
    pub(super) fn within(self, end: u64) -> Result<u64, DeleteError> {
        match self {
            Self::End => Ok(end),
            Self::Offset(offset) if offset <= end => Ok(offset),
            Self::Offset(offset) => Err(DeleteError::BeyondEnd { offset, end }),
        }
    }
}

/// Why records were not deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The log does not reach that far.
    #[error("offset {offset} is beyond the log's end, {end}")]
    BeyondEnd {
        /// Up to where they were to be deleted.
        offset: u64,
        /// Where the log ends.
        end: u64,
    },
    /// It could not be made durable. They may be gone already, and may be back after a crash.
    #[error("{0}")]
    Storage(Arc<str>),
    /// There is no log to delete them from.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl<F: FileSystem> Partition<F> {
    /// Deletes records, behind all that is queued, and returns where the log begins then, durably. Below
    /// its start there is nothing to delete. A call that is dropped may still take place.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub async fn delete_records(&self, to: DeleteTo) -> Result<u64, DeleteError> {
        let open = self.shared.log().await?;
        // However often it is asked for while the disk is slow, no more than one is in the queue.
        let turn = Arc::clone(&self.shared.deleting).lock_owned().await;
        let deleted = open.log.with_writer(move |head, intake| {
            Box::pin(async move {
                let _turn = turn;
                match head {
                    Some(head) => intake.delete(head, to).await,
                    None => Err(Unavailable::Closed.into()),
                }
            })
        });
        // An error means that the log was closed first.
        let closed = |_| Err(Unavailable::Closed.into());
        deleted.await.unwrap_or_else(closed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use sq_sim::{Effect, Errno, Fault, Keep, OpKind, PathPattern, SyncFailure};
    use sq_storage::{Retention, SyncPolicy};

    use super::super::tests::{Machine, TestPartition, new_batch};
    use super::*;
    use crate::testing::{block_on, in_time, pass};

    /// Appends as many batches of one record, as far as that goes.
    async fn append(machine: &Machine, partition: &TestPartition, batches: u64) -> u64 {
        for n in 0..batches {
            let pending = partition.enqueue(new_batch(None, 1)).await.unwrap();
            if in_time(&machine.clock, pending.outcome()).await.is_err() {
                return n;
            }
        }
        batches
    }

    async fn delete(
        machine: &Machine,
        partition: &TestPartition,
        to: DeleteTo,
    ) -> Result<u64, DeleteError> {
        in_time(&machine.clock, partition.delete_records(to)).await
    }

    async fn offsets(partition: &TestPartition) -> (u64, u64) {
        let reader = partition.reader().await.unwrap();
        (reader.start_offset(), reader.end_offset())
    }

    /// No segment of the log takes a write, and none is made.
    fn refuse_appends(machine: &Machine) {
        let refuse = |kind| {
            Fault::new(Effect::Fail(Errno::NoSpace))
                .on(&[kind])
                .always()
        };
        machine
            .fs
            .inject(refuse(OpKind::WriteAt).path_ends_with(".wal"));
        let prepared = PathPattern::Contains(".prepared".to_owned());
        machine.fs.inject(refuse(OpKind::CreateNew).path(prepared));
    }

    #[test]
    fn a_partition_that_takes_no_appends_can_be_emptied() {
        // It is what makes room on a full disk.
        block_on(async {
            let machine = Machine::new(1);
            let partition = machine.start();
            assert_eq!(append(&machine, &partition, 3).await, 3);
            refuse_appends(&machine);
            for _ in 0..4 {
                assert_eq!(append(&machine, &partition, 1).await, 0);
            }
            assert_eq!(
                delete(&machine, &partition, DeleteTo::Offset(2)).await,
                Ok(2)
            );
            assert_eq!(delete(&machine, &partition, DeleteTo::End).await, Ok(3));
            assert_eq!(offsets(&partition).await, (3, 3));
            machine.fs.clear_faults();
            pass(&machine.clock, Duration::from_mins(10)).await;
            assert_eq!(append(&machine, &partition, 2).await, 2);
            machine.fs.power_loss(Keep::None);
            assert_eq!(offsets(&machine.start()).await, (3, 5));
        });
    }

    #[test]
    fn what_is_not_durably_deleted_is_an_error_and_made_good_by_the_next() {
        block_on(async {
            for kind in [OpKind::SyncAll, OpKind::Rename, OpKind::SyncDir] {
                let machine = Machine::new(1);
                let partition = machine.start();
                append(&machine, &partition, 3).await;
                pass(&machine.clock, Duration::from_secs(1)).await;
                let fault = Fault::new(Effect::Fail(Errno::Io)).on(&[kind]);
                machine.fs.inject(fault.always());
                for _ in 0..2 {
                    let refused = delete(&machine, &partition, DeleteTo::Offset(2)).await;
                    assert!(
                        matches!(refused, Err(DeleteError::Storage(_))),
                        "{refused:?}"
                    );
                }
                machine.fs.clear_faults();
                // Nobody is told of a start that a crash would take back.
                assert_eq!(
                    delete(&machine, &partition, DeleteTo::Offset(1)).await,
                    Ok(2)
                );
                machine.fs.power_loss(Keep::None);
                assert_eq!(offsets(&machine.start()).await, (2, 3), "{kind:?}");
            }
        });
    }

    #[test]
    fn what_is_acknowledged_and_not_synced_is_before_it_is_deleted() {
        // A sync that fails writes it again, at its offsets, in the next segment.
        block_on(async {
            for model in SyncFailure::ALL {
                let machine = Machine {
                    sync: SyncPolicy::Every(Duration::from_mins(1)),
                    ..Machine::new(1)
                };
                let partition = machine.start();
                append(&machine, &partition, 4).await;
                let fault = Fault::new(Effect::FailSync(model)).on(&[OpKind::SyncData]);
                machine.fs.inject(fault.path_ends_with(".wal"));
                assert_eq!(
                    delete(&machine, &partition, DeleteTo::Offset(3)).await,
                    Ok(3)
                );
                machine.fs.power_loss(Keep::None);
                let partition = machine.start();
                assert_eq!(offsets(&partition).await, (3, 4), "{model:?}");
                assert_eq!(append(&machine, &partition, 1).await, 1);
            }
        });
    }

    #[test]
    fn appends_go_on_in_the_segment_that_is_emptied() {
        block_on(async {
            let machine = Machine::new(1);
            let partition = machine.start();
            for end in 1..=5 {
                append(&machine, &partition, 1).await;
                let before = machine.clock.elapsed();
                assert_eq!(delete(&machine, &partition, DeleteTo::End).await, Ok(end));
                assert_eq!(machine.clock.elapsed(), before);
            }
            assert!(partition.rolls().await.unwrap().is_empty());
            let segments = partition.reader().await.unwrap().segments();
            assert_eq!(segments.len(), 1);
        });
    }

    /// A partition that has rolled a few times.
    async fn rolled(machine: &Machine) -> TestPartition {
        let partition = machine.start();
        for _ in 0..40 {
            append(machine, &partition, 5).await;
            pass(&machine.clock, Duration::from_secs(1)).await;
        }
        partition
    }

    /// The files that are kept to be written again.
    fn spares(machine: &Machine) -> usize {
        let files = machine.fs.files().into_iter();
        let is_spare = |path: &PathBuf| path.extension().is_some_and(|e| e == "spare");
        files.filter(is_spare).count()
    }

    #[test]
    fn a_full_disk_is_given_the_file_that_was_kept_to_be_written_again() {
        // Only the next check of retention looked for it, five minutes of refused appends later.
        block_on(async {
            let machine = Machine {
                segment_bytes: 6_000,
                ..Machine::new(1)
            };
            let partition = rolled(&machine).await;
            let end = offsets(&partition).await.1;
            assert_eq!(
                delete(&machine, &partition, DeleteTo::Offset(end)).await,
                Ok(end)
            );
            pass(&machine.clock, Duration::from_secs(1)).await;
            assert!(spares(&machine) > 0);
            machine.fs.set_free_space(Some(0));
            while append(&machine, &partition, 1).await == 1 {}
            pass(&machine.clock, Duration::from_secs(1)).await;
            assert_eq!(spares(&machine), 0);
        });
    }

    #[test]
    fn a_log_that_was_emptied_lets_go_of_the_files_that_it_kept() {
        // A check of retention passed over a log without a segment.
        block_on(async {
            let machine = Machine {
                segment_bytes: 6_000,
                ..Machine::new(2)
            };
            let partition = rolled(&machine).await;
            let nothing = Retention {
                max_bytes: None,
                max_age: Some(Duration::from_secs(1)),
            };
            machine.clock.advance(Duration::from_mins(5));
            partition.retain(nothing).await;
            pass(&machine.clock, Duration::from_secs(1)).await;
            let open = partition.reader_if_open().unwrap();
            assert!(open.segments().is_empty(), "{:?}", open.segments());
            let kept = spares(&machine);
            machine.clock.advance(Duration::from_mins(11));
            partition.retain(nothing).await;
            pass(&machine.clock, Duration::from_secs(1)).await;
            assert_eq!((kept > 0, spares(&machine)), (true, 0));
        });
    }

    #[test]
    fn a_partition_that_is_closed_says_so() {
        block_on(async {
            let machine = Machine::new(1);
            let partition = machine.start();
            append(&machine, &partition, 2).await;
            let deleted = partition.delete_records(DeleteTo::Offset(1));
            let closing = async { partition.begin_close(false).closed().await };
            let (deleted, ()) = tokio::join!(deleted, closing);
            assert_eq!(deleted, Ok(1), "it was queued before");
            let closed = Err(DeleteError::Unavailable(Unavailable::Closed));
            assert_eq!(partition.delete_records(DeleteTo::End).await, closed);
            assert_eq!(offsets(&machine.start()).await, (1, 2));
        });
    }
}
