//! A node: openraft on our storage.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::error::{ClientWriteError, RaftError};
use openraft::{BasicNode, Config, Raft, ServerState, SnapshotPolicy};
use sq_sim::FileSystem;

use super::network::Alone;
use super::{Journal, Machine, OpenError, Outcome, StoreConfig, Types, open};
use crate::command::{Command, Refusal};

/// How many entries that a snapshot holds are kept all the same, for a follower that is a little behind.
const ENTRIES_BEHIND_SNAPSHOT: u64 = 256;

#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) id: u64,
    pub(crate) store: StoreConfig,
    /// How many entries make a snapshot worth while.
    pub(crate) snapshot_every: u64,
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

pub(crate) struct Node<F: FileSystem> {
    raft: Raft<Types>,
    journal: Journal<F>,
}

impl<F: FileSystem> Node<F> {
    /// Starts the only voter there is. Once this returns it leads, and all that was committed before
    /// is applied.
    pub(crate) async fn start_alone(
        fs: Arc<F>,
        config: &NodeConfig,
        machine: &Machine,
    ) -> Result<Self, NodeError> {
        let store = open(fs, &config.store, machine).await?;
        let journal = store.journal().clone();
        let raft = Raft::new(
            config.id,
            Arc::new(raft_config(config)?),
            Alone,
            store,
            machine.on(&journal),
        );
        let node = Self {
            raft: raft.await.map_err(NodeError::failed)?,
            journal,
        };
        let lead = node.lead(config.id).await;
        if lead.is_err() {
            node.stop().await;
        }
        lead.map(|()| node)
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
    let config = Config {
        cluster_name: "sq".to_owned(),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every),
        max_in_snapshot_log_to_keep: ENTRIES_BEHIND_SNAPSHOT,
        // Who is alone waits for nobody: no timer runs.
        enable_tick: false,
        ..Config::default()
    };
    config.validate().map_err(NodeError::failed)
}
