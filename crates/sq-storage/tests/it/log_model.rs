//! Random callers, faults and crashes on a log for many callers, under both policies: a model beside
//! that of the writer, for what lies between a writer and those who append. A failure prints its seed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sq_sim::{Clock, Effect, Errno, Fault, Instant, OpKind, SyncFailure};
use sq_storage::log::{Append, Executor, Log, LogConfig, Pending};
use sq_storage::{MaintenanceMode, Rotation, SyncPolicy};

use crate::disk::Disk;
use crate::support::{Machine, Stop, block_on, is_crash, values};

const INTERVAL: Duration = Duration::from_millis(40);
/// How much time passes at once, at most. What is due by then is done at its end, and may be cut short.
const TICK: Duration = Duration::from_millis(25);
const SEEDS: u64 = 160;
const STEPS: usize = 120;

/// What was submitted since the log was opened.
struct Submitted {
    id: u64,
    /// Where it was stored and when that was said, if it was.
    acknowledged: Option<(u64, Instant)>,
}

struct Life {
    rng: StdRng,
    machine: Machine,
    log: Option<Log<Disk>>,
    /// What the log held when it was opened, which nothing takes away.
    held: Vec<u64>,
    submitted: Vec<Submitted>,
    pending: VecDeque<(usize, Pending<Disk>)>,
    next_id: u64,
    /// A fault may have held up a sync.
    is_disturbed: bool,
    lost: usize,
}

fn value(id: u64) -> Vec<u8> {
    let mut value = format!("{id} ").into_bytes();
    value.resize(value.len() + [10, 90, 700, 3_900][id as usize % 4], b'.');
    value
}

