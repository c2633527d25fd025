//! What a broker holds: the metadata's log, and the state that follows from it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sq_sim::FileSystem;
use tokio::sync::{Mutex, watch};

use crate::command::{Applied, Command, Refusal};
use crate::ids::BrokerId;
use crate::raft::{
    self, LogStore, Machine, Node, NodeConfig, NodeError, OpenError, Peers, ReceiveError,
    StoreConfig, Transport, WriteError,
};
use crate::state::MetaState;

/// How the log is kept.
#[derive(Clone, Debug)]
pub struct MetaLogConfig {
    /// Which broker this is.
    pub broker: BrokerId,
    /// Where the log is.
    pub store: StoreConfig,
    /// How many commands make a snapshot worth while.
    pub snapshot_every: u64,
    /// The other voters; `None` for a log that has this broker as its only one.
    pub peers: Option<MetaLogPeers>,
    /// How much later than it could be a command is proposed. For tests and benchmarks: it is what a
    /// quorum far away would cost.
    pub commit_delay: Duration,
}

/// The voters of a log that several brokers keep together.
#[derive(Clone, Debug)]
pub struct MetaLogPeers {
    /// All of them, this broker too. They count when the log is begun, and must be the same for each;
    /// afterwards the log itself says who its voters are.
    pub voters: BTreeSet<BrokerId>,
    /// What carries requests between them.
    pub transport: Arc<dyn Transport>,
    /// How often a leader that has nothing to say shows that it is there. Without a sign for five to ten
    /// times as long the others elect another. More than one round trip.
    pub heartbeat: Duration,
}

impl MetaLogConfig {
    /// The defaults for a directory: a snapshot every 4,096 commands, no delay.
    pub fn new(broker: BrokerId, dir: impl Into<std::path::PathBuf>) -> Self {
        Self {
            broker,
            store: StoreConfig::new(dir),
            snapshot_every: 4096,
            peers: None,
            commit_delay: Duration::ZERO,
        }
    }
}

/// Why the log did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It can't be read. An operator has to look.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could be read, and what runs on it failed.
    #[error("the metadata's log did not start: {0}")]
    Failed(String),
}

impl From<NodeError> for StartError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Open(error) => Self::Open(error),
            NodeError::Failed(reason) => Self::Failed(reason),
        }
    }
}

/// Why a command was not applied, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It was in the log and its guard did not hold: it has changed nothing, and never will.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another broker leads the log. The command was not taken.
    #[error("the metadata's log is led by {}", leader.map_or_else(|| "nobody".to_owned(), |b| b.to_string()))]
    NotLeader {
        /// Who does, if that is known.
        leader: Option<BrokerId>,
    },
    /// The log stopped while the command was under way: it may be applied later, or not. A command that
    /// can be repeated should be; for one that can't be, the state tells.
    #[error("whether the command was applied is not known: {0}")]
    Unknown(String),
    /// The log does not run, and did not start again. The command was not taken.
    #[error(transparent)]
    Unavailable(#[from] StartError),
    /// The log was shut down.
    #[error("the metadata's log was shut down")]
    ShutDown,
}

/// The log. Cheap to clone: clones share it.
pub struct MetaLog<F: FileSystem> {
    inner: Arc<Inner<F>>,
}

struct Inner<F: FileSystem> {
    fs: Arc<F>,
    config: MetaLogConfig,
    machine: Machine,
    node: Mutex<Slot<F>>,
}

/// What there is of the node.
enum Slot<F: FileSystem> {
    /// Its files were read, and nothing runs yet.
    Read(LogStore<F>),
    Runs(Arc<Node<F>>),
    /// It stopped, and did not start again.
    Failed,
    ShutDown,
}

impl<F: FileSystem> Slot<F> {
    /// The node, or why there will be none; `None` if it has to be started.
    fn running(&self) -> Option<Result<Arc<Node<F>>, SubmitError>> {
        match self {
            Self::Runs(node) if !node.has_stopped() => Some(Ok(Arc::clone(node))),
            Self::ShutDown => Some(Err(SubmitError::ShutDown)),
            Self::Runs(_) | Self::Read(_) | Self::Failed => None,
        }
    }
}

