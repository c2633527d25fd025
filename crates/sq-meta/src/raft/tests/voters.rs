//! Three voters on a network that loses, delays and repeats, through storms that follow from a seed.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::bytes::Bytes;
use sq_sim::{
    Clock, Effect, Fault, InMemoryFileSystem, Op, PathPattern, SystemClock, VirtualClock,
};
use sq_storage::SegmentIds;

use super::clients::{Client, Violation, broker};
use super::runtime::{self, Draws};
use super::support::{DIR, Stop};
use crate::command::{Applied, Command};
use crate::ids::BrokerId;
use crate::log::{MetaLog, MetaLogConfig, MetaLogPeers, SubmitError};
use crate::raft::{StoreConfig, Transport};
use crate::state::MetaState;

type Log = MetaLog<InMemoryFileSystem>;

const VOTERS: u32 = 3;
const HEARTBEAT: Duration = Duration::from_millis(100);

/// How long a call is waited for, and a command.
const PATIENCE: Duration = Duration::from_secs(2);

const TROUBLES: u32 = 10;
const CLIENTS: u8 = 2;
const SEEDS: u64 = 20;
const SEEDS_TO_NOTICE: u64 = 6;

/// What everyone shares. Tasks take turns, so that no lock is ever waited for.
#[derive(Debug)]
struct World {
    draws: Mutex<Draws>,
    running: Mutex<BTreeMap<u32, Log>>,
    /// Calls from and to it are lost.
    cut_off: Mutex<Option<u32>>,
    /// The state after each entry, as whoever applied it first had it.
    states: Mutex<BTreeMap<u64, Arc<MetaState>>>,
    is_over: AtomicBool,
}

/// The network as one process has it.
#[derive(Debug)]
struct Link {
    world: Arc<World>,
    from: u32,
    is_dead: Arc<AtomicBool>,
}

impl Link {
    fn is_cut(&self, to: u32) -> bool {
        let cut_off = *self.world.cut_off.lock().unwrap();
        self.is_dead.load(Ordering::Relaxed) || cut_off.is_some_and(|b| b == self.from || b == to)
    }

    /// Whether a message gets lost.
    async fn loses(&self, to: u32) -> bool {
        let (is_lost, delay) = {
            let mut draws = self.world.draws.lock().unwrap();
            (draws.one_in(15), draws.below(30))
        };
        SystemClock.sleep(Duration::from_millis(delay)).await;
        is_lost || self.is_cut(to)
    }
}

#[async_trait::async_trait]
impl Transport for Link {
    async fn call(&self, to: BrokerId, request: Bytes) -> io::Result<Bytes> {
        let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
        if self.loses(to.0).await {
            SystemClock.sleep(PATIENCE).await;
            return Err(timed_out());
        }
        let times = 1 + u32::from(self.world.draws.lock().unwrap().one_in(15));
        let mut answer = Err(timed_out());
        for _ in 0..times {
            let log = self.world.running.lock().unwrap().get(&to.0).cloned();
            let log = log.ok_or(io::ErrorKind::ConnectionRefused)?;
            // It is carried out even if the caller has gone.
            let request = request.clone();
            let carried_out = runtime::spawn(async move { log.receive(&request).await });
            answer = carried_out.await.unwrap();
        }
        if self.loses(to.0).await {
            SystemClock.sleep(PATIENCE).await;
            return Err(timed_out());
        }
        answer
    }
}

impl World {
    fn below(&self, n: u64) -> u64 {
        self.draws.lock().unwrap().below(n)
    }

    /// One that says of itself that it leads; any if none does, and none if the one drawn is down.
    async fn leader(&self) -> Option<Log> {
        let running = self.running.lock().unwrap().clone();
        for (id, log) in &running {
            if log.leader().await == Some(BrokerId(*id)) {
                return Some(log.clone());
            }
        }
        let id = u32::try_from(self.below(VOTERS.into())).unwrap();
        running.get(&id).cloned()
    }

    /// Nobody has a state that another did not have after the same entry.
    fn compare(&self) -> Result<(), Violation> {
        for (id, log) in &*self.running.lock().unwrap() {
            let (Some(applied), state) = (log.applied_index(), log.state()) else {
                continue;
            };
            state.validate().map_err(|v| v.to_string())?;
            let mut states = self.states.lock().unwrap();
            let first = states.entry(applied).or_insert_with(|| Arc::clone(&state));
            if **first != *state {
                return Err(format!("broker {id} has another state after {applied}"));
            }
        }
        Ok(())
    }

