use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_roll::Node;
use sq_sim::{
    Clock, Effect, Errno, Fault, FileSystem, InMemoryFileSystem, Keep, OpKind, SyncFailure,
    VirtualClock,
};
use sq_storage::log::Executor;
use sq_storage::wal::manifest::ManifestContent;
use sq_storage::{MaintenanceMode, SegmentIds, SyncPolicy, TopicName, WalConfig};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::{
    AppendError, Appends, NewBatch, Partition, PartitionEnv, PartitionId, PartitionLimits,
    PendingAppend, Unavailable,
};
use crate::batch::{BatchHeader, validate_produced};
use crate::config::RollConfig;
use crate::producers::{ProducerLimits, ProducerStamp, ProducerTable};
use crate::testing::{DIR, Stop, batch, block_on, in_time, pass};

const PARTITION: &str = "/data/orders/0";

/// A machine with a disk and a clock.
pub(super) struct Machine {
    pub(super) fs: InMemoryFileSystem,
    pub(super) clock: VirtualClock,
    pub(super) limits: PartitionLimits,
    pub(super) segment_bytes: u64,
    pub(super) sync: SyncPolicy,
}

pub(super) type TestPartition = Partition<InMemoryFileSystem>;

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let fs = InMemoryFileSystem::with_clock(seed, Arc::new(clock.clone()));
        Self {
            fs,
            clock,
            limits: PartitionLimits::default(),
            segment_bytes: 1 << 20,
            sync: SyncPolicy::Always,
        }
    }

    /// Starts the partition in the process that runs now.
    pub(super) fn start(&self) -> TestPartition {
        let fs = Arc::new(self.fs.for_this_process());
        let env = PartitionEnv {
            fs: Arc::clone(&fs),
            appends: Appends {
                fs,
                executor: Executor::Runtime(Handle::current()),
            },
            runtime: Handle::current(),
            clock: Arc::new(self.clock.clone()),
            limits: self.limits,
            wal: WalConfig {
                max_segment_bytes: self.segment_bytes,
                sync: self.sync,
                segment_ids: SegmentIds::seeded(self.fs.operations()),
                maintenance: MaintenanceMode::Handed,
                zero_ahead_bytes: 16 << 10,
                ..WalConfig::new(DIR)
            },
            metadata: None,
            roll: RollConfig::default(),
            node: Node::new(Arc::new(self.clock.clone()), 1),
            opening: Semaphore::new(1),
        };
        let id = PartitionId {
            topic: TopicName::new("orders").unwrap(),
            partition: 0,
        };
        let config = env.wal.clone();
        Partition::start(Arc::new(env), id, config)
    }

    /// From now on there is no file to go to when one fails.
    fn refuse_successors(&self) {
        let fault = Fault::new(Effect::Fail(Errno::NoSpace)).on(&[OpKind::CreateNew]);
        self.fs.inject(fault.always());
    }

    /// All is well again, and soon there is a file to go to.
    async fn recover(&self) {
        self.fs.clear_faults();
        pass(&self.clock, Duration::from_secs(10)).await;
    }

    fn snapshots(&self) -> Vec<PathBuf> {
        let is_snapshot = |p: &PathBuf| p.extension().is_some_and(|e| e == "producers");
        self.fs.files().into_iter().filter(is_snapshot).collect()
    }

    /// The sidecars of its segments, oldest first.
    fn sidecars(&self) -> Vec<PathBuf> {
        let is_sidecar = |p: &PathBuf| p.extension().is_some_and(|e| e == "sidecar");
        self.fs.files().into_iter().filter(is_sidecar).collect()
    }

    fn log_syncs(&self) -> usize {
        let of_log = |p: &Path| p.extension().is_some_and(|e| e == "wal");
        let trace = self.fs.trace();
        trace
            .iter()
            .filter(|op| op.kind == OpKind::SyncData && of_log(&op.path))
            .count()
    }
}

