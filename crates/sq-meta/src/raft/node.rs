//! A node: openraft on our storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use openraft::error::{ClientWriteError, InitializeError, RaftError};
use openraft::{BasicNode, Config, Raft, ServerState, Snapshot, SnapshotPolicy};
use sq_sim::FileSystem;

use super::network::{Network, Transport};
use super::rpc::{Answer, Request};
use super::{Journal, LogStore, Machine, OpenError, Outcome, Types};
use crate::codec::{Damage, snapshot};
use crate::command::{Command, Refusal};

/// How many entries that a snapshot holds are kept all the same, for a follower that is a little behind.
const ENTRIES_BEHIND_SNAPSHOT: u64 = 256;

/// How many entries go into one request.
const ENTRIES_PER_REQUEST: u64 = 64;

#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) id: u64,
    /// How many entries make a snapshot worth while.
    pub(crate) snapshot_every: u64,
    /// None for the only voter there is.
    pub(crate) peers: Option<Peers>,
}

/// The others.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    /// Every voter, this node too. Only a log that is empty is begun with them.
    pub(crate) voters: BTreeSet<u64>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) heartbeat: Duration,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}")]
    Failed(String),
}

impl NodeError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why a command has no outcome.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Another node leads, or none. The command was not taken.
    #[error("this node does not lead")]
    NotLeader { leader: Option<u64> },
    /// The node stopped. The command may be in the log or not.
    #[error("{0}")]
    Stopped(String),
}

/// Why another node's request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error(transparent)]
    Damaged(#[from] Damage),
    #[error("{0}")]
    Stopped(String),
}

pub(crate) struct Node<F: FileSystem> {
    raft: Raft<Types>,
    journal: Journal<F>,
}

impl<F: FileSystem> Node<F> {
    /// Starts a node on what was [read](super::read). The only voter there is leads once this returns,
    /// and all that was committed before is applied; one of several will find out who leads.
    ///
    /// # Errors
    /// Nothing writes to the node's files any more.
    pub(crate) async fn start(
        store: LogStore<F>,
        config: &NodeConfig,
        machine: &Machine,
    ) -> Result<Self, NodeError> {
        let journal = store.journal().clone();
        let started = Self::start_on(store, config, machine).await;
        if started.is_err() {
            journal.let_go().await;
        }
        started
    }

    async fn start_on(
        store: LogStore<F>,
        config: &NodeConfig,
        machine: &Machine,
    ) -> Result<Self, NodeError> {
        store.settle().await.map_err(OpenError::from)?;
        let journal = store.journal().clone();
        let transport = config.peers.as_ref().map(|p| Arc::clone(&p.transport));
        let raft = Raft::new(
            config.id,
            Arc::new(raft_config(config)?),
            Network(transport),
            store,
            machine.on(&journal),
        );
        let node = Self {
            raft: raft.await.map_err(NodeError::failed)?,
            journal,
        };
        let begun = match &config.peers {
            None => node.lead(config.id).await,
            Some(peers) => node.join(peers).await,
        };
        if begun.is_err() {
            node.stop().await;
        }
        begun.map(|()| node)
    }

    /// Every voter may begin the same log: the first to be elected does.
    async fn join(&self, peers: &Peers) -> Result<(), NodeError> {
        let initialized = self.raft.is_initialized().await;
        if !initialized.map_err(NodeError::failed)? {
            let voters = peers.voters.iter().map(|id| (*id, BasicNode::default()));
            let begun = self
                .raft
                .initialize(voters.collect::<BTreeMap<_, _>>())
                .await;
            match begun {
                Err(RaftError::Fatal(fatal)) => return Err(NodeError::failed(fatal)),
                // Another one was faster, and this log is no longer empty.
                Err(RaftError::APIError(InitializeError::NotAllowed(_))) | Ok(()) => {}
                Err(other) => return Err(NodeError::failed(other)),
            }
        }
        Ok(())
    }