    /// Submits to whoever leads; `None` if there was no answer for long.
    async fn submit(&self, command: Command) -> Option<Result<Applied, SubmitError>> {
        let Some(log) = self.leader().await else {
            SystemClock.sleep(HEARTBEAT).await;
            return Some(Err(SubmitError::NotLeader { leader: None }));
        };
        let outcome = tokio::time::timeout(PATIENCE, log.submit(command)).await;
        if !matches!(outcome, Ok(Ok(_) | Err(SubmitError::Refused(_)))) {
            SystemClock.sleep(HEARTBEAT / 2).await;
        }
        outcome.ok()
    }

    /// The state of a leader that has just committed something.
    async fn settled(&self) -> Result<Arc<MetaState>, Violation> {
        for _ in 0..1000 {
            let Some(log) = self.leader().await else {
                SystemClock.sleep(HEARTBEAT).await;
                continue;
            };
            let submit = log.submit(Command::SkipProducerIds { below: 0 });
            if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, submit).await {
                return Ok(log.state());
            }
            SystemClock.sleep(HEARTBEAT / 2).await;
        }
        Err("nobody is elected".to_owned())
    }
}

/// A client at work, until the storm is over; gives how many commands it had an answer to.
async fn work(world: Arc<World>, client: Arc<Mutex<Client>>) -> Result<u64, Violation> {
    let mut answered = 0;
    while !world.is_over.load(Ordering::Relaxed) {
        let command = client.lock().unwrap().propose();
        let outcome = match world.submit(command).await {
            Some(Ok(applied)) => Ok(applied),
            Some(Err(SubmitError::Refused(refusal))) => Err(refusal),
            Some(Err(SubmitError::NotLeader { .. } | SubmitError::Unavailable(_))) => {
                client.lock().unwrap().withdraw();
                continue;
            }
            Some(Err(_)) | None => {
                let state = world.settled().await?;
                client.lock().unwrap().look(&state)?;
                continue;
            }
        };
        client.lock().unwrap().hear(&outcome)?;
        answered += 1;
        world.compare()?;
        let pause = Duration::from_millis(world.below(20));
        SystemClock.sleep(pause).await;
    }
    Ok(answered)
}

struct Cluster {
    world: Arc<World>,
    disks: Vec<InMemoryFileSystem>,
    dead: Vec<Arc<AtomicBool>>,
    starts: u64,
}

impl Cluster {
    fn new(seed: u64, unsynced: Option<&PathPattern>) -> Self {
        let disks = (0..u64::from(VOTERS)).map(|n| InMemoryFileSystem::new(seed * 8 + n));
        let disks: Vec<_> = disks.collect();
        if let Some(path) = unsynced {
            for disk in &disks {
                let ignored = Fault::new(Effect::IgnoreSync).path(path.clone());
                disk.inject(ignored.always());
            }
        }
        Self {
            world: Arc::new(World {
                draws: Mutex::new(Draws::new(seed)),
                running: Mutex::default(),
                cut_off: Mutex::default(),
                states: Mutex::default(),
                is_over: AtomicBool::new(false),
            }),
            disks,
            dead: vec![Arc::default(); VOTERS as usize],
            starts: seed << 20,
        }
    }

    async fn start(&mut self, id: u32) -> Result<(), Violation> {
        self.starts += 1;
        let is_dead = Arc::new(AtomicBool::new(false));
        self.dead[id as usize] = Arc::clone(&is_dead);
        let transport = Arc::new(Link {
            world: Arc::clone(&self.world),
            from: id,
            is_dead,
        });
        let config = MetaLogConfig {
            store: StoreConfig {
                segment_bytes: 4096,
                segment_ids: SegmentIds::seeded(self.starts),
                // It stamps files; the machine's would with the time of the test.
                clock: Arc::new(VirtualClock::new()),
                ..StoreConfig::new(DIR)
            },
            snapshot_every: 60,
            peers: Some(MetaLogPeers {
                voters: (0..VOTERS).map(BrokerId).collect(),
                transport,
                heartbeat: HEARTBEAT,
            }),
            ..MetaLogConfig::new(BrokerId(id), DIR)
        };
        let fs = Arc::new(self.disks[id as usize].for_this_process());
        let log = MetaLog::start(fs, config).await;
        let log = log.map_err(|e| format!("broker {id} does not start: {e}"))?;
        self.world.running.lock().unwrap().insert(id, log);
        Ok(())
    }

    fn crash(&self, id: u32) {
        self.world.running.lock().unwrap().remove(&id);
        self.dead[id as usize].store(true, Ordering::Relaxed);
        let stop = self.world.draws.lock().unwrap().pick(&Stop::ALL);
        stop.strike(&self.disks[id as usize]);
    }