pub(super) fn new_batch(producer: Option<(i64, i16, i32)>, records: i32) -> NewBatch {
    let bytes = batch(producer, records, 20);
    let header = validate_produced(&bytes, 1 << 20, 9).unwrap();
    NewBatch::new(bytes, &header)
}

async fn queue(
    partition: &TestPartition,
    first: i32,
    records: i32,
) -> PendingAppend<InMemoryFileSystem> {
    partition
        .enqueue(new_batch(Some((9, 0, first)), records))
        .await
        .unwrap()
}

async fn append(partition: &TestPartition, first: i32, records: i32) -> Result<u64, AppendError> {
    let pending = partition
        .enqueue(new_batch(Some((9, 0, first)), records))
        .await?;
    pending.outcome().await.map(|done| done.base_offset)
}

/// The same while time goes by.
async fn append_in_time(
    machine: &Machine,
    partition: &TestPartition,
    first: i32,
    records: i32,
) -> Result<u64, AppendError> {
    in_time(&machine.clock, append(partition, first, records)).await
}

async fn end(partition: &TestPartition) -> u64 {
    partition.reader().await.unwrap().end_offset()
}

async fn close(partition: &TestPartition) {
    partition.begin_close(false).closed().await;
}

#[test]
fn what_waits_is_written_with_one_sync_and_read_back_as_it_came() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        append(&partition, 0, 1).await.unwrap();
        let syncs = machine.log_syncs();
        let mut pending = Vec::new();
        for n in 1..40 {
            pending.push(queue(&partition, n, 1).await);
        }
        for (n, pending) in (1..).zip(pending) {
            assert_eq!(pending.outcome().await.unwrap().base_offset, n);
        }
        assert_eq!(machine.log_syncs() - syncs, 1);

        let frames = partition
            .reader()
            .await
            .unwrap()
            .read(0, 1 << 20)
            .await
            .unwrap();
        assert_eq!(frames.len(), 40);
        for (n, frame) in (0_i32..).zip(frames) {
            let mut sent = batch(Some((9, 0, n)), 1, 20).to_vec();
            sent[..8].copy_from_slice(&i64::from(n).to_be_bytes());
            sent[12..16].copy_from_slice(&0_i32.to_be_bytes()); // the leader epoch
            assert_eq!(frame.payload, sent);
            assert_eq!(frame.record_count, 1);
            assert_eq!(frame.max_timestamp_ms, 1_000);
        }
    });
}

#[test]
fn a_copy_that_comes_while_its_original_is_under_way_waits_for_it() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        let original = queue(&partition, 0, 5).await;
        let copy = queue(&partition, 0, 5).await;
        let next = queue(&partition, 5, 1).await;
        assert_eq!(original.outcome().await.unwrap().base_offset, 0);
        assert_eq!(copy.outcome().await.unwrap().base_offset, 0);
        assert_eq!(next.outcome().await.unwrap().base_offset, 5);
        assert_eq!(
            append(&partition, 0, 5).await,
            Ok(0),
            "also once it is stored"
        );
        assert_eq!(end(&partition).await, 6);
        let gap = append(&partition, 8, 1).await;
        assert_eq!(
            gap,
            Err(AppendError::OutOfOrder {
                found: 8,
                expected: 6
            })
        );
    });
}

#[test]
fn if_an_append_fails_so_does_its_copy_and_the_retry_gets_the_offset() {
    block_on(async {
        for model in SyncFailure::ALL {
            let machine = Machine::new(1);
            let partition = machine.start();
            append(&partition, 0, 5).await.unwrap();
            let fault = Fault::new(Effect::FailSync(model)).on(&[OpKind::SyncData]);
            machine.fs.inject(fault.path_ends_with(".wal"));
            machine.refuse_successors();
            let original = queue(&partition, 5, 5).await;
            let copy = queue(&partition, 5, 5).await;
            let both = async { [original.outcome().await, copy.outcome().await] };
            for outcome in in_time(&machine.clock, both).await {
                assert!(matches!(outcome, Err(AppendError::Storage(_))), "{model:?}");
            }
            assert_eq!(end(&partition).await, 5);
            machine.recover().await;
            assert_eq!(append(&partition, 5, 5).await, Ok(5), "{model:?}");
            assert_eq!(append(&partition, 5, 5).await, Ok(5), "{model:?}");

            machine.fs.power_loss(Keep::None);
            let partition = machine.start();
            assert_eq!(append(&partition, 5, 5).await, Ok(5), "{model:?}");
            assert_eq!(end(&partition).await, 10);
        }
    });
}

