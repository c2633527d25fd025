//! Rolls through the metadata: what it is told of a partition's segments, and what it answers.

use async_trait::async_trait;
use sq_meta::{
    Applied, Command, LinkState, NewSegment, PartitionId, Refusal, ReplicaSet, SegmentId,
};
use sq_roll::{Epoch, Request, Seal, SourceError, SuccessorSource, Ticket};
use sq_sim::FileSystem;
use sq_storage::LogReader;

use super::chain::{self, ChainError};
use super::{MetaError, Metadata};

/// How often a successor that is in the way of the one asked for is given up within one call.
const TRIES: u32 = 3;

/// The metadata as one partition's leader speaks to it. No append waits for any of this.
///
/// What a call asked for is in the metadata once it returns. A call that is repeated finds it there; one
/// that is late, so that the leader has gone on meanwhile, is refused by the guards of the command, and
/// changes nothing.
#[derive(Debug)]
pub struct MetaSource<F: FileSystem> {
    metadata: Metadata<F>,
    partition: PartitionId,
    log: LogReader<F>,
}

impl<F: FileSystem> MetaSource<F> {
    /// Speaks for the leader of a partition, whose log this is.
    pub fn new(metadata: Metadata<F>, partition: PartitionId, log: LogReader<F>) -> Self {
        Self {
            metadata,
            partition,
            log,
        }
    }

    /// Registers a successor, and gives the one that the metadata has then.
    async fn register(
        &self,
        successor: Ticket,
        predecessor: SegmentId,
    ) -> Result<SegmentId, MetaError> {
        let state = self.metadata.state();
        let attempt = state.partition(self.partition).map_or(0, |p| p.attempt);
        drop(state);
        let command = Command::PrepareSegment {
            partition: self.partition,
            epoch: successor.epoch.0,
            predecessor,
            attempt,
            successor: NewSegment {
                id: id(successor.segment),
                replicas: ReplicaSet::of(self.metadata.broker()),
            },
        };
        match self.metadata.submit(command).await? {
            Applied::Prepared { successor, .. } => Ok(successor.id),
            _ => Ok(id(successor.segment)),
        }
    }

    /// Registers a successor in the place of whatever is prepared.
    async fn prepare_alone(
        &self,
        successor: Ticket,
        predecessor: SegmentId,
    ) -> Result<(), SourceError> {
        for _ in 0..TRIES {
            let registered = self
                .register(successor, predecessor)
                .await
                .map_err(failure)?;
            if registered == id(successor.segment) {
                return Ok(());
            }
            // A proposal that came late, of a successor that the leader has given up since.
            let other = Ticket {
                segment: sq_roll::SegmentId(registered.0),
                ..successor
            };
            self.abandon(other).await?;
        }
        Err(retry("another successor is registered again and again"))
    }

    /// Has the metadata follow a log that it is behind, as after a start in which it took no commands.
    async fn follow(&self) -> Result<(), SourceError> {
        let followed = chain::follow(&self.metadata, self.partition, &self.log).await;
        followed.map(drop).map_err(|error| match error {
            ChainError::Unknown(_) => SourceError::Deleted,
            ChainError::Meta(error) => failure(error),
            error @ (ChainError::NotOurs | ChainError::Lost { .. }) => {
                SourceError::Retry(Box::new(error))
            }
        })
    }

    /// Whether a segment begins there, as far as the metadata knows.
    fn is_bound(&self, segment: sq_roll::SegmentId, at: u64) -> bool {
        let state = self.metadata.state();
        let partition = state.partition(self.partition);
        let link = partition.and_then(|p| p.find(id(segment)));
        link.is_some_and(|link| match link.state {
            LinkState::Sealed { base, .. } | LinkState::Active { base } => base == at,
            LinkState::Prepared => false,
        })
    }

    async fn seal(&self, seal: Seal) -> Result<(), MetaError> {
        let command = Command::SealSegment {
            partition: self.partition,
            epoch: seal.segment.epoch.0,
            segment: id(seal.segment.segment),
            end: seal.end,
            successor: id(seal.successor),
        };
        self.metadata.submit(command).await.map(drop)
    }
}

#[async_trait]
impl<F: FileSystem> SuccessorSource for MetaSource<F> {
    async fn prepare(&self, request: Request) -> Result<(), SourceError> {
        let (successor, predecessor) = (request.successor, id(request.predecessor));
        match self.prepare_alone(successor, predecessor).await {
            Err(SourceError::Retry(error)) if is_behind(&*error) => {
                self.follow().await?;
                self.prepare_alone(successor, predecessor).await
            }
            outcome => outcome,
        }
    }

    async fn sealed(&self, seal: Seal) -> Result<(), SourceError> {
        match self.seal(seal).await {
            Err(MetaError::Refused(Refusal::NotActive { .. })) => {
                self.follow().await?;
                if !self.is_bound(seal.successor, seal.end) {
                    self.seal(seal).await.map_err(failure)?;
                }
            }
            Err(MetaError::Refused(Refusal::SealedOtherwise { end, .. })) if end == seal.end => {}
            Err(MetaError::Refused(Refusal::NotPrepared(_))) => {
                let (segment, successor) = (seal.segment, seal.successor);
                let successor = Ticket {
                    segment: successor,
                    ..segment
                };
                self.prepare_alone(successor, id(segment.segment)).await?;
                self.seal(seal).await.map_err(failure)?;
            }
            outcome => outcome.map_err(failure)?,
        }
        // What retention took since the last roll. The next one says it again.
        if let Err(error) = self.follow().await {
            tracing::debug!(partition = %self.partition, %error, "the log start is not known yet");
        }
        Ok(())
    }

    async fn abandon(&self, successor: Ticket) -> Result<(), SourceError> {
        let command = Command::AbandonSegment {
            partition: self.partition,
            epoch: successor.epoch.0,
            segment: id(successor.segment),
        };
        match self.metadata.submit(command).await {
            Err(MetaError::Refused(Refusal::NotPrepared(_))) => Ok(()),
            outcome => outcome.map(drop).map_err(failure),
        }
    }
}

fn id(segment: sq_roll::SegmentId) -> SegmentId {
    SegmentId(segment.0)
}

fn retry(reason: &'static str) -> SourceError {
    SourceError::Retry(reason.into())
}

/// Whether the metadata lacks segments that the log holds.
fn is_behind(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(
        error.downcast_ref(),
        Some(MetaError::Refused(Refusal::NotActive { .. }))
    )
}

/// What a leader is to make of a command that did not do what it says.
fn failure(error: MetaError) -> SourceError {
    match error {
        MetaError::Refused(Refusal::Epoch { given, current }) if current > given => {
            SourceError::Fenced(Epoch(current))
        }
        MetaError::Refused(Refusal::NotElected(epoch)) => SourceError::Fenced(Epoch(epoch)),
        MetaError::Refused(Refusal::UnknownPartition(_)) => SourceError::Deleted,
        MetaError::Refused(Refusal::SegmentIdTaken(_) | Refusal::SealedOtherwise { .. }) => {
            SourceError::Final(Box::new(error))
        }
        error => SourceError::Retry(Box::new(error)),
    }
}