    /// One is cut off or fails for a while, or all do.
    async fn trouble(&mut self) -> Result<(), Violation> {
        let id = u32::try_from(self.world.below(VOTERS.into())).unwrap();
        let down = match self.world.below(5) {
            0 | 1 => {
                *self.world.cut_off.lock().unwrap() = Some(id);
                0..0
            }
            2 | 3 => id..id + 1,
            _ => 0..VOTERS,
        };
        down.clone().for_each(|id| self.crash(id));
        self.pass().await;
        *self.world.cut_off.lock().unwrap() = None;
        for id in down {
            self.start(id).await?;
        }
        self.world.compare()?;
        self.pass().await;
        Ok(())
    }

    /// Lets some time pass: at most what an election takes, twice.
    async fn pass(&self) {
        let time = Duration::from_millis(self.world.below(2000));
        SystemClock.sleep(time).await;
    }

    /// Everyone comes to have the same state, which is all that was answered.
    async fn heal(&self, clients: &[Arc<Mutex<Client>>]) -> Result<(), Violation> {
        let state = self.world.settled().await?;
        for client in clients {
            client.lock().unwrap().look(&state)?;
        }
        for _ in 0..1000 {
            self.world.compare()?;
            let running = self.world.running.lock().unwrap().clone();
            if running.values().all(|log| *log.state() == *state) {
                return Ok(());
            }
            SystemClock.sleep(HEARTBEAT).await;
        }
        Err("not all have the same state in the end".to_owned())
    }

    /// Gives how many commands were answered.
    async fn storm(&mut self, clients: &[Arc<Mutex<Client>>]) -> Result<u64, Violation> {
        for id in 0..VOTERS {
            self.start(id).await?;
        }
        let registered = Command::RegisterBroker(broker(0));
        while !matches!(self.world.submit(registered.clone()).await, Some(Ok(_))) {}
        let tasks: Vec<_> = clients
            .iter()
            .map(|client| runtime::spawn(work(Arc::clone(&self.world), Arc::clone(client))))
            .collect();
        for _ in 0..TROUBLES {
            self.trouble().await?;
        }
        self.world.is_over.store(true, Ordering::Relaxed);
        let mut answered = 0;
        for task in tasks {
            answered += task.await.unwrap()?;
        }
        self.heal(clients).await?;
        Ok(answered)
    }
}

struct End {
    outcome: Result<u64, Violation>,
    traces: Vec<Vec<Op>>,
    found: Vec<[u32; 2]>,
}

fn storm(seed: u64, unsynced: Option<&PathPattern>) -> End {
    let mut cluster = Cluster::new(seed, unsynced);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| Arc::new(Mutex::new(Client::new(n, seed))))
        .collect();
    let outcome = runtime::run(seed, cluster.storm(&clients));
    End {
        outcome: outcome.map_err(|violation| format!("seed {seed}: {violation}")),
        traces: cluster
            .disks
            .iter()
            .map(InMemoryFileSystem::trace)
            .collect(),
        found: clients.iter().map(|c| c.lock().unwrap().found).collect(),
    }
}

#[test]
fn nothing_answered_is_lost_in_any_storm_and_all_agree_in_the_end() {
    let (mut answered, mut found) = (0, [0, 0]);
    for seed in 0..SEEDS {
        let end = storm(seed, None);
        answered += end.outcome.unwrap();
        for client in end.found {
            found = [found[0] + client[0], found[1] + client[1]];
        }
    }
    assert!(answered > SEEDS * 100, "{answered}");
    assert!(
        found.iter().all(|count| *count > 5),
        "taken, not taken: {found:?}"
    );
}

#[test]
fn a_seed_gives_the_same_storm_again() {
    let mut storms = Vec::new();
    for seed in 0..3 {
        let (once, again) = (storm(seed, None), storm(seed, None));
        for (a, b) in once.traces.iter().zip(&again.traces) {
            assert_eq!(a.iter().zip(b).find(|(a, b)| a != b), None, "seed {seed}");
        }
        assert_eq!(once.outcome, again.outcome);
        assert_eq!(once.traces, again.traces);
        storms.push(once.traces);
    }
    storms.dedup();
    assert!(storms.len() > 1, "the seed makes no difference");
}

#[test]
fn journals_that_are_not_synced_are_found_out() {
    let unsynced = PathPattern::Contains(format!("{DIR}/log"));
    let noticed = (0..SEEDS_TO_NOTICE).find_map(|seed| storm(seed, Some(&unsynced)).outcome.err());
    assert!(noticed.is_some());
}