#[test]
fn a_pipeline_does_not_skip_the_batch_that_failed() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        partition.reader().await.unwrap();
        let fault = Fault::new(Effect::Fail(Errno::NoSpace)).on(&[OpKind::WriteAt]);
        machine.fs.inject(fault.path_ends_with(".wal"));
        machine.refuse_successors();
        assert!(matches!(
            append_in_time(&machine, &partition, 0, 5).await,
            Err(AppendError::Storage(_))
        ));
        // The second of the pipeline was on its way all the while.
        let second = append(&partition, 5, 5).await;
        assert_eq!(
            second,
            Err(AppendError::OutOfOrder {
                found: 5,
                expected: 0
            })
        );
        machine.recover().await;
        assert_eq!(append(&partition, 0, 5).await, Ok(0));
        assert_eq!(append(&partition, 5, 5).await, Ok(5));
    });
}

#[test]
fn a_file_that_fails_is_no_error_where_there_is_another_to_go_to() {
    block_on(async {
        for model in SyncFailure::ALL {
            let machine = Machine::new(1);
            let partition = machine.start();
            append(&partition, 0, 5).await.unwrap();
            let fault = Fault::new(Effect::FailSync(model)).on(&[OpKind::SyncData]);
            machine.fs.inject(fault.path_ends_with(".wal"));
            assert_eq!(append(&partition, 5, 5).await, Ok(5), "{model:?}");
            assert_eq!(append(&partition, 10, 5).await, Ok(10), "{model:?}");
            machine.fs.power_loss(Keep::None);
            let partition = machine.start();
            assert_eq!(end(&partition).await, 15, "{model:?}");
        }
    });
}

#[test]
fn a_retry_is_known_across_a_roll_and_a_restart_of_any_kind() {
    // The acknowledgement of the last batch of a segment was lost, the log rolled, and the retry was
    // stored a second time: what was known of the producer had stayed behind with the old segment.
    block_on(async {
        for stop in [None].into_iter().chain(Stop::ALL.map(Some)) {
            let machine = Machine {
                segment_bytes: 600,
                ..Machine::new(1)
            };
            let partition = machine.start();
            for n in 0..20 {
                assert_eq!(
                    append(&partition, n * 5, 5).await,
                    Ok(u64::from(n.cast_unsigned()) * 5)
                );
            }
            assert!(partition.rolls().await.unwrap().len() > 3);
            match stop {
                None => close(&partition).await,
                Some(stop) => stop.strike(&machine.fs),
            }
            let partition = machine.start();
            for n in 15..20_u64 {
                let first = i32::try_from(n * 5).unwrap();
                assert_eq!(append(&partition, first, 5).await, Ok(n * 5), "{stop:?}");
            }
            assert_eq!(end(&partition).await, 100, "{stop:?}");
            assert_eq!(append(&partition, 100, 1).await, Ok(100), "{stop:?}");
        }
    });
}

#[test]
fn producers_come_back_with_the_log_whatever_became_of_their_sidecars() {
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let partition = machine.start();
        for n in 0..20 {
            append(&partition, n, 1).await.unwrap();
        }
        close(&partition).await;
        let sidecars = machine.sidecars();
        assert!(sidecars.len() > 3, "{sidecars:?}");
        let newest = sidecars.last().unwrap();
        for damage in 0..4 {
            match damage {
                0 => machine.fs.flip_bit(newest, 30, 1).unwrap(),
                1 => machine.fs.write_file(newest, "").unwrap(),
                2 => machine.fs.remove_file(newest).await.unwrap(),
                _ => {
                    for sidecar in machine.sidecars() {
                        machine.fs.remove_file(&sidecar).await.unwrap();
                    }
                }
            }
            let partition = machine.start();
            assert_eq!(append(&partition, 19, 1).await, Ok(19), "{damage}");
            assert_eq!(append(&partition, 15, 1).await, Ok(15), "{damage}");
            assert!(machine.sidecars().contains(newest), "written anew at once");
            close(&partition).await;
        }
    });
}