impl<F: FileSystem> Clone for MetaLog<F> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<F: FileSystem> fmt::Debug for MetaLog<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetaLog")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl<F: FileSystem> MetaLog<F> {
    /// Opens the log, or begins one. Runs on the tokio runtime that polls it.
    ///
    /// Once this returns, the only voter of a log leads it, and all that was ever committed is in the
    /// state. One of several begins with what it knew, and follows.
    ///
    /// Lock the data directory first: two of these on one directory destroy each other's work. Within a
    /// process, [shut down](Self::shut_down) the one before.
    ///
    /// # Errors
    /// [`StartError`]: nothing was changed on disk.
    pub async fn start(fs: Arc<F>, config: MetaLogConfig) -> Result<Self, StartError> {
        let log = Self::read(fs, config).await?;
        match log.inner.running().await {
            Ok(_) => Ok(log),
            Err(SubmitError::Unavailable(error)) => Err(error),
            Err(other) => Err(StartError::Failed(other.to_string())),
        }
    }

    /// Opens the log as [`start`](Self::start) does, without waiting until it can take commands, and
    /// without room on the disk: it starts behind this, or else at the next command.
    ///
    /// The only voter's state holds all that was ever committed once this returns.
    ///
    /// # Errors
    /// [`StartError::Open`]: nothing was changed on disk.
    pub async fn open(fs: Arc<F>, config: MetaLogConfig) -> Result<Self, StartError> {
        let log = Self::read(fs, config).await?;
        let inner = Arc::clone(&log.inner);
        tokio::spawn(async move {
            if let Err(error) = inner.running().await {
                tracing::warn!(%error, "the metadata's log takes no commands yet");
            }
        });
        Ok(log)
    }

    async fn read(fs: Arc<F>, config: MetaLogConfig) -> Result<Self, StartError> {
        let machine = Machine::default();
        let store = raft::read(Arc::clone(&fs), &config.store, &machine).await?;
        if config.peers.is_none() {
            if store.has_only_a_vote().await {
                return Err(OpenError::LogLost(config.store.dir).into());
            }
            machine.apply_all(store.journal());
        }
        Ok(Self {
            inner: Arc::new(Inner {
                fs,
                config,
                machine,
                node: Mutex::new(Slot::Read(store)),
            }),
        })
    }

    /// Submits a command, and returns what it did once it is committed and applied.
    ///
    /// If the log's storage had failed, the log is opened again first.
    ///
    /// # Errors
    /// [`SubmitError`] says whether the command can still take place.
    pub async fn submit(&self, command: Command) -> Result<Applied, SubmitError> {
        let delay = self.inner.config.commit_delay;
        if !delay.is_zero() {
            self.inner.config.store.clock.sleep(delay).await;
        }
        let node = self.inner.running().await?;
        match node.write(command).await {
            Ok(outcome) => Ok(outcome?),
            Err(WriteError::NotLeader { leader }) => Err(SubmitError::NotLeader {
                leader: leader.and_then(broker_id),
            }),
            Err(WriteError::Stopped(reason)) => Err(SubmitError::Unknown(reason)),
        }
    }

    /// Answers what the log of another broker asks through its [`Transport`].
    ///
    /// # Errors
    /// The request makes no sense, or the log does not run: the other one will ask again.
    pub async fn receive(&self, request: &Bytes) -> io::Result<Bytes> {
        let node = self.inner.running().await.map_err(io::Error::other)?;
        node.receive(request).await.map_err(|error| match error {
            ReceiveError::Damaged(damage) => {
                io::Error::new(io::ErrorKind::InvalidData, damage.to_string())
            }
            ReceiveError::Stopped(reason) => io::Error::other(reason),
        })
    }

    /// Who leads the log, as far as is known here.
    pub async fn leader(&self) -> Option<BrokerId> {
        match &*self.inner.node.lock().await {
            Slot::Runs(node) => node.leader().and_then(broker_id),
            Slot::Read(_) | Slot::Failed | Slot::ShutDown => None,
        }
    }

    /// The state that is applied now.
    ///
    /// While it is held, the next command copies what it changes.
    pub fn state(&self) -> Arc<MetaState> {
        Arc::clone(&self.watch().borrow())
    }

    /// Follows the state: a change is seen once it is applied, before whoever submitted it is answered.
    pub fn watch(&self) -> watch::Receiver<Arc<MetaState>> {
        self.inner.machine.watch()
    }

    /// The last entry of the log that is in the state.
    #[cfg(test)]
    pub(crate) fn applied_index(&self) -> Option<u64> {
        self.inner.machine.applied_index()
    }

    /// Stops the log, so that the next start has nothing to find out. Without it the next start finds
    /// out: nothing is lost.
    pub async fn shut_down(&self) {
        let slot = std::mem::replace(&mut *self.inner.node.lock().await, Slot::ShutDown);
        match slot {
            Slot::Runs(node) => node.stop().await,
            Slot::Read(store) => store.journal().let_go().await,
            Slot::Failed | Slot::ShutDown => {}
        }
    }
}

impl<F: FileSystem> Inner<F> {
    /// The node; a fresh one if the last has stopped.
    async fn running(self: &Arc<Self>) -> Result<Arc<Node<F>>, SubmitError> {
        if let Some(running) = self.node.lock().await.running() {
            return running;
        }
        // To its end, even if the caller goes away: what is half started may write all the same.
        let inner = Arc::clone(self);
        let started = tokio::spawn(async move { inner.start().await }).await;
        started.unwrap_or_else(|e| Err(StartError::Failed(e.to_string()).into()))
    }

    async fn start(&self) -> Result<Arc<Node<F>>, SubmitError> {
        let mut slot = self.node.lock().await;
        if let Some(running) = slot.running() {
            return running;
        }
        let (store, is_first) = match std::mem::replace(&mut *slot, Slot::Failed) {
            Slot::Read(store) => (store, true),
            before => {
                if let Slot::Runs(node) = before {
                    // The files belong to one node at a time.
                    node.stop().await;
                }
                let fs = Arc::clone(&self.fs);
                let store = raft::read(fs, &self.config.store, &self.machine).await;
                (store.map_err(StartError::from)?, false)
            }
        };
        let node = Node::start(store, &self.node_config(), &self.machine).await;
        let node = Arc::new(node.map_err(StartError::from)?);
        *slot = Slot::Runs(Arc::clone(&node));
        if !is_first {
            tracing::info!("the metadata's log runs again");
        }
        Ok(node)
    }

    fn node_config(&self) -> NodeConfig {
        let config = &self.config;
        NodeConfig {
            id: config.broker.0.into(),
            snapshot_every: config.snapshot_every,
            peers: config.peers.as_ref().map(|peers| Peers {
                voters: peers.voters.iter().map(|b| b.0.into()).collect(),
                transport: Arc::clone(&peers.transport),
                heartbeat: peers.heartbeat,
            }),
        }
    }
}

fn broker_id(node: u64) -> Option<BrokerId> {
    u32::try_from(node).ok().map(BrokerId)
}
