//! Random appends, failures of the source, disk faults, dropped calls, crashes and power losses. A failure
//! prints its seed; `SQ_SEEDS=5000 cargo test --release -p sq-roll --test it writer::random` runs more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sq_roll::{Mode, SourceError};
use sq_sim::{Effect, Errno, Fault, OpKind, Stop, SyncFailure, poll_n_then_drop};
use sq_storage::SyncPolicy;
use sq_storage::log::{Append, Head};

use super::world::{Open, World, values};
use crate::support::ms;

const KINDS: [OpKind; 12] = [
    OpKind::CreateNew,
    OpKind::Open,
    OpKind::Rename,
    OpKind::RemoveFile,
    OpKind::SyncDir,
    OpKind::WriteAt,
    OpKind::WriteAt,
    OpKind::SyncData,
    OpKind::SyncData,
    OpKind::SyncAll,
    OpKind::SetLen,
    OpKind::Allocate,
];

struct Life {
    rng: StdRng,
    world: World,
    /// What was acknowledged, by offset.
    acknowledged: Vec<Vec<u8>>,
    appended: u64,
    rolls: usize,
    last_error: String,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed);
        if seed.is_multiple_of(3) {
            world = world.with_slow_syncs();
        }
        if seed.is_multiple_of(4) {
            world.config.sync = SyncPolicy::Every(ms(20));
        }
        if seed.is_multiple_of(5) {
            world.settings.mode = Mode::Reactive;
        }
        let bytes = *[2_000, 6_000, 20_000].choose(&mut rng).unwrap();
        world.config.max_segment_bytes = bytes;
        world.settings.limits = sq_roll::Limits::bytes(bytes).with_age(Duration::from_mins(1));
        Self {
            rng,
            world,
            acknowledged: Vec::new(),
            appended: 0,
            rolls: 0,
            last_error: String::new(),
        }
    }

    async fn live(&mut self) {
        let mut open = self.world.open().await;
        for _ in 0..150 {
            self.step(&mut open).await;
            open.writer.writer_mut().allow_writes();
            if self.world.fs.is_crashed() || self.rng.random_range(0..50) == 0 {
                open = self.crash(open).await;
            } else if self.rng.random_range(0..60) == 0 {
                open = self.close(open).await;
            }
        }
        self.heal(open).await;
    }

    async fn step(&mut self, open: &mut Open) {
        match self.rng.random_range(0..100) {
            0..60 => self.append(open).await,
            60..65 => {
                let frames = self.frames();
                let polls = self.rng.random_range(0..6);
                let append = open.writer.append(&frames);
                if let Some(Ok(count)) = self.world.wait(poll_n_then_drop(append, polls)).await {
                    self.acknowledge(&frames, count);
                }
            }
            65..72 => self.inject(),
            72..80 => self.fail_the_source(),
            80..83 => {
                let rolls = open.rolls.clone();
                drop(tokio::spawn(async move { rolls.seal().await }));
                self.world.settle().await;
                let _ = self.world.wait(open.writer.settle()).await;
            }
            83..86 => drop(self.world.wait(open.writer.sync()).await),
            86..88 => {
                let end = self.rng.random_range(0..20);
                self.world.fs.crash_after(end);
            }
            _ => {
                let time = *[1, 30, 700, 6_000].choose(&mut self.rng).unwrap();
                self.world.pass(ms(time)).await;
            }
        }
        self.check(open);
    }

    fn frames(&mut self) -> Vec<Append> {
        let count = self.rng.random_range(1..6);
        let mut frame = || {
            self.appended += 1;
            let len = self.rng.random_range(0..900);
            let mut value = format!("{} ", self.appended).into_bytes();
            value.resize(value.len() + len, b'a' + (self.appended % 26) as u8);
            Append::record(None, Some(&value), &[], self.appended).unwrap()
        };
        (0..count).map(|_| frame()).collect()
    }

    fn acknowledge(&mut self, frames: &[Append], count: usize) {
        for frame in &frames[..count] {
            let body = frame.payload().concat();
            let record = sq_storage::Record::decode(body).unwrap();
            self.acknowledged.push(record.value.unwrap().to_vec());
        }
    }

    async fn append(&mut self, open: &mut Open) {
        let frames = self.frames();
        let mut rest = &frames[..];
        while !rest.is_empty() {
            match self.world.wait(open.writer.append(rest)).await {
                Ok(count) => {
                    assert!(count > 0);
                    self.acknowledge(rest, count);
                    rest = &rest[count..];
                }
                Err(error) => {
                    self.last_error = error.to_string();
                    return;
                }
            }
        }
    }

    /// Offsets are those of what was acknowledged, whatever failed in between.
    fn check(&self, open: &Open) {
        let next = open.writer.writer().next_offset();
        assert_eq!(next, self.acknowledged.len() as u64);
        let wrong = self.world.source.with(|source| source.wrong.clone());
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    fn inject(&mut self) {
        let kind = *KINDS.choose(&mut self.rng).unwrap();
        let effect = match self.rng.random_range(0..4) {
            0 => Effect::Fail(Errno::NoSpace),
            1 => Effect::FailAfterwards(Errno::Io),
            2 => Effect::FailSync(*SyncFailure::ALL.choose(&mut self.rng).unwrap()),
            _ => Effect::Fail(Errno::Io),
        };
        let skip = self.rng.random_range(0..4);
        self.world
            .fs
            .inject(Fault::new(effect).on(&[kind]).skip(skip));
    }

    fn fail_the_source(&mut self) {
        let draw = self.rng.random_range(0..5);
        let delay = ms(*[0, 3, 60, 900, 7_000].choose(&mut self.rng).unwrap());
        self.world.source.with(|source| match draw {
            0 => source.failures.push(SourceError::Retry("not now".into())),
            1 => source.failures.push(SourceError::Final("never".into())),
            2 => source.unanswered = 1,
            _ => source.delay = delay,
        });
    }

    async fn crash(&mut self, mut open: Open) -> Open {
        let stop = *Stop::ALL.choose(&mut self.rng).unwrap();
        let durable = open.writer.writer().durable_offset();
        self.rolls += open.rolls.records().len();
        open.writer.writer_mut().allow_writes();
        stop.strike(&self.world.fs);
        drop(open);
        // What a failed sync left in memory only goes with the process.
        let is_synced = self.world.config.sync == SyncPolicy::Always;
        let least = if is_synced {
            self.acknowledged.len()
        } else {
            usize::try_from(durable).unwrap()
        };
        self.reopen(least).await
    }

    async fn close(&mut self, open: Open) -> Open {
        self.world.fs.clear_faults();
        self.world.fs.crash_after(1 << 40);
        self.rolls += open.rolls.records().len();
        let durable = open.writer.writer().durable_offset();
        let (writer, tasks) = open.into_parts();
        let closed = self.world.wait(writer.close()).await;
        drop(tasks);
        let mut end = usize::try_from(durable).unwrap();
        if closed.is_ok() {
            end = self.acknowledged.len();
            assert_eq!(
                self.world.prepared_files(),
                Vec::<std::path::PathBuf>::new()
            );
        }
        self.reopen(end).await
    }

    /// Opens what a stop has left. So much is there at least; what is behind what was acknowledged can be
    /// what was never answered.
    async fn reopen(&mut self, least: usize) -> Open {
        self.world.settle().await;
        self.world.fs.clear_faults();
        self.world.fs.crash_after(1 << 40);
        self.world.source.with(|source| {
            source.open.clear();
            source.unanswered = 0;
        });
        let open = self.world.open().await;
        let stored = values(open.writer.writer()).await;
        assert!(stored.len() >= least, "{} of {least}", stored.len());
        let both = stored.len().min(self.acknowledged.len());
        assert_eq!(stored[..both], self.acknowledged[..both]);
        self.acknowledged = stored;
        open
    }

    /// Once nothing fails any more everything goes on, and nothing is left behind.
    async fn heal(&mut self, open: Open) {
        self.world.fs.clear_faults();
        self.world.fs.crash_after(1 << 40);
        self.world.source.with(|source| {
            source.failures.clear();
            source.unanswered = 0;
            source.delay = Duration::ZERO;
        });
        let mut open = if self.world.fs.is_crashed() {
            self.crash(open).await
        } else {
            open
        };
        open.writer.writer_mut().allow_writes();
        self.world.pass(Duration::from_secs(20)).await;
        let (before, mut left) = (self.acknowledged.len(), 200);
        while self.acknowledged.len() < before + 60 {
            self.append(&mut open).await;
            self.world.pass(ms(300)).await;
            left -= 1;
            assert!(left > 0, "{:?}, {:?}", open.rolls, self.last_error);
        }
        self.check(&open);
        let rolls = open.rolls.records();
        self.rolls += rolls.len();
        for pair in rolls.windows(2) {
            assert!(pair[0].end <= pair[1].end && pair[0].to == pair[1].from);
        }
        assert!(self.world.prepared_files().len() <= 1);
        let stored = values(open.writer.writer()).await;
        assert_eq!(stored, self.acknowledged);
        let open = self.close(open).await;
        assert_eq!(
            self.world.prepared_files(),
            Vec::<std::path::PathBuf>::new()
        );
        drop(open);
    }
}

fn run(seed: u64) -> usize {
    let live = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut life = Life::new(seed);
        runtime.block_on(life.live());
        life.rolls
    };
    catch_unwind(AssertUnwindSafe(live)).unwrap_or_else(|_| panic!("seed {seed} failed"))
}

#[test]
fn whatever_fails_nothing_acknowledged_is_lost_and_it_goes_on() {
    let seeds = std::env::var("SQ_SEEDS").map_or(150, |seeds| seeds.parse().unwrap());
    let rolls: usize = (0..seeds).map(run).sum();
    assert!(rolls as u64 > 5 * seeds, "{rolls} rolls");
}