#[test]
fn opening_a_partition_reads_no_more_of_its_log_for_its_producers() {
    // Every start read the log a second time, from the last snapshot of its producers on.
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let partition = machine.start();
        for n in 0..20 {
            append(&partition, n, 1).await.unwrap();
        }
        close(&partition).await;
        let newest = partition_segments(&machine).pop().unwrap();
        machine.fs.take_trace();
        machine.start().reader().await.unwrap();
        let trace = machine.fs.take_trace();
        let of_log = |p: &Path| p.extension().is_some_and(|e| e == "wal");
        let reads = trace
            .iter()
            .filter(|op| op.kind == OpKind::ReadAt && of_log(&op.path));
        let files: Vec<_> = reads.map(|op| op.path.to_path_buf()).collect();
        assert!(files.iter().all(|file| *file == newest), "{files:?}");
    });
}

fn partition_segments(machine: &Machine) -> Vec<PathBuf> {
    let files = machine.fs.files().into_iter();
    let of_log =
        |p: &PathBuf| p.starts_with(PARTITION) && p.extension().is_some_and(|e| e == "wal");
    files.filter(of_log).collect()
}

/// The snapshot that an earlier version kept, of one producer that has sent so many batches of one
/// record.
fn earlier_snapshot(machine: &Machine, batches: u64) -> (PathBuf, Bytes) {
    let mut table = ProducerTable::new(ProducerLimits::default());
    for n in 0..batches {
        let stamp = ProducerStamp {
            producer_id: 9,
            epoch: 0,
            first_sequence: i32::try_from(n).unwrap(),
            record_count: 1,
        };
        table.record(&stamp, n, machine.clock.wall_ms());
    }
    let path = Path::new(PARTITION).join(format!("{batches:020}.producers"));
    (path, table.encode_snapshot(batches))
}

#[test]
fn what_an_earlier_version_knew_of_its_producers_is_taken_over() {
    // What it knew was in files of its own, of which the newest may say what no batch that is left in
    // the log does.
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let partition = machine.start();
        for n in 0..20 {
            append(&partition, n, 1).await.unwrap();
        }
        close(&partition).await;
        // Its log had no sidecars, and had let go of its older segments.
        for sidecar in machine.sidecars() {
            machine.fs.remove_file(&sidecar).await.unwrap();
        }
        let (path, content) = earlier_snapshot(&machine, 20);
        machine.fs.write_file(&path, content.clone()).unwrap();
        let torn = path.with_extension("producers@tmp");
        machine.fs.write_file(&torn, "").unwrap();
        for sealed in partition_segments(&machine).iter().rev().skip(1) {
            machine.fs.remove_file(sealed).await.unwrap();
        }
        let manifest = Path::new(PARTITION).join("manifest");
        machine.fs.remove_file(&manifest).await.unwrap();

        for _ in 0..2 {
            let partition = machine.start();
            assert_eq!(append(&partition, 16, 1).await, Ok(16));
            assert_eq!(append(&partition, 19, 1).await, Ok(19));
            assert!(machine.snapshots().contains(&path), "nothing else says it");
            close(&partition).await;
        }
        let partition = machine.start();
        for n in 20..26 {
            append(&partition, n, 1).await.unwrap();
        }
        close(&partition).await;
        let partition = machine.start();
        assert_eq!(append(&partition, 25, 1).await, Ok(25));
        assert_eq!(machine.snapshots(), Vec::<PathBuf>::new());
        close(&partition).await;
    });
}

