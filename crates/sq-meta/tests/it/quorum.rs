//! Three brokers that keep the log together, on simulated disks and a network that can be cut.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sq_meta::{
    Applied, BrokerId, Command, MetaLog, MetaLogConfig, MetaLogPeers, StoreConfig, SubmitError,
    Transport,
};
use sq_sim::{Clock, Effect, Fault, InMemoryFileSystem, Keep, OpKind, SystemClock};
use sq_storage::SegmentIds;

use crate::support::block_on;

type Log = MetaLog<InMemoryFileSystem>;

const HEARTBEAT: Duration = Duration::from_millis(100);

/// Who runs, and who is cut off from all others.
#[derive(Debug, Default)]
struct Network {
    running: Mutex<BTreeMap<BrokerId, Log>>,
    cut_off: Mutex<Option<BrokerId>>,
}

/// The network as one process of a broker has it.
#[derive(Debug)]
struct Link {
    network: Arc<Network>,
    from: BrokerId,
    is_dead: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Transport for Link {
    async fn call(&self, to: BrokerId, request: Bytes) -> io::Result<Bytes> {
        let unreachable = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let cut_off = *self.network.cut_off.lock().unwrap();
        let is_cut = cut_off.is_some_and(|b| b == self.from || b == to);
        if is_cut || self.is_dead.load(Ordering::Relaxed) {
            return Err(unreachable());
        }
        let log = self.network.running.lock().unwrap().get(&to).cloned();
        log.ok_or_else(unreachable)?.receive(&request).await
    }
}

struct Cluster {
    network: Arc<Network>,
    disks: Vec<InMemoryFileSystem>,
    dead: Vec<Arc<AtomicBool>>,
    starts: u64,
}

impl Cluster {
    async fn new(seed: u64) -> Self {
        let mut cluster = Self {
            network: Arc::default(),
            disks: (0..3)
                .map(|n| InMemoryFileSystem::new(seed * 3 + n))
                .collect(),
            dead: vec![Arc::default(); 3],
            starts: seed << 20,
        };
        for id in 0..3 {
            cluster.start(id).await;
        }
        cluster
    }

    fn disk(&self, id: u32) -> &InMemoryFileSystem {
        &self.disks[id as usize]
    }

    async fn start(&mut self, id: u32) {
        self.starts += 1;
        let is_dead = Arc::new(AtomicBool::new(false));
        self.dead[id as usize] = Arc::clone(&is_dead);
        let transport = Arc::new(Link {
            network: Arc::clone(&self.network),
            from: BrokerId(id),
            is_dead,
        });
        let config = MetaLogConfig {
            store: StoreConfig {
                segment_bytes: 8192,
                segment_ids: SegmentIds::seeded(self.starts),
                ..StoreConfig::new("/data/@raft")
            },
            snapshot_every: 300,
            peers: Some(MetaLogPeers {
                voters: (0..3).map(BrokerId).collect(),
                transport,
                heartbeat: HEARTBEAT,
            }),
            ..MetaLogConfig::new(BrokerId(id), "/data/@raft")
        };
        let fs = Arc::new(self.disk(id).for_this_process());
        let log = MetaLog::start(fs, config).await.unwrap();
        self.network
            .running
            .lock()
            .unwrap()
            .insert(BrokerId(id), log);
    }

    /// The power fails at one broker.
    fn crash(&self, id: u32, keep: Keep) {
        self.dead[id as usize].store(true, Ordering::Relaxed);
        self.disk(id).power_loss(keep);
        self.network.running.lock().unwrap().remove(&BrokerId(id));
    }

    fn log(&self, id: u32) -> Log {
        self.network.running.lock().unwrap()[&BrokerId(id)].clone()
    }

    /// Waits until one that is not cut off leads, and all that are not know it.
    async fn leader(&self) -> u32 {
        for _ in 0..10_000 {
            let cut_off = *self.network.cut_off.lock().unwrap();
            let running = self.network.running.lock().unwrap().clone();
            let mut told = Vec::new();
            for (id, log) in &running {
                if Some(*id) != cut_off {
                    told.push(log.leader().await);
                }
            }
            let first = told.first().copied().flatten();
            let is_there = first.is_some_and(|b| running.contains_key(&b) && Some(b) != cut_off);
            if is_there && told.iter().all(|leader| *leader == first) {
                return first.unwrap().0;
            }
            SystemClock.sleep(HEARTBEAT / 10).await;
        }
        panic!("nobody is elected")
    }

    /// Takes producer ids from whoever leads, until some are given.
    async fn allocate(&self) -> std::ops::Range<i64> {
        for _ in 0..200 {
            let log = self.log(self.leader().await);
            let submit = log.submit(Command::AllocateProducerIds { count: 10 });
            match tokio::time::timeout(HEARTBEAT * 20, submit).await {
                Ok(Ok(Applied::ProducerIds(ids))) => return ids,
                Ok(Ok(other)) => panic!("{other:?}"),
                Ok(Err(SubmitError::Refused(refusal))) => panic!("{refusal}"),
                // Leaders come and go; what is not known to be given is not used.
                Ok(Err(_)) | Err(_) => SystemClock.sleep(HEARTBEAT).await,
            }
        }
        panic!("no ids are given")
    }

