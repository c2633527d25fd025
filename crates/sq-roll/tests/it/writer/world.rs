//! One log on a simulated machine, in virtual time.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sq_roll::{
    Epoch, Limits, Node, Request, RollHandle, RollSettings, RollingWriter, Seal, SegmentId,
    SlackSettings, SourceError, Start, State, SuccessorSource, Ticket,
};
use sq_sim::{Clock, Fault, InMemoryFileSystem, Instant, OpKind, VirtualClock};
use sq_storage::log::{Append, Head};
use sq_storage::{
    MaintenanceMode, Record, Result, SegmentIds, TailCache, TopicName, WalConfig, WalWriter,
};
use tokio::task::JoinHandle;

use crate::support::ms;

pub(crate) type Disk = InMemoryFileSystem;

/// The size of a segment: some sixty records of 1,000 bytes.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;
/// What a sync takes.
pub(crate) const SYNC: Duration = Duration::from_micros(90);

/// A source that takes its time, and fails when it is told to.
#[derive(Debug)]
pub(crate) struct Source {
    clock: VirtualClock,
    state: Mutex<SourceState>,
}

#[derive(Debug, Default)]
pub(crate) struct SourceState {
    pub(crate) delay: Duration,
    /// How the next calls of `prepare` end.
    pub(crate) failures: Vec<SourceError>,
    /// So many of the next calls are never answered.
    pub(crate) unanswered: usize,
    /// When it was asked for something.
    pub(crate) asked: Vec<Instant>,
    pub(crate) prepared: Vec<Request>,
    pub(crate) sealed: Vec<Seal>,
    pub(crate) abandoned: Vec<Ticket>,
    /// Successors that are placed and neither in use nor abandoned, with their predecessors.
    pub(crate) open: BTreeMap<SegmentId, SegmentId>,
    /// What was asked for and must not be.
    pub(crate) wrong: Vec<String>,
}

impl Source {
    pub(crate) fn new(clock: &VirtualClock) -> Self {
        Self {
            clock: clock.clone(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut SourceState) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }

    async fn commit(&self) {
        let (delay, answers) = self.with(|state| {
            state.asked.push(self.clock.now());
            let answers = state.unanswered == 0;
            state.unanswered = state.unanswered.saturating_sub(1);
            (state.delay, answers)
        });
        if !answers {
            std::future::pending::<()>().await;
        }
        if !delay.is_zero() {
            self.clock.sleep(delay).await;
        }
    }
}

#[async_trait]
impl SuccessorSource for Source {
    async fn prepare(&self, request: Request) -> Result<(), SourceError> {
        self.with(|state| state.prepared.push(request));
        self.commit().await;
        self.with(|state| {
            if let Some(failure) = state.failures.pop() {
                return Err(failure);
            }
            if state.abandoned.contains(&request.successor) {
                state
                    .wrong
                    .push(format!("placed behind its abandonment: {request:?}"));
            }
            state
                .open
                .insert(request.successor.segment, request.predecessor);
            let others = state.open.values().filter(|p| **p == request.predecessor);
            if others.count() != 1 {
                state.wrong.push(format!("two successors: {request:?}"));
            }
            Ok(())
        })
    }

    async fn sealed(&self, seal: Seal) -> Result<(), SourceError> {
        self.commit().await;
        self.with(|state| {
            let again = state.sealed.iter().find(|s| s.segment == seal.segment);
            if again.is_some_and(|first| *first != seal) {
                state
                    .wrong
                    .push(format!("sealed again otherwise: {seal:?}"));
            }
            state.open.remove(&seal.successor);
            state.sealed.push(seal);
        });
        Ok(())
    }