#[test]
fn a_snapshot_beyond_the_log_does_not_come_true_later() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        append(&partition, 0, 1).await.unwrap();
        close(&partition).await;
        let (path, content) = earlier_snapshot(&machine, 500);
        machine.fs.write_file(&path, content).unwrap();
        let partition = machine.start();
        assert_eq!(append(&partition, 0, 1).await, Ok(0));
        assert_eq!(append(&partition, 499, 1).await.ok(), None);
        close(&partition).await;
    });
}

#[test]
fn no_append_waits_for_a_snapshot() {
    // A broker synced its producer snapshots in the produce path: every roll was a spike, and worse
    // with more partitions. Here such a sync never ends, and ten rolls go by.
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let for_ever = Duration::from_hours(1_000_000);
        let fault = Fault::delay(for_ever).on(&[OpKind::SyncData, OpKind::SyncAll]);
        machine
            .fs
            .inject(fault.path(sq_sim::PathPattern::Contains(".sidecar".to_owned())));
        let partition = machine.start();
        for n in 0..60 {
            append(&partition, n, 1).await.unwrap();
        }
        assert!(partition.reader().await.unwrap().segments().len() > 10);
        assert_eq!(machine.clock.elapsed(), Duration::ZERO);
        assert_eq!(machine.sidecars(), Vec::<PathBuf>::new());
    });
}

#[test]
fn no_append_waits_for_what_a_roll_leaves_to_be_done() {
    // The file that was full was cut, and the manifest written and synced, before the record went to
    // the next one. Here neither ever ends, and ten rolls go by.
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let for_ever = Duration::from_hours(1_000_000);
        machine
            .fs
            .inject(Fault::delay(for_ever).on(&[OpKind::SetLen]));
        let partition = machine.start();
        for n in 0..60 {
            append(&partition, n, 1).await.unwrap();
        }
        assert!(partition.reader().await.unwrap().segments().len() > 10);
        assert_eq!(machine.clock.elapsed(), Duration::ZERO);
    });
}

#[test]
fn what_a_roll_leaves_is_done_soon_and_again_if_it_fails() {
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let manifest = sq_sim::PathPattern::Contains("manifest".to_owned());
        let failing = Fault::new(Effect::Fail(Errno::NoSpace)).path(manifest);
        let partition = machine.start();
        partition.reader().await.unwrap();
        machine.fs.inject(failing);
        for n in 0..10 {
            append(&partition, n, 1).await.unwrap();
        }
        let listed = || {
            let manifest = machine
                .fs
                .read_durable(Path::new(PARTITION).join("manifest"));
            ManifestContent::decode(&manifest.unwrap_or_default()).entries
        };
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        assert!(listed().is_empty(), "it failed, and there is a pause");
        machine.clock.advance(Duration::from_secs(1));
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let segments = partition.reader().await.unwrap().segments();
        assert!(segments.len() > 2);
        assert_eq!(listed().len(), segments.len());
    });
}

#[test]
fn an_idle_log_says_how_far_it_is_durable() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        append(&partition, 0, 1).await.unwrap();
        let writes = || {
            let trace = machine.fs.trace();
            let of_log = |p: &Path| p.extension().is_some_and(|e| e == "wal");
            trace
                .iter()
                .filter(|op| op.kind == OpKind::WriteAt && of_log(&op.path))
                .count()
        };
        let before = writes();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(writes(), before);
        machine.clock.advance(machine.limits.mark_after);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(writes(), before + 1);
        machine.clock.advance(machine.limits.mark_after * 10);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(writes(), before + 1, "once");
    });
}