    /// Waits until every broker has this much.
    async fn settle(&self, next_producer_id: i64) {
        for id in 0..3 {
            let mut watch = self.log(id).watch();
            let all = watch.wait_for(|state| state.next_producer_id() >= next_producer_id);
            tokio::time::timeout(HEARTBEAT * 1000, all)
                .await
                .unwrap()
                .unwrap();
        }
    }
}

#[test]
fn a_commit_reaches_the_others_at_once() {
    // Followers learned of a commit with the next heartbeat only: rolls took half a second, although
    // their commits took two milliseconds.
    block_on(async {
        let cluster = Cluster::new(1).await;
        cluster.allocate().await;
        for _ in 0..20 {
            let began = SystemClock.now();
            let ids = cluster.allocate().await;
            cluster.settle(ids.end).await;
            assert!(began.elapsed() < HEARTBEAT / 10, "{:?}", began.elapsed());
            SystemClock.sleep(HEARTBEAT / 3).await;
        }
    });
}

#[test]
fn only_the_leader_takes_commands_and_the_others_name_it() {
    block_on(async {
        let cluster = Cluster::new(2).await;
        let leader = cluster.leader().await;
        for id in (0..3).filter(|id| *id != leader) {
            let submit = cluster
                .log(id)
                .submit(Command::AllocateProducerIds { count: 1 })
                .await;
            let Err(SubmitError::NotLeader { leader: told }) = submit else {
                panic!("{submit:?}")
            };
            assert_eq!(told, Some(BrokerId(leader)));
        }
    });
}

#[test]
fn who_is_cut_off_commits_nothing_and_learns_what_the_others_did() {
    block_on(async {
        let cluster = Cluster::new(3).await;
        let given = cluster.allocate().await;
        let old = cluster.leader().await;
        *cluster.network.cut_off.lock().unwrap() = Some(BrokerId(old));
        let alone = cluster.log(old);
        let submit = alone.submit(Command::AllocateProducerIds { count: 10 });
        let submit = tokio::time::timeout(HEARTBEAT * 50, submit).await;
        assert!(!matches!(submit, Ok(Ok(_))), "committed without a quorum");
        let next = cluster.allocate().await;
        assert_eq!(
            next.start, given.end,
            "what was not committed was not given"
        );
        *cluster.network.cut_off.lock().unwrap() = None;
        cluster.settle(next.end).await;
    });
}

#[test]
fn one_that_was_away_for_long_comes_back_by_a_snapshot() {
    block_on(async {
        let mut cluster = Cluster::new(4).await;
        cluster.allocate().await;
        let away = (cluster.leader().await + 1) % 3;
        cluster.crash(away, Keep::None);
        let mut end = 0;
        for _ in 0..800 {
            end = cluster.allocate().await.end;
        }
        cluster.start(away).await;
        cluster.settle(end).await;
        let log = cluster.log(away);
        assert_eq!(*log.state(), *cluster.log((away + 1) % 3).state());
    });
}

/// Brokers lose their power one at a time or are cut off, and ids are taken all the while.
async fn storm(seed: u64) {
    let mut cluster = Cluster::new(seed).await;
    let mut given = 0;
    let mut x = seed;
    for _ in 0..12 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let id = u32::try_from((x >> 40) % 3).unwrap();
        let keep = [Keep::None, Keep::Mixed, Keep::All][usize::try_from((x >> 44) % 3).unwrap()];
        let is_crash = !(x >> 48).is_multiple_of(3);
        if is_crash {
            cluster.crash(id, keep);
        } else {
            *cluster.network.cut_off.lock().unwrap() = Some(BrokerId(id));
        }
        for _ in 0..5 {
            let ids = cluster.allocate().await;
            assert!(ids.start >= given, "{ids:?} were given before, seed {seed}");
            given = ids.end;
        }
        if is_crash {
            cluster.start(id).await;
        } else {
            *cluster.network.cut_off.lock().unwrap() = None;
        }
    }
    cluster.settle(given).await;
}

#[test]
fn nothing_committed_is_lost_when_brokers_fail_one_after_the_other() {
    for seed in 10..18 {
        block_on(storm(seed));
    }
}

/// Ids are taken, then the power fails everywhere; gives what is left.
async fn blackout(seed: u64, ignore_syncs: bool) -> (i64, i64) {
    let mut cluster = Cluster::new(seed).await;
    if ignore_syncs {
        for disk in &cluster.disks {
            let syncs = [OpKind::SyncData, OpKind::SyncAll, OpKind::SyncDir];
            disk.inject(Fault::new(Effect::IgnoreSync).on(&syncs).always());
        }
    }
    let mut given = 0;
    for _ in 0..20 {
        given = cluster.allocate().await.end;
    }
    for id in 0..3 {
        cluster.crash(id, Keep::None);
        cluster.disk(id).clear_faults();
    }
    for id in 0..3 {
        cluster.start(id).await;
    }
    (given, cluster.allocate().await.start)
}

#[test]
fn nothing_committed_is_lost_when_the_power_fails_everywhere() {
    // One node that lost un-synced entries and votes, in the right moment, split a cluster in two.
    block_on(async {
        for seed in 30..34 {
            let (given, next) = blackout(seed, false).await;
            assert!(next >= given, "{next} was given before, up to {given}");
        }
        // Drives that ignore flushes: with them the same has to show.
        let (given, next) = blackout(34, true).await;
        assert!(next < given, "the test would not notice");
    });
}
