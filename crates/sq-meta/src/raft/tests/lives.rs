//! A log of one voter, as a broker runs it, through lives that end in every way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sq_sim::{Effect, Errno, Fault, InMemoryFileSystem, Op, OpKind, PathPattern, SyncFailure};

use super::clients::{Client, Ids, Violation, broker};
use super::runtime::{self, Draws};
use super::support::{DIR, Stop, config};
use crate::command::Command;
use crate::ids::BrokerId;
use crate::log::{MetaLog, MetaLogConfig, SubmitError};

type Log = MetaLog<InMemoryFileSystem>;

const VOTE: &str = "/data/node/vote";
const JOURNAL: &str = "/data/node/log";

const LIVES: u64 = 6;
const CLIENTS: u8 = 3;

/// More than a disk fails in a life.
const MAX_TRIES: u32 = 8;

/// Seeds that the lives are led with, and those within which a disk that does not sync is found out.
const SEEDS: u64 = 40;
const SEEDS_TO_NOTICE: u64 = 10;

/// What outlives a process, and what is remembered of all of them.
struct World {
    draws: Draws,
    disk: InMemoryFileSystem,
    clients: Vec<Arc<Mutex<Client>>>,
    ids: Arc<Mutex<Ids>>,
    applied: Option<u64>,
    /// The disk fails a few times in this life.
    is_failing: bool,
    seen: Seen,
}

/// What the lives went through, so that the test can tell that it tests something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    commands: u64,
    crashes: u64,
    crashed_starts: u64,
    failed_starts: u64,
    reopened: u64,
    removed: u64,
}

/// The end of what was begun.
struct End {
    outcome: Result<(), Violation>,
    trace: Vec<Op>,
    seen: Seen,
    found: [u32; 2],
}

/// Lives on a disk. `schedule` is the seed of the tasks' turns; syncs of what `unsynced` says do nothing.
fn lives(seed: u64, schedule: u64, unsynced: Option<&PathPattern>) -> End {
    let mut world = World {
        draws: Draws::new(seed),
        disk: InMemoryFileSystem::new(seed),
        clients: (0..CLIENTS)
            .map(|n| Arc::new(Mutex::new(Client::new(n, seed))))
            .collect(),
        ids: Arc::default(),
        applied: None,
        is_failing: false,
        seen: Seen::default(),
    };
    let outcome = (0..LIVES).try_for_each(|n| {
        if let Some(path) = unsynced {
            let ignored = Fault::new(Effect::IgnoreSync).path(path.clone());
            world.disk.inject(ignored.always());
        }
        let lived = runtime::run(schedule * LIVES + n, world.live(n));
        world.disk.clear_faults();
        world.draws.pick(&Stop::ALL).strike(&world.disk);
        lived.map_err(|violation| format!("seed {seed}, {schedule}, life {n}: {violation}"))
    });
    let found = world.clients.iter().map(|c| c.lock().unwrap().found);
    let found = found.fold([0, 0], |sum, found| [sum[0] + found[0], sum[1] + found[1]]);
    End {
        outcome,
        trace: world.disk.trace(),
        seen: world.seen,
        found,
    }
}

impl World {
    async fn live(&mut self, life: u64) -> Result<(), Violation> {
        self.draw_troubles();
        let Some(log) = self.start(life).await? else {
            return Ok(());
        };
        self.look(&log)?;
        let lived = self.work(&log).await;
        self.applied = self.applied.max(log.applied_index());
        self.seen.crashes += u64::from(self.disk.is_crashed());
        if self.draws.one_in(3) {
            log.shut_down().await;
        }
        lived
    }

    /// Decides when the process dies, and what the disk does until then.
    fn draw_troubles(&mut self) {
        let draws = &mut self.draws;
        match draws.below(4) {
            0 => self.disk.crash_after(draws.below(60)),
            1 | 2 => self.disk.crash_after(draws.below(1500)),
            _ => {}
        }
        self.is_failing = draws.one_in(3);
        if self.is_failing {
            let effect = match draws.below(4) {
                0 => Effect::Fail(Errno::Io),
                1 => Effect::FailAfterwards(Errno::NoSpace),
                _ => Effect::FailSync(draws.pick(&SyncFailure::ALL)),
            };
            let fault = Fault::new(effect).skip(draws.below(400));
            self.disk.inject(fault.times(1 + draws.below(4)));
        }
    }

