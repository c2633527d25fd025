//! One connection: requests in, answers out in the same order.
//!
//! Two halves run side by side in one task. The reading half takes a request as soon as there is
//! memory for it and begins it: batches are queued in the order of arrival, and anything that may
//! take a while runs on its own. The writing half takes the answers in the order of the requests. So
//! a fetch that waits for data holds back the answers behind it, as the protocol wants, and the
//! execution of none of them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sq_sim::FileSystem;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::owing::{InFlight, Owing};
use super::reply::{Owed, Reply, ReplyError};
use crate::broker::Broker;
use crate::budget::{Budget, Held};
use crate::handlers::{self, Begun, Caller, FetchCursor, ReadAhead};
use crate::protocol::frame::{self, FrameError};
use crate::protocol::{self, DecodeError, write_frame};

/// Requests of one connection that are under way at a time.
const REQUESTS_AT_A_TIME: usize = 256;

/// How long a connection may be silent while nothing is owed to it. Kafka's
/// `connections.max.idle.ms`.
const MAX_IDLE: Duration = Duration::from_mins(10);

/// How long a request may take to arrive once its length has.
const MAX_ARRIVAL: Duration = Duration::from_mins(2);

/// How long a client may take over one response.
const MAX_DELIVERY: Duration = Duration::from_mins(2);

/// What a client has to send or take, in bytes a second, once others wait for the memory it holds.
const LEAST_PACE: u64 = 4 << 20;

/// For how long it may be slower than that.
const GRACE: Duration = Duration::from_secs(2);

/// How often the pace is looked at.
const PACE_CHECK: Duration = Duration::from_secs(1);

/// Why a connection ended that its client did not close between two requests.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came is no request.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A request did not arrive as a whole.
    #[error("a request of {length} bytes did not arrive within {} s", MAX_ARRIVAL.as_secs())]
    Arrival {
        /// Its length in bytes.
        length: usize,
    },
    /// Nothing came.
    #[error("nothing came for {} s", MAX_IDLE.as_secs())]
    Idle,
    /// There is no way to answer but this.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// Others waited for the memory of a request that came too slowly.
    #[error(
        "of a request of {length} bytes {arrived} had arrived after {} s, and others wait for memory",
        waited.as_secs()
    )]
    SlowArrival {
        /// Its length in bytes.
        length: usize,
        /// Bytes that had arrived.
        arrived: usize,
        /// How long they took.
        waited: Duration,
    },
    /// Others waited for the memory of a response that was taken too slowly.
    #[error(
        "a response of {length} bytes was not taken after {} s, and others wait for memory",
        waited.as_secs()
    )]
    SlowDelivery {
        /// Its length in bytes.
        length: usize,
        /// How long it was not taken.
        waited: Duration,
    },
    /// A response was not taken.
    #[error("a response of {length} bytes was not taken within {} s", MAX_DELIVERY.as_secs())]
    Delivery {
        /// Its length in bytes.
        length: usize,
    },
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ConnectionError {
    /// Whether the client just went away, which is nobody's fault.
    pub(super) fn is_the_peers_leaving(&self) -> bool {
        match self {
            Self::Io(e) | Self::Frame(FrameError::Io(e)) => matches!(
                e.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionAborted
            ),
            Self::Idle => true,
            _ => false,
        }
    }
}

/// What the halves of a connection share.
struct Connection<'a, F: FileSystem> {
    broker: &'a Arc<Broker<F>>,
    peer: SocketAddr,
    hurry: watch::Sender<bool>,
    cursor: Arc<Mutex<FetchCursor>>,
    ahead: Arc<ReadAhead>,
    /// Bytes of this connection's requests in flight.
    memory: Budget,
    owing: Owing<F>,
}

/// Serves a connection until the client closes it, something is wrong, or the broker stops.
pub(super) async fn serve<F, R, W>(
    broker: &Arc<Broker<F>>,
    peer: SocketAddr,
    reader: R,
    writer: W,
    stop: watch::Receiver<bool>,
) -> Result<(), ConnectionError>
where
    F: FileSystem,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let connection = Connection {
        broker,
        peer,
        hurry: watch::Sender::new(false),
        cursor: Arc::new(Mutex::new(FetchCursor::default())),
        ahead: Arc::default(),
        memory: Budget::new(broker.config.limits.connection_in_flight_bytes),
        owing: Owing::new(REQUESTS_AT_A_TIME),
    };
    let reading = async {
        let outcome = connection.read_all(reader, stop).await;
        // Nothing more will come: whoever waits for data is answered with what there is.
        connection.hurry.send_replace(true);
        connection.owing.end();
        outcome
    };
    let mut reading = std::pin::pin!(reading);
    let mut writing = std::pin::pin!(connection.write_all(writer));
    let mut read = None;
    std::future::poll_fn(|context| {
        loop {
            let seen = connection.owing.changes();
            if let Poll::Ready(written) = writing.as_mut().poll(context) {
                // Only an error ends the writing half before the reading one.
                return Poll::Ready(written.and_then(|()| read.take().unwrap_or(Ok(()))));
            }
            if read.is_none()
                && let Poll::Ready(outcome) = reading.as_mut().poll(context)
            {
                read = Some(outcome);
            }
            if connection.owing.changes() == seen {
                return Poll::Pending;
            }
        }
    })
    .await
}