fn id_of(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    let id = text.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(value, self::value(id));
    id
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let bytes = *[900, 5_000, 40_000].choose(&mut rng).unwrap();
        let mut machine = Machine::new(seed).with_segment_bytes(bytes);
        if seed % 2 == 1 {
            machine.config.sync = SyncPolicy::Every(INTERVAL);
        }
        if rng.random_range(0..3) == 0 {
            machine.config.rotation = Rotation::External;
        }
        if rng.random_range(0..2) == 0 {
            machine.config.maintenance = MaintenanceMode::Handed;
        }
        Self {
            rng,
            machine,
            log: None,
            held: Vec::new(),
            submitted: Vec::new(),
            pending: VecDeque::new(),
            next_id: 0,
            is_disturbed: false,
            lost: 0,
        }
    }

    fn loses(&self) -> bool {
        self.machine.config.sync != SyncPolicy::Always
    }

    async fn live(&mut self) {
        self.open(None).await;
        for _ in 0..STEPS {
            self.step().await;
            if is_crash(&self.machine.fs) || self.rng.random_range(0..40) == 0 {
                self.crash().await;
            }
        }
        self.crash().await;
    }

    async fn step(&mut self) {
        let log = self.log.clone().unwrap();
        match self.rng.random_range(0..100) {
            0..45 => {
                for _ in 0..self.rng.random_range(1..6) {
                    let record = Append::record(None, Some(&value(self.next_id)), &[], 0).unwrap();
                    let pending = log.submit(record).await.unwrap();
                    self.pending.push_back((self.submitted.len(), pending));
                    self.submitted.push(Submitted {
                        id: self.next_id,
                        acknowledged: None,
                    });
                    self.next_id += 1;
                }
            }
            45..62 => {
                let answers = self.rng.random_range(1..8);
                self.answer(answers).await;
            }
            62..66 => {
                // Nobody wants to know any more.
                if !self.pending.is_empty() {
                    let which = self.rng.random_range(0..self.pending.len());
                    drop(self.pending.remove(which));
                }
            }
            66..76 => self.pass_time().await,
            76..82 => self.inject(),
            82..90 => self.on_the_writer(&log).await,
            90..94 => {
                let _ = log.sync().await;
            }
            94..96 => self.close(&log).await,
            _ => self.machine.fs.crash_after(self.rng.random_range(0..25)),
        }
    }

    /// Waits for the oldest answers.
    async fn answer(&mut self, count: usize) {
        for _ in 0..count {
            let Some((which, pending)) = self.pending.pop_front() else {
                return;
            };
            if let Ok(offset) = pending.await {
                self.submitted[which].acknowledged = Some((offset, self.machine.clock.now()));
            }
        }
    }

    async fn pass_time(&mut self) {
        let pause = Duration::from_millis(self.rng.random_range(1..=25));
        self.machine.clock.advance(pause);
        // Whoever was waiting for that does what there is to do.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    fn inject(&mut self) {
        self.is_disturbed = true;
        let errno = *[Errno::Io, Errno::NoSpace].choose(&mut self.rng).unwrap();
        let bytes = self.rng.random_range(0..400);
        let failure = *SyncFailure::ALL.choose(&mut self.rng).unwrap();
        let fault = match self.rng.random_range(0..4) {
            0 => Fault::new(Effect::ShortWrite { bytes, errno }),
            1 => Fault::new(Effect::Fail(errno)).on(&[OpKind::CreateNew, OpKind::SyncDir]),
            _ => Fault::new(Effect::FailSync(failure)),
        };
        self.machine
            .fs
            .inject(fault.skip(self.rng.random_range(0..4)));
    }

    /// What is done to a writer between the appends.
    async fn on_the_writer(&mut self, log: &Log<Disk>) {
        let what = self.rng.random_range(0..4);
        let done = log.with_writer(move |writer, _| {
            Box::pin(async move {
                let Some(writer) = writer else { return };
                writer.allow_writes();
                match what {
                    0 => drop(writer.close_active_segment().await),
                    1 => drop(writer.mark().await),
                    _ => {
                        if let Ok(prepared) = writer.preparation(None).run().await {
                            let refused = writer.arm(prepared).err();
                            drop(refused);
                        }
                        let _ = writer.sync().await;
                        writer.switch();
                    }
                }
            })
        });
        let _ = done.await;
    }

    async fn close(&mut self, log: &Log<Disk>) {
        let is_closed = log.close().await.is_ok();
        self.answer(usize::MAX).await;
        let stop = is_closed.then_some(Stop::Process);
        self.reopen(stop.unwrap_or(Stop::Power(sq_sim::Keep::Mixed)))
            .await;
    }

    async fn crash(&mut self) {
        let stop = *Stop::ALL.choose(&mut self.rng).unwrap();
        self.reopen(stop).await;
    }

    async fn reopen(&mut self, stop: Stop) {
        (self.log, self.pending) = (None, VecDeque::new());
        stop.strike(&self.machine.fs);
        self.machine.fs.clear_faults();
        self.machine.fs.crash_after(u64::MAX);
        self.open(Some(stop)).await;
    }

    async fn open(&mut self, stop: Option<Stop>) {
        let writer = self.machine.open().await;
        assert_eq!(writer.recovery_report().damage, []);
        let found = values(&writer.reader()).await;
        self.check(&found.iter().map(|v| id_of(v)).collect::<Vec<_>>(), stop);
        let config = LogConfig {
            executor: Executor::Runtime(tokio::runtime::Handle::current()),
            ..LogConfig::default()
        };
        let log = Log::new(writer, config);
        let synced = log.clone();
        tokio::spawn(async move { synced.keep_synced().await });
        self.log = Some(log);
    }

    /// Compares what a log that was just opened holds, and goes on from there.
    fn check(&mut self, found: &[u64], stop: Option<Stop>) {
        assert!(found.len() >= self.held.len(), "what was there is lost");
        let (held, new) = found.split_at(self.held.len());
        assert_eq!(held, self.held);
        assert!(new.is_sorted_by(|a, b| a < b), "the order of submission");
        let ids: Vec<_> = self.submitted.iter().map(|s| s.id).collect();
        assert!(new.iter().all(|id| ids.contains(id)), "from nowhere");
        let now = self.machine.clock.now();
        // What a failed sync left in memory only goes with the process.
        let may_be = self.is_disturbed || stop != Some(Stop::Process);
        for Submitted { id, acknowledged } in &self.submitted {
            let Some((offset, at)) = acknowledged else {
                continue;
            };
            if let Some(found) = found.get(usize::try_from(*offset).unwrap()) {
                assert_eq!(found, id, "at offset {offset}");
                continue;
            }
            let is_young = self.is_disturbed || *at + INTERVAL + TICK >= now;
            let age = now.saturating_duration_since(*at);
            assert!(
                self.loses() && may_be && is_young,
                "{id} at {offset} is lost, {age:?} old, {stop:?}"
            );
            self.lost += 1;
        }
        self.held = found.to_vec();
        self.submitted.clear();
        self.is_disturbed = false;
    }
}

/// Lives through one seed. How many acknowledged records were lost, as they may be.
fn live(seed: u64) -> usize {
    let mut life = Life::new(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| block_on(life.live())));
    if let Err(cause) = lived {
        println!("seed {seed} failed");
        std::panic::resume_unwind(cause);
    }
    life.lost
}

#[test]
fn many_callers_lose_nothing_that_was_acknowledged_and_keep_their_order() {
    let lost: usize = (0..SEEDS).step_by(2).map(live).sum();
    assert_eq!(lost, 0);
    println!("{} steps", SEEDS as usize / 2 * STEPS);
}

#[test]
fn many_callers_lose_no_more_than_an_interval_where_that_is_the_policy() {
    let lost: usize = (1..SEEDS).step_by(2).map(live).sum();
    assert!(lost > 0, "nothing was ever at risk");
    println!("{lost} of what was acknowledged and not synced was lost");
}