    /// The log; nothing if the process died before there was one.
    async fn start(&mut self, life: u64) -> Result<Option<Log>, Violation> {
        let config = MetaLogConfig {
            store: config(life),
            snapshot_every: 40,
            ..MetaLogConfig::new(BrokerId(0), DIR)
        };
        let is_patient = self.draws.one_in(2);
        let mut tries = 0;
        loop {
            let fs = Arc::new(self.disk.for_this_process());
            let started = if is_patient {
                MetaLog::start(fs, config.clone()).await
            } else {
                MetaLog::open(fs, config.clone()).await
            };
            match started {
                Ok(log) => return Ok(Some(log)),
                Err(_) if self.disk.is_crashed() => {
                    self.seen.crashed_starts += 1;
                    return Ok(None);
                }
                // The disk failed, and will be well.
                Err(_) if self.is_failing && tries < MAX_TRIES => {
                    tries += 1;
                    self.seen.failed_starts += 1;
                }
                Err(error) => return Err(format!("it does not start: {error}")),
            }
        }
    }

    /// All that was answered is there, and all that was applied.
    fn look(&self, log: &Log) -> Result<(), Violation> {
        let state = log.state();
        state.validate().map_err(|v| v.to_string())?;
        for client in &self.clients {
            client.lock().unwrap().look(&state)?;
        }
        self.ids.lock().unwrap().look(&state)?;
        let (before, now) = (self.applied, log.applied_index());
        if now < before {
            return Err(format!("{before:?} was applied, and {now:?} is"));
        }
        Ok(())
    }

    async fn work(&mut self, log: &Log) -> Result<(), Violation> {
        let commands = 40 + self.draws.below(200);
        let registered = Command::RegisterBroker(broker(0));
        if !submits(log, &self.disk, &registered).await? {
            return Ok(());
        }
        let follower = runtime::spawn(follow(log.clone()));
        let mut tasks = Vec::new();
        for client in &self.clients {
            let worker = Worker {
                log: log.clone(),
                disk: self.disk.clone(),
                client: Arc::clone(client),
                ids: Arc::clone(&self.ids),
                draws: Draws::new(self.draws.next()),
                seen: Seen::default(),
            };
            tasks.push(runtime::spawn(worker.work(commands)));
        }
        for task in tasks {
            let seen = task.await.unwrap()?;
            self.seen.commands += seen.commands;
            self.seen.reopened += seen.reopened;
        }
        follower.abort();
        match follower.await {
            Ok(violation) => Err(violation),
            Err(_) => Ok(()),
        }
    }
}