#[test]
fn a_full_disk_refuses_appends_and_takes_them_again_once_there_is_room() {
    block_on(async {
        let machine = Machine {
            segment_bytes: 2_000,
            ..Machine::new(1)
        };
        let partition = machine.start();
        let mut stored = 0;
        while stored < 10 {
            assert_eq!(
                append(&partition, stored, 1).await,
                Ok(stored.cast_unsigned().into())
            );
            stored += 1;
        }
        machine.fs.set_free_space(Some(0));
        let mut refused = 0;
        while refused < 20 {
            match append_in_time(&machine, &partition, stored, 1).await {
                // What the segment has allocated already is still there to be filled.
                Ok(offset) => {
                    assert_eq!(offset, u64::from(stored.cast_unsigned()));
                    stored += 1;
                }
                Err(error) => {
                    let is_told =
                        matches!(error, AppendError::Storage(_) | AppendError::NoSegment(_));
                    assert!(is_told, "{error}");
                    refused += 1;
                }
            }
            assert!(stored < 1_000);
        }
        let frames = partition
            .reader()
            .await
            .unwrap()
            .read(0, 1 << 20)
            .await
            .unwrap();
        assert_eq!(frames.len(), usize::try_from(stored).unwrap());
        machine.fs.set_free_space(None);
        pass(&machine.clock, Duration::from_mins(5)).await;
        assert_eq!(
            append(&partition, stored, 1).await,
            Ok(stored.cast_unsigned().into())
        );
    });
}

#[test]
fn a_partition_that_does_not_open_says_so_to_everybody() {
    block_on(async {
        let machine = Machine {
            segment_bytes: 600,
            ..Machine::new(1)
        };
        let partition = machine.start();
        for n in 0..20 {
            append(&partition, n, 1).await.unwrap();
        }
        let segments = partition.reader().await.unwrap().segments();
        close(&partition).await;
        machine.fs.remove_file(&segments[1].path).await.unwrap();

        let partition = machine.start();
        let error = partition.reader().await.unwrap_err();
        assert!(matches!(error, Unavailable::Failed(_)), "{error}");
        for _ in 0..3 {
            assert!(matches!(
                append(&partition, 20, 1).await,
                Err(AppendError::Unavailable(_))
            ));
        }
        assert!(partition.is_unavailable());
        close(&partition).await;
        assert_eq!(append(&partition, 20, 1).await, Err(AppendError::Closed));
    });
}

#[test]
fn a_partition_that_did_not_open_for_want_of_files_opens_once_there_are_some() {
    // A broker that started with few open files allowed, while clients connected, could not open one
    // of its partitions, and refused every request for it until it was started again.
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        append(&partition, 0, 1).await.unwrap();
        close(&partition).await;

        machine.fs.set_max_open_files(Some(0));
        let partition = machine.start();
        let error = partition.reader().await.unwrap_err();
        assert!(matches!(error, Unavailable::Failed(_)), "{error}");
        machine.fs.set_max_open_files(None);
        assert!(append(&partition, 1, 1).await.is_err(), "there is a pause");
        machine.clock.advance(Duration::from_secs(1));
        while partition.is_unavailable() {
            tokio::task::yield_now().await;
        }
        assert_eq!(append(&partition, 1, 1).await, Ok(1));
        assert_eq!(end(&partition).await, 2);
        close(&partition).await;
        assert_eq!(append(&partition, 2, 1).await, Err(AppendError::Closed));
    });
}

#[test]
fn what_was_queued_before_a_close_is_stored_and_nothing_after() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        let before = queue(&partition, 0, 1).await;
        let closing = partition.begin_close(false);
        let after = partition.enqueue(new_batch(Some((9, 0, 1)), 1)).await;
        closing.closed().await;
        assert_eq!(before.outcome().await.unwrap().base_offset, 0);
        if let Ok(after) = after {
            assert_eq!(after.outcome().await, Err(AppendError::Closed));
        }
        assert_eq!(partition.reader().await.unwrap_err(), Unavailable::Closed);
        let partition = machine.start();
        assert_eq!(end(&partition).await, 1);
    });
}

