//! Random operations, faults and crashes against an oracle. A failure prints its seed.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sq_sim::{Effect, Errno, Fault, OpKind, SyncFailure, poll_n_then_drop};

use crate::support::{Machine, Oracle, Stop, Writer, block_on, is_crash, value};

const STEPS_PER_SEED: usize = 120;

/// One machine's life. Returns how many steps it took.
struct Life {
    rng: StdRng,
    machine: Machine,
    oracle: Oracle,
    appended: u64,
    steps: usize,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let bytes = *[600, 900, 5_000, 50_000].choose(&mut rng).unwrap();
        let machine = Machine::new(seed).with_segment_bytes(bytes);
        Self {
            rng,
            machine,
            oracle: Oracle::default(),
            appended: 0,
            steps: 0,
        }
    }

    async fn live(&mut self) {
        let mut log = self.open().await;
        while self.steps < STEPS_PER_SEED {
            self.steps += 1;
            match self.rng.random_range(0..100) {
                0..60 => self.append(&mut log).await,
                60..68 => self.drop_an_append(&mut log).await,
                68..73 => {
                    let _ = log.mark().await;
                }
                73..76 => {
                    let _ = log.close_active_segment().await;
                }
                76..84 => self.inject(),
                84..88 => self
                    .machine
                    .clock
                    .advance(std::time::Duration::from_mins(15)),
                88..90 => self.machine.fs.evict_clean_pages(),
                90..93 => {
                    self.machine.fs.clear_faults();
                    let _ = log.close().await;
                    log = self.reopen().await;
                }
                93..96 => {
                    let operations = self.rng.random_range(0..25);
                    self.machine.fs.crash_after(operations);
                }
                _ => log = self.restart(log).await,
            }
            if is_crash(&self.machine.fs) {
                log = self.restart(log).await;
            }
            log.allow_writes();
        }
        drop(self.restart(log).await);
    }

    fn value(&mut self) -> Vec<u8> {
        self.appended += 1;
        value(self.appended)
    }

    async fn append(&mut self, log: &mut Writer) {
        let value = self.value();
        let _ = self.oracle.append(log, value).await;
    }

    async fn drop_an_append(&mut self, log: &mut Writer) {
        let value = self.value();
        self.oracle.may_hold(value.clone());
        let polls = self.rng.random_range(0..12);
        let before = log.next_offset();
        let call = log.append(None, &value, &[], 0);
        if let Some(Ok(offset)) = poll_n_then_drop(call, polls).await {
            assert_eq!(offset, before);
            self.oracle.acknowledge(value);
        }
    }

    fn inject(&mut self) {
        let errno = *[Errno::Io, Errno::NoSpace, Errno::TooManyOpenFiles]
            .choose(&mut self.rng)
            .unwrap();
        let kinds = [
            OpKind::CreateNew,
            OpKind::WriteAt,
            OpKind::SyncData,
            OpKind::SyncAll,
            OpKind::SyncDir,
            OpKind::SetLen,
            OpKind::Rename,
            OpKind::RemoveFile,
        ];
        let effect = match self.rng.random_range(0..4) {
            0 => Effect::Fail(errno),
            1 => Effect::ShortWrite {
                bytes: self.rng.random_range(0..400),
                errno,
            },
            2 => Effect::Crash {
                bytes: self.rng.random_range(0..400),
            },
            _ => Effect::FailSync(*SyncFailure::ALL.choose(&mut self.rng).unwrap()),
        };
        let kind = *kinds.choose(&mut self.rng).unwrap();
        let fault = Fault::new(effect.clone());
        let fault = match effect {
            Effect::Fail(_) => fault.on(&[kind]),
            _ => fault,
        };
        self.machine
            .fs
            .inject(fault.skip(self.rng.random_range(0..5)));
    }

    /// Opens the log again without a crash, unless one was due.
    async fn reopen(&mut self) -> Writer {
        match self.machine.try_open().await {
            Ok(log) => {
                // A crash that is still due would hit the comparison.
                self.machine.fs.crash_after(u64::MAX);
                self.oracle.check(&log).await;
                log
            }
            Err(e) => {
                assert!(is_crash(&self.machine.fs), "{e}");
                self.recover().await
            }
        }
    }

    /// Stops the machine in some way, crashes the opening that follows now and then, and compares.
    async fn restart(&mut self, log: Writer) -> Writer {
        drop(log);
        self.recover().await
    }

    async fn recover(&mut self) -> Writer {
        loop {
            Stop::ALL
                .choose(&mut self.rng)
                .unwrap()
                .strike(&self.machine.fs);
            self.machine.fs.clear_faults();
            if self.rng.random_range(0..3) > 0 {
                return self.open().await;
            }
            self.machine.fs.crash_after(self.rng.random_range(0..30));
            if self.machine.try_open().await.is_ok() {
                self.machine.fs.process_crash();
                return self.open().await;
            }
        }
    }

    async fn open(&mut self) -> Writer {
        let log = self.machine.try_open().await;
        let log = log.unwrap_or_else(|e| panic!("a log that only crashed can't be opened: {e}"));
        assert_eq!(log.recovery_report().damage, [], "a crash is no damage");
        self.oracle.check(&log).await;
        log
    }
}

/// Lives through one seed; on a failure, says which, and what the disk was asked to do.
fn live(seed: u64) -> usize {
    let mut life = Life::new(seed);
    let fs = life.machine.fs.clone();
    let lived = catch_unwind(AssertUnwindSafe(|| block_on(life.live())));
    if let Err(cause) = lived {
        let mut tail = String::new();
        for op in fs.trace().iter().rev().take(60).rev() {
            let _ = writeln!(tail, "  {op}");
        }
        println!("the last operations:\n{tail}seed {seed} failed; to see it again:");
        println!("  SQ_SEED={seed} cargo test -p sq-storage --test it model::");
        std::panic::resume_unwind(cause);
    }
    life.steps
}

/// `SQ_SEED` lives through that one seed, `SQ_SEEDS` through so many more than usual.
#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_invented() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = number("SQ_SEED") {
        live(seed);
        return;
    }
    let seeds = number("SQ_SEEDS").unwrap_or(500);
    let steps: usize = (0..seeds).map(live).sum();
    println!("{steps} steps, {seeds} seeds");
    assert_eq!(steps, STEPS_PER_SEED * usize::try_from(seeds).unwrap());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let mut life = Life::new(seed);
        let fs = life.machine.fs.clone();
        block_on(life.live());
        fs.trace_text()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}
