//! An answer: owed, then ready to be written.

use sq_sim::FileSystem;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::budget::Held;
use crate::handlers::{Answer, ProduceFailed, Produced};
use crate::protocol::response::EncodeError;
use crate::protocol::{self, Encoded, ResponseBody};

/// An answer ready to be written, and the memory it holds until then.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) encoded: Encoded,
    memory: Held,
}

/// Why a request can't be answered. All that is left is to close the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    /// The response has no encoding.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The client wanted no response, and would take silence for success.
    #[error("a batch sent with acks=0 was not stored: {0}")]
    Silent(#[from] ProduceFailed),
    /// Our own code failed.
    #[error("a request's execution ended early: {0}")]
    Ended(String),
}

/// An answer that is owed.
#[derive(Debug)]
pub(super) struct Owed<F: FileSystem>(Kind<F>);

#[derive(Debug)]
enum Kind<F: FileSystem> {
    Ready(Encoded),
    Produced {
        produced: Produced<F>,
        version: i16,
        correlation_id: i32,
    },
    Task {
        task: Task,
        /// Tells the task that all before it is answered.
        turn: watch::Sender<bool>,
    },
}

/// A task that ends when nobody waits for it any more.
#[derive(Debug)]
struct Task(JoinHandle<Result<Reply, EncodeError>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reply {
    /// Whether it holds a part of the fetch memory.
    pub(super) fn holds_memory(&self) -> bool {
        self.memory.bytes() > 0
    }

    pub(super) fn encode(
        version: i16,
        correlation_id: i32,
        answer: Answer,
    ) -> Result<Self, EncodeError> {
        let encoded = protocol::encode(version, correlation_id, answer.body)?;
        Ok(Self {
            encoded,
            memory: answer.memory,
        })
    }
}

impl<F: FileSystem> Owed<F> {
    pub(super) fn ready(encoded: Encoded) -> Self {
        Self(Kind::Ready(encoded))
    }

    pub(super) fn produced(produced: Produced<F>, version: i16, correlation_id: i32) -> Self {
        Self(Kind::Produced {
            produced,
            version,
            correlation_id,
        })
    }

    /// The answer of a task, which is told through `turn` when all before it is answered.
    pub(super) fn task(
        task: JoinHandle<Result<Reply, EncodeError>>,
        turn: watch::Sender<bool>,
    ) -> Self {
        let task = Task(task);
        Self(Kind::Task { task, turn })
    }

    /// Waits for the answer; `None` if the client wants none.
    pub(super) async fn reply(self) -> Result<Option<Reply>, ReplyError> {
        match self.0 {
            Kind::Ready(encoded) => Ok(Some(Reply {
                encoded,
                memory: Held::nothing(),
            })),
            Kind::Produced {
                produced,
                version,
                correlation_id,
            } => {
                let is_silent = produced.is_silent();
                let outcome = produced.finish().await;
                if let Some(failure) = outcome.silent_failure {
                    return Err(failure.into());
                }
                if is_silent {
                    return Ok(None);
                }
                let body = ResponseBody::Produce(outcome.response);
                let answer = Answer {
                    body,
                    memory: Held::nothing(),
                };
                Ok(Some(Reply::encode(version, correlation_id, answer)?))
            }
            Kind::Task { mut task, turn } => {
                turn.send_replace(true);
                match (&mut task.0).await {
                    Ok(reply) => Ok(Some(reply?)),
                    Err(error) => Err(ReplyError::Ended(error.to_string())),
                }
            }
        }
    }
}