#[test]
fn a_close_that_fails_leaves_a_log_that_recovers() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        for n in 0..5 {
            append(&partition, n, 1).await.unwrap();
        }
        machine
            .fs
            .inject(Fault::new(Effect::FailSync(SyncFailure::Lost)).always());
        machine.fs.take_trace();
        close(&partition).await;
        assert!(
            !machine
                .fs
                .trace()
                .iter()
                .any(|op| op.kind == OpKind::RemoveFile)
        );
        machine.fs.clear_faults();
        machine.fs.power_loss(Keep::None);
        let partition = machine.start();
        assert_eq!(end(&partition).await, 5);
        assert_eq!(append(&partition, 4, 1).await, Ok(4));
    });
}

#[test]
fn the_queue_holds_no_more_bytes_than_it_may() {
    block_on(async {
        let size = new_batch(None, 1).bytes.len();
        let two = u32::try_from(size * 2).unwrap();
        let limits = PartitionLimits {
            queue_bytes: two,
            ..PartitionLimits::default()
        };
        let machine = Machine {
            limits,
            ..Machine::new(1)
        };
        let partition = machine.start();
        let first = partition.enqueue(new_batch(None, 1)).await.unwrap();
        let _second = partition.enqueue(new_batch(None, 1)).await.unwrap();
        let third = partition.enqueue(new_batch(None, 1));
        assert!(
            sq_sim::poll_n_then_drop(third, 1).await.is_none(),
            "it waits for room"
        );
        first.outcome().await.unwrap();
        partition
            .enqueue(new_batch(None, 1))
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        // And one that is larger than all of it gets through alone.
        let bytes = batch(None, 1, 10 * size);
        let header = BatchHeader::parse(&bytes).unwrap();
        let large = NewBatch::new(bytes, &header);
        partition
            .enqueue(large)
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    });
}

#[test]
fn what_comes_before_the_log_is_open_waits_for_it() {
    block_on(async {
        let machine = Machine::new(1);
        let partition = machine.start();
        let first = sq_sim::poll_n_then_drop(queue(&partition, 0, 1), 1).await;
        assert!(first.is_none(), "nothing has been opened");
        for n in 0..3 {
            assert_eq!(append(&partition, n, 1).await, Ok(n.cast_unsigned().into()));
        }
        close(&partition).await;
        // A close that comes before the opening is over is waited for by nobody.
        let partition = machine.start();
        let (queued, ()) = tokio::join!(append(&partition, 3, 1), close(&partition));
        assert_eq!(queued, Err(AppendError::Closed));
        let partition = machine.start();
        assert_eq!(end(&partition).await, 3);
    });
}

#[test]
fn where_syncs_come_at_intervals_they_come_in_time_and_until_one_succeeds() {
    block_on(async {
        let interval = Duration::from_millis(50);
        let machine = Machine {
            sync: SyncPolicy::Every(interval),
            limits: PartitionLimits {
                mark_after: Duration::from_hours(1),
                ..PartitionLimits::default()
            },
            ..Machine::new(1)
        };
        let settle = || async {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        };
        let partition = machine.start();
        partition.reader().await.unwrap();
        for n in 0..10 {
            assert_eq!(append(&partition, n, 1).await, Ok(n.cast_unsigned().into()));
        }
        settle().await;
        assert_eq!(machine.log_syncs(), 0, "acknowledged first");
        let fault = Fault::new(Effect::FailSync(SyncFailure::Lost)).on(&[OpKind::SyncData]);
        machine.fs.inject(fault.path_ends_with(".wal"));
        machine
            .fs
            .inject(Fault::new(Effect::Fail(Errno::NoSpace)).on(&[OpKind::CreateNew]));
        machine.clock.advance(interval);
        settle().await;
        assert_eq!(machine.log_syncs(), 1, "it failed, and found no other file");
        machine.clock.advance(interval);
        settle().await;
        // Nobody appends any more: it is tried again by itself.
        machine.fs.power_loss(Keep::None);
        let partition = machine.start();
        assert_eq!(end(&partition).await, 10);
        assert_eq!(append(&partition, 9, 1).await, Ok(9));
        let syncs = machine.log_syncs();
        machine.clock.advance(interval * 100);
        settle().await;
        assert_eq!(machine.log_syncs(), syncs, "and not again for nothing");
    });
}
