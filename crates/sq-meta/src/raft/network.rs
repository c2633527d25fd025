//! How a node reaches the others.

use std::fmt;
use std::io;
use std::sync::Arc;

use ::bytes::Bytes;
use async_trait::async_trait;
use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Snapshot};

use super::rpc::{Answer, Request};
use super::{Types, Vote};
use crate::ids::BrokerId;

/// What carries requests between the metadata logs of brokers.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Sends a request to a broker, and returns what its [`MetaLog::receive`](crate::MetaLog::receive)
    /// gave for it. It may come late, twice or never; a caller that has waited enough drops the call.
    ///
    /// # Errors
    /// Whatever kept it from being answered.
    async fn call(&self, to: BrokerId, request: Bytes) -> io::Result<Bytes>;
}

/// The network of a node; without a transport it is alone.
#[derive(Clone, Debug)]
pub(super) struct Network(pub(super) Option<Arc<dyn Transport>>);

/// The way to one other node.
#[derive(Debug)]
pub(super) struct Peer {
    transport: Option<Arc<dyn Transport>>,
    id: u64,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Peer {
        Peer {
            transport: self.0.clone(),
            id: target,
        }
    }
}

impl Peer {
    async fn call(&self, request: &Request) -> Result<Answer, Unreachable> {
        self.try_call(request)
            .await
            .map_err(|e| Unreachable::new(&e))
    }

    async fn try_call(&self, request: &Request) -> io::Result<Answer> {
        let nobody = || io::Error::new(io::ErrorKind::NotFound, format!("no broker {}", self.id));
        let transport = self.transport.as_ref().ok_or_else(nobody)?;
        let to = BrokerId(u32::try_from(self.id).map_err(|_| nobody())?);
        let answer = transport.call(to, request.encode()).await?;
        Answer::decode(&answer).map_err(io::Error::other)
    }
}

/// An answer to another question.
fn confused() -> Unreachable {
    Unreachable::new(&io::Error::other("the answer is to another request"))
}

type Failed = RPCError<u64, BasicNode, RaftError<u64>>;

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed> {
        match self.call(&Request::Append(request)).await? {
            Answer::Append(answer) => Ok(answer),
            _ => Err(confused().into()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed> {
        match self.call(&Request::Vote(request)).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => Err(confused().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let request = Request::Snapshot(vote, snapshot.meta, *snapshot.snapshot);
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            answer = self.call(&request) => match answer? {
                Answer::Snapshot(answer) => Ok(answer),
                _ => Err(confused().into()),
            },
        }
    }
}
