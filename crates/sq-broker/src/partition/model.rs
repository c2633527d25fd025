//! Idempotent producers with pipelines and retries, on a machine that fails at random: in the end
//! every record is in the log once, in order, at the offset that was acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, OpKind, SyncFailure};

use super::PendingAppend;
use super::tests::{Machine, TestPartition, new_batch};
use crate::batch::BatchHeader;
use crate::testing::{Stop, block_on, in_time};

const PRODUCERS: i64 = 3;
const BATCHES: i32 = 12;
const PIPELINE: usize = 4;

/// A client's idempotent producer: batches in order, several in flight, and after a failure all of
/// them again from the first that is not acknowledged.
struct Producer {
    id: i64,
    /// The first sequence and the record count of what is not acknowledged yet.
    to_do: VecDeque<(i32, i32)>,
    in_flight: VecDeque<PendingAppend<InMemoryFileSystem>>,
    /// First sequence to offset.
    acknowledged: BTreeMap<i32, u64>,
}

impl Producer {
    fn new(id: i64, rng: &mut StdRng) -> Self {
        let mut next = 0;
        let mut to_do = VecDeque::new();
        for _ in 0..BATCHES {
            let records = rng.random_range(1..4);
            to_do.push_back((next, records));
            next += records;
        }
        Self {
            id,
            to_do,
            in_flight: VecDeque::new(),
            acknowledged: BTreeMap::new(),
        }
    }

    async fn send(&mut self, partition: &TestPartition, rng: &mut StdRng) {
        while self.in_flight.len() < PIPELINE {
            let Some((first, records)) = self.to_do.get(self.in_flight.len()) else {
                return;
            };
            let batch = new_batch(Some((self.id, 0, *first)), *records);
            let Ok(pending) = partition.enqueue(batch).await else {
                return;
            };
            self.in_flight.push_back(pending);
            // Some go out with the one before, some while it is written, some after it.
            for _ in 0..rng.random_range(0..40) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes the answers. After the first failure the others are for batches that are sent again.
    async fn receive(&mut self, machine: &Machine) {
        let mut failed = false;
        for pending in std::mem::take(&mut self.in_flight) {
            match in_time(&machine.clock, pending.outcome()).await {
                Ok(appended) if !failed => {
                    let (first, _) = self.to_do.pop_front().unwrap();
                    self.acknowledged.insert(first, appended.base_offset);
                }
                _ => failed = true,
            }
        }
    }
}

fn inject_something(machine: &Machine, rng: &mut StdRng) {
    match rng.random_range(0..6) {
        0 => {
            let model = SyncFailure::ALL[rng.random_range(0..SyncFailure::ALL.len())];
            let fault = Fault::new(Effect::FailSync(model)).on(&[OpKind::SyncData]);
            machine.fs.inject(fault.skip(rng.random_range(0..4)));
        }
        1 => {
            let bytes = rng.random_range(0..200);
            let short = Effect::ShortWrite {
                bytes,
                errno: Errno::NoSpace,
            };
            machine.fs.inject(
                Fault::new(short)
                    .on(&[OpKind::WriteAt])
                    .skip(rng.random_range(0..4)),
            );
        }
        2 => {
            let kinds = [
                OpKind::CreateNew,
                OpKind::Rename,
                OpKind::SyncDir,
                OpKind::SetLen,
            ];
            let kind = kinds[rng.random_range(0..kinds.len())];
            machine
                .fs
                .inject(Fault::new(Effect::Fail(Errno::Io)).on(&[kind]));
        }
        3 => machine.fs.crash_after(rng.random_range(0..60)),
        _ => {}
    }
}

/// Everything in the log: producer, first sequence and record count, by offset.
async fn contents(partition: &TestPartition) -> Vec<(u64, (i64, i32, i32))> {
    let reader = partition.reader().await.unwrap();
    let mut next = reader.start_offset();
    let mut all = Vec::new();
    while next < reader.end_offset() {
        for frame in reader.read(next, 1 << 16).await.unwrap() {
            let header = BatchHeader::parse(&frame.payload.to_bytes()).unwrap();
            assert_eq!(frame.base_offset, next);
            assert_eq!(header.base_offset, i64::try_from(next).unwrap());
            let batch = (
                header.producer_id,
                header.base_sequence,
                header.record_count,
            );
            all.push((next, batch));
            next = frame.end_offset();
        }
    }
    all
}

async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let segment_bytes = [600, 2_000, 1 << 20][rng.random_range(0..3)];
    let machine = Machine {
        segment_bytes,
        ..Machine::new(seed)
    };
    let mut partition = machine.start();
    let mut producers: Vec<_> = (0..PRODUCERS)
        .map(|id| Producer::new(id, &mut rng))
        .collect();
    for round in 0.. {
        assert!(round < 400, "seed {seed}: no end of it");
        if producers.iter().all(|p| p.to_do.is_empty()) {
            break;
        }
        // For a while everything goes wrong, and then it must come right.
        if round < 40 {
            inject_something(&machine, &mut rng);
        } else if round == 40 {
            machine.fs.clear_faults();
        }
        for producer in &mut producers {
            producer.send(&partition, &mut rng).await;
        }
        for producer in &mut producers {
            producer.receive(&machine).await;
        }
        machine.clock.advance(Duration::from_mins(5));
        let is_failed = partition.is_unavailable();
        if machine.fs.is_crashed() || is_failed || rng.random_range(0..12) == 0 {
            Stop::ALL[rng.random_range(0..Stop::ALL.len())].strike(&machine.fs);
            partition = machine.start();
        }
    }
    machine.fs.clear_faults();
    partition.begin_close(false).closed().await;
    machine.fs.process_crash();
    let partition = machine.start();
    let log = contents(&partition).await;
    for producer in &producers {
        let mine = log.iter().filter(|(_, (id, _, _))| *id == producer.id);
        let mut next = 0;
        let mut batches = 0;
        for (offset, (_, first, records)) in mine {
            assert_eq!(*first, next, "seed {seed}: a gap, a copy, or out of order");
            assert_eq!(
                producer.acknowledged.get(first),
                Some(offset),
                "seed {seed}"
            );
            next += records;
            batches += 1;
        }
        assert_eq!(batches, BATCHES, "seed {seed}");
    }
}

#[test]
fn every_record_is_stored_once_whatever_fails() {
    block_on(async {
        for seed in 0..300 {
            run(seed).await;
        }
    });
}