impl<F: FileSystem> Connection<'_, F> {
    async fn read_all<R: AsyncRead + Unpin>(
        &self,
        mut reader: R,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        let mut buffer = BytesMut::new();
        loop {
            let next = tokio::select! {
                biased;
                // An error means that nobody is left who could say stop.
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                next = self.next_length(&mut reader, &mut buffer) => next?,
            };
            let Some(length) = next else { return Ok(()) };
            let (frame, own, shared) = tokio::select! {
                biased;
                arrived = self.arrival(&mut reader, &mut buffer, length) => arrived?,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let owed = self.begin(frame, shared).await?;
            let mut room = std::pin::pin!(self.owing.room());
            let has_room = tokio::select! {
                biased;
                () = &mut room => true,
                _ = stop.wait_for(|stop| *stop) => false,
            };
            if !has_room {
                // The answers before it may be waiting for data.
                self.hurry.send_replace(true);
                room.await;
            }
            self.owing.push(InFlight { owed, memory: own });
        }
    }

    /// Waits for the next request's length; `None` once the client has closed the connection.
    async fn next_length<R: AsyncRead + Unpin>(
        &self,
        reader: &mut R,
        buffer: &mut BytesMut,
    ) -> Result<Option<usize>, ConnectionError> {
        let most = self.broker.config.limits.max_frame_bytes;
        loop {
            tokio::select! {
                biased;
                length = frame::read_length(reader, buffer, most) => return Ok(length?),
                () = self.broker.clock.sleep(MAX_IDLE) => {
                    if self.owing.is_empty() {
                        return Err(ConnectionError::Idle);
                    }
                }
            }
        }
    }

    /// Reads a request whose length is known: the request, and its parts of this connection's memory
    /// and of the node's.
    async fn arrival<R: AsyncRead + Unpin>(
        &self,
        reader: &mut R,
        buffer: &mut BytesMut,
        length: usize,
    ) -> Result<(Bytes, Held, Held), ConnectionError> {
        let own = self.memory.take(length).await;
        let shared = self.broker.request_memory.take(length).await;
        let frame = self.body(reader, buffer, length).await?;
        let weight = protocol::decoded_weight(&frame);
        if weight == 0 {
            return Ok((frame, own, shared));
        }
        // Nobody else takes of this connection's memory, so no more than its own answers is waited
        // for.
        drop(own);
        let own = self.memory.take(length.saturating_add(weight)).await;
        Ok((frame, own, shared))
    }

    async fn body<R: AsyncRead + Unpin>(
        &self,
        reader: &mut R,
        buffer: &mut BytesMut,
        length: usize,
    ) -> Result<Bytes, ConnectionError> {
        let clock = &self.broker.clock;
        let begun = clock.now();
        loop {
            tokio::select! {
                biased;
                frame = frame::read_body(reader, buffer, length) => return Ok(frame?),
                () = clock.sleep(PACE_CHECK) => {}
            }
            let waited = clock.now().saturating_duration_since(begun);
            if waited >= MAX_ARRIVAL {
                return Err(ConnectionError::Arrival { length });
            }
            let arrived = buffer.len();
            if self.broker.request_memory.is_wanted() && waited > time_for(arrived) {
                return Err(ConnectionError::SlowArrival {
                    length,
                    arrived,
                    waited,
                });
            }
        }
    }

    /// Begins a request.
    async fn begin(&self, frame: Bytes, memory: Held) -> Result<Owed<F>, ConnectionError> {
        let request = match protocol::decode(frame) {
            Ok(request) => request,
            Err(
                error @ DecodeError::UnsupportedVersion {
                    answer: Some(_), ..
                },
            ) => {
                tracing::info!(peer = %self.peer, %error, "answered with what is spoken");
                return error
                    .into_answer()
                    .map(Owed::ready)
                    .ok_or(ConnectionError::Idle);
            }
            Err(error) => return Err(error.into()),
        };
        let (version, correlation_id) = (request.version, request.correlation_id);
        Ok(match handlers::begin(self.broker, request, memory).await {
            Begun::Produce(produced) => Owed::produced(produced, version, correlation_id),
            Begun::Later(request, memory) => {
                let broker = Arc::clone(self.broker);
                let (turn_sender, turn) = watch::channel(false);
                let caller = Caller {
                    hurry: self.hurry.subscribe(),
                    turn,
                    cursor: Arc::clone(&self.cursor),
                    ahead: Arc::clone(&self.ahead),
                };
                let task = tokio::spawn(async move {
                    let _memory = memory;
                    let answer = handlers::finish(&broker, &caller, *request).await;
                    Reply::encode(version, correlation_id, answer)
                });
                Owed::task(task, turn_sender)
            }
        })
    }

    async fn write_all<W: AsyncWrite + Unpin>(&self, mut writer: W) -> Result<(), ConnectionError> {
        while let Some(InFlight { owed, memory }) = self.owing.pop().await {
            let reply = owed.reply().await?;
            // A client that takes its time over answers holds no request's memory for it.
            drop(memory);
            let Some(reply) = reply else { continue };
            self.deliver(&mut writer, &reply).await?;
        }
        Ok(())
    }

    async fn deliver<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        reply: &Reply,
    ) -> Result<(), ConnectionError> {
        let length = reply.encoded.len();
        let clock = &self.broker.clock;
        let begun = clock.now();
        let mut writing = std::pin::pin!(write_frame(writer, &reply.encoded));
        loop {
            tokio::select! {
                biased;
                written = &mut writing => return Ok(written?),
                () = clock.sleep(PACE_CHECK) => {}
            }
            let waited = clock.now().saturating_duration_since(begun);
            if waited >= MAX_DELIVERY {
                return Err(ConnectionError::Delivery { length });
            }
            let is_wanted = reply.holds_memory() && self.broker.fetch_memory.is_wanted();
            if is_wanted && waited > time_for(length) {
                return Err(ConnectionError::SlowDelivery { length, waited });
            }
        }
    }
}

/// How long so many bytes may take while others wait for memory.
fn time_for(bytes: usize) -> Duration {
    let ms = (bytes as u64).saturating_mul(1000) / LEAST_PACE;
    GRACE + Duration::from_millis(ms)
}