    async fn lead(&self, id: u64) -> Result<(), NodeError> {
        if !self
            .raft
            .is_initialized()
            .await
            .map_err(NodeError::failed)?
        {
            let me = BTreeMap::from([(id, BasicNode::default())]);
            self.raft.initialize(me).await.map_err(NodeError::failed)?;
        } else if self.raft.metrics().borrow().state != ServerState::Leader {
            self.raft
                .trigger()
                .elect()
                .await
                .map_err(NodeError::failed)?;
        }
        let wait = self.raft.wait(None);
        let leads = wait.state(ServerState::Leader, "to lead").await;
        leads.map_err(NodeError::failed)?;
        // What was committed before is applied behind this node's back, and the position that was
        // written down lags. When this entry is applied, which changes nothing, all before it is.
        let barrier = self.write(Command::SkipProducerIds { below: 0 }).await;
        barrier.map(drop).map_err(NodeError::failed)
    }

    pub(crate) async fn write(
        &self,
        command: Command,
    ) -> Result<Result<crate::command::Applied, Refusal>, WriteError> {
        match self.raft.client_write(command).await {
            Ok(response) => match response.data {
                Outcome::Command(outcome) => Ok(outcome),
                Outcome::Own => Err(WriteError::Stopped("no command was applied".to_owned())),
            },
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(WriteError::NotLeader {
                    leader: forward.leader_id,
                })
            }
            Err(other) => Err(WriteError::Stopped(other.to_string())),
        }
    }

    /// Answers another node.
    pub(crate) async fn receive(&self, request: &Bytes) -> Result<Bytes, ReceiveError> {
        let stopped = |e: &dyn std::fmt::Display| ReceiveError::Stopped(e.to_string());
        let answer = match Request::decode(request)? {
            Request::Append(request) => {
                let answer = self.raft.append_entries(request).await;
                Answer::Append(answer.map_err(|e| stopped(&e))?)
            }
            Request::Vote(request) => {
                let answer = self.raft.vote(request).await;
                Answer::Vote(answer.map_err(|e| stopped(&e))?)
            }
            Request::Snapshot(vote, meta, bytes) => {
                // One that can't be read would stop the node.
                snapshot::decode(&bytes)?;
                let snapshot = Snapshot {
                    meta,
                    snapshot: Box::new(bytes),
                };
                let answer = self.raft.install_full_snapshot(vote, snapshot).await;
                Answer::Snapshot(answer.map_err(|e| stopped(&e))?)
            }
        };
        Ok(answer.encode())
    }

    /// Who leads, as far as this node knows.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow().current_leader
    }

    /// Whether it takes no more commands: its storage failed.
    pub(crate) fn has_stopped(&self) -> bool {
        self.raft.metrics().borrow().running_state.is_err()
    }

    /// Stops it. Nothing writes to its files any more once this returns.
    pub(crate) async fn stop(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "the metadata's log did not stop cleanly");
        }
        if let Err(error) = self.journal.retire().await {
            tracing::warn!(%error, "the metadata's journal was not closed cleanly");
        }
    }
}

fn raft_config(config: &NodeConfig) -> Result<Config, NodeError> {
    let mut raft = Config {
        cluster_name: "sq".to_owned(),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every),
        max_in_snapshot_log_to_keep: ENTRIES_BEHIND_SNAPSHOT,
        max_payload_entries: ENTRIES_PER_REQUEST,
        // Who is alone waits for nobody: no timer runs.
        enable_tick: config.peers.is_some(),
        ..Config::default()
    };
    if let Some(peers) = &config.peers {
        let heartbeat = u64::try_from(peers.heartbeat.as_millis()).unwrap_or(u64::MAX);
        raft.heartbeat_interval = heartbeat;
        raft.election_timeout_min = heartbeat.saturating_mul(5);
        raft.election_timeout_max = heartbeat.saturating_mul(10);
        raft.install_snapshot_timeout = raft.election_timeout_max;
    }
    raft.validate().map_err(NodeError::failed)
}