    async fn abandon(&self, successor: Ticket) -> Result<(), SourceError> {
        // It takes place before it is answered.
        self.with(|state| {
            let used = state
                .sealed
                .iter()
                .any(|s| s.successor == successor.segment);
            if used {
                state.wrong.push(format!("abandoned in use: {successor}"));
            }
            state.open.remove(&successor.segment);
            state.abandoned.push(successor);
        });
        self.commit().await;
        Ok(())
    }
}

/// A machine with one log.
pub(crate) struct World {
    pub(crate) fs: Disk,
    pub(crate) clock: VirtualClock,
    pub(crate) config: WalConfig,
    pub(crate) settings: RollSettings,
    pub(crate) source: Arc<Source>,
    pub(crate) node: Node,
}

/// The log while it is open.
pub(crate) struct Open {
    pub(crate) writer: RollingWriter<Disk>,
    pub(crate) rolls: RollHandle<Disk>,
    tasks: Tasks,
}

/// What runs beside a log, for as long as this is there.
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Open {
    pub(crate) fn into_parts(self) -> (RollingWriter<Disk>, Tasks) {
        (self.writer, self.tasks)
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let config = WalConfig {
            max_segment_bytes: SEGMENT_BYTES,
            max_frame_bytes: 1 << 18,
            segment_ids: SegmentIds::seeded(seed),
            zero_ahead_bytes: 0,
            tail_cache: TailCache::default(),
            maintenance: MaintenanceMode::Handed,
            ..WalConfig::new("/data")
        };
        let slack = SlackSettings {
            jitter: 0.0,
            ..SlackSettings::default()
        };
        Self {
            fs: InMemoryFileSystem::with_clock(seed, Arc::new(clock.clone())),
            settings: RollSettings {
                slack,
                longest_wait: ms(2_000),
                ..RollSettings::new(Limits::bytes(SEGMENT_BYTES))
            },
            source: Arc::new(Source::new(&clock)),
            node: Node::new(Arc::new(clock.clone()), 4),
            clock,
            config,
        }
    }

    /// Syncs take time from now on.
    pub(crate) fn with_slow_syncs(self) -> Self {
        let kinds = [OpKind::SyncData, OpKind::SyncAll, OpKind::SyncDir];
        self.fs.inject(Fault::delay(SYNC).on(&kinds).always());
        self
    }

    pub(crate) async fn open_writer(&self, partition: u32) -> Result<WalWriter<Disk>> {
        let fs = Arc::new(self.fs.for_this_process());
        let topic = TopicName::new("orders").unwrap();
        let clock = Arc::new(self.clock.clone());
        WalWriter::with_clock(fs, self.config.clone(), topic, partition, clock).await
    }

    pub(crate) async fn open(&self) -> Open {
        self.open_partition(0).await
    }

    pub(crate) async fn open_partition(&self, partition: u32) -> Open {
        let writer = self.open_writer(partition).await.unwrap();
        let mut start = Start::resume(&writer, Epoch(1));
        // A successor that nothing was written to before a stop is the active one all the same, if the
        // seal was committed.
        let is_sealed = |seal: &&Seal| seal.segment.segment == start.active;
        let successor = self
            .source
            .with(|s| s.sealed.iter().find(is_sealed).map(|s| s.successor));
        if let Some(successor) = successor {
            start = Start::empty(Epoch(1), successor, start.next);
        }
        self.drive(writer, start)
    }

    pub(crate) fn drive(&self, writer: WalWriter<Disk>, start: Start) -> Open {
        let fs = Arc::new(self.fs.for_this_process());
        let maintenance = writer.maintenance();
        let source = Arc::clone(&self.source);
        let (writer, driver) =
            RollingWriter::new(writer, start, source, &self.node, self.settings, fs);
        let chores = async move {
            while maintenance.wait().await {
                let _ = maintenance.run().await;
            }
        };
        let rolls = writer.handle();
        Open {
            writer,
            rolls,
            tasks: Tasks(vec![tokio::spawn(driver.run()), tokio::spawn(chores)]),
        }
    }

    /// Everything that waits for nothing but others is done.
    pub(crate) async fn settle(&self) {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    /// So much time passes.
    pub(crate) async fn pass(&self, time: Duration) {
        self.wait(self.clock.sleep(time)).await;
        self.settle().await;
    }

    /// The files of successors that are not in use.
    pub(crate) fn prepared_files(&self) -> Vec<PathBuf> {
        let is_prepared = |p: &PathBuf| p.extension().is_some_and(|e| e == "prepared");
        self.fs.files().into_iter().filter(is_prepared).collect()
    }

    /// Time passes until something is done.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let passing = async {
            loop {
                self.settle().await;
                self.clock.advance_to_next();
            }
        };
        tokio::select! {
            biased;
            output = work => output,
            () = passing => unreachable!("time does not end"),
        }
    }

    /// Fills the active segment, until the next record goes to its successor. Returns that record's number.
    pub(crate) async fn fill(&self, open: &mut Open) -> u64 {
        let mut n = 0;
        loop {
            let active = open.writer.writer().active_segment();
            let end = active.map_or(0, |active| active.bytes) + record(n).frame_len() as u64;
            if end > SEGMENT_BYTES && open.rolls.state() == State::Armed {
                return n;
            }
            self.append(open, n).await.unwrap();
            self.pass(ms(5)).await;
            n += 1;
        }
    }

    /// Appends one record, and says how long that took.
    pub(crate) async fn append(&self, open: &mut Open, n: u64) -> Result<Duration> {
        let began = self.clock.now();
        let count = self.wait(open.writer.append(&[record(n)])).await?;
        assert_eq!(count, 1);
        Ok(self.clock.now() - began)
    }
}

pub(crate) fn value(n: u64) -> Vec<u8> {
    let mut value = format!("record {n} ").into_bytes();
    value.resize(1_000, b'a' + (n % 26) as u8);
    value
}

pub(crate) fn record(n: u64) -> Append {
    Append::record(None, Some(&value(n)), &[], n).unwrap()
}

/// Every record's value, with the offsets checked to be consecutive from 0.
pub(crate) async fn values(writer: &WalWriter<Disk>) -> Vec<Vec<u8>> {
    let reader = writer.reader();
    let mut values = Vec::new();
    while (values.len() as u64) < reader.end_offset() {
        for frame in reader.read(values.len() as u64, 1 << 20).await.unwrap() {
            assert_eq!(frame.base_offset, values.len() as u64);
            let record = Record::decode(frame.payload.to_bytes()).unwrap();
            values.push(record.value.unwrap().to_vec());
        }
    }
    values
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}