/// Looks at every state that the log goes through, as far as it is seen; ends at one that can't be.
async fn follow(log: Log) -> Violation {
    let mut states = log.watch();
    let mut last = (0, None);
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        let at = (state.revision(), log.applied_index());
        if let Err(violation) = state.validate() {
            return violation.to_string();
        }
        if at.0 < last.0 || at.1 < last.1 {
            return format!("{at:?} is applied after {last:?}");
        }
        last = at;
        drop(state);
        if states.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One client at work, for one life.
struct Worker {
    log: Log,
    disk: InMemoryFileSystem,
    client: Arc<Mutex<Client>>,
    ids: Arc<Mutex<Ids>>,
    draws: Draws,
    seen: Seen,
}

impl Worker {
    async fn work(mut self, commands: u64) -> Result<Seen, Violation> {
        for _ in 0..commands {
            let outcome = if self.draws.one_in(4) {
                self.take_id().await?
            } else {
                self.change_topic().await?
            };
            match outcome {
                Ok(()) => self.seen.commands += 1,
                Err(_) if self.disk.is_crashed() => break,
                Err(error) => {
                    check_error(&error)?;
                    if !self.reopens().await? {
                        break;
                    }
                }
            }
        }
        Ok(self.seen)
    }

    async fn take_id(&self) -> Result<Result<(), SubmitError>, Violation> {
        let floor = self.ids.lock().unwrap().end();
        let submitted = Command::AllocateProducerIds { count: 1 };
        Ok(match self.log.submit(submitted).await {
            Ok(ids) => Ok(self.ids.lock().unwrap().take(floor, &ids)?),
            Err(error) => Err(error),
        })
    }

    async fn change_topic(&self) -> Result<Result<(), SubmitError>, Violation> {
        let command = self.client.lock().unwrap().propose();
        let outcome = self.log.submit(command).await;
        let mut client = self.client.lock().unwrap();
        Ok(match outcome {
            Ok(applied) => Ok(client.hear(&Ok(applied))?),
            Err(SubmitError::Refused(refusal)) => Ok(client.hear(&Err(refusal))?),
            Err(error) => {
                if !matches!(error, SubmitError::Unknown(_)) {
                    client.withdraw();
                }
                Err(error)
            }
        })
    }

    /// Waits until the log runs again, and looks up what it did not say; false if it never will.
    async fn reopens(&mut self) -> Result<bool, Violation> {
        let nothing = Command::SkipProducerIds { below: 0 };
        if !submits(&self.log, &self.disk, &nothing).await? {
            return Ok(false);
        }
        self.seen.reopened += 1;
        self.client.lock().unwrap().look(&self.log.state())?;
        Ok(true)
    }
}

/// Submits a command that can be repeated until it is applied; false if the process died.
async fn submits(
    log: &Log,
    disk: &InMemoryFileSystem,
    command: &Command,
) -> Result<bool, Violation> {
    // A disk has fewer faults, and is well then.
    for _ in 0..MAX_TRIES {
        match log.submit(command.clone()).await {
            Ok(_) => return Ok(true),
            Err(_) if disk.is_crashed() => return Ok(false),
            Err(error) => check_error(&error)?,
        }
    }
    Err(format!("it does not run again, nor take {command:?}"))
}

/// Fails with what a failing disk is no reason for.
fn check_error(error: &SubmitError) -> Result<(), Violation> {
    match error {
        SubmitError::Unknown(_) | SubmitError::Unavailable(_) => Ok(()),
        other => Err(format!("a command failed with: {other}")),
    }
}

#[test]
fn whatever_ends_a_life_the_next_has_all_that_was_answered() {
    let mut seen = Seen::default();
    let mut found = [0, 0];
    for seed in 0..SEEDS {
        let end = lives(seed, seed, None);
        end.outcome.unwrap();
        seen.commands += end.seen.commands;
        seen.crashes += end.seen.crashes;
        seen.crashed_starts += end.seen.crashed_starts;
        seen.failed_starts += end.seen.failed_starts;
        seen.reopened += end.seen.reopened;
        seen.removed += removed(&end.trace);
        found = [found[0] + end.found[0], found[1] + end.found[1]];
    }
    assert!(seen.commands > SEEDS * 200, "{seen:?}");
    assert!(
        seen.crashes > SEEDS && seen.crashed_starts > SEEDS / 2,
        "{seen:?}"
    );
    assert!(
        seen.failed_starts > 0 && seen.reopened > 0 && seen.removed > 0,
        "{seen:?}"
    );
    assert!(
        found.iter().all(|count| *count > 5),
        "taken, not taken: {found:?}"
    );
}

/// How many files of the journal were removed.
fn removed(trace: &[Op]) -> u64 {
    let removals = trace.iter().filter(|op| op.kind == OpKind::RemoveFile);
    removals.filter(|op| op.path.starts_with(JOURNAL)).count() as u64
}

#[test]
fn a_seed_gives_the_same_operations_again_and_another_schedule_gives_others() {
    let mut traces = BTreeSet::new();
    for schedule in 0..4 {
        let (once, again) = (lives(1, schedule, None), lives(1, schedule, None));
        let differs = once.trace.iter().zip(&again.trace).find(|(a, b)| a != b);
        assert_eq!(differs, None, "schedule {schedule}");
        assert_eq!(once.trace.len(), again.trace.len());
        assert_eq!((once.seen, once.found), (again.seen, again.found));
        traces.insert(format!("{:?}", once.trace));
    }
    assert!(
        traces.len() > 1,
        "the seed of the schedule makes no difference"
    );
}

#[test]
fn a_vote_or_a_journal_that_is_not_synced_is_found_out() {
    for path in [VOTE, JOURNAL] {
        let unsynced = PathPattern::Contains(path.to_owned());
        let noticed = (0..SEEDS_TO_NOTICE).find_map(|seed| {
            let outcome = lives(seed, seed, Some(&unsynced)).outcome;
            outcome.err()
        });
        assert!(noticed.is_some(), "{path}");
    }
}
