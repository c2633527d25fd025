//! The listener, and what ends it.

mod connection;
mod owing;
mod reply;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sq_sim::FileSystem;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::broker::Broker;

/// How long the listener rests when it cannot accept: out of file descriptors, most often.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reads of what is left in a socket when it is closed, of up to 16 KiB each.
const MAX_DISCARDS: usize = 1024;

/// How long connections have to write what they owe once the broker stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A listener that is bound.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds an address, a name or a number and a port.
    ///
    /// # Errors
    /// The system's own.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves connections until `stop` turns true; then takes no more, answers what is under way,
    /// and closes the partitions.
    pub async fn run<F: FileSystem>(self, broker: Arc<Broker<F>>, mut stop: watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(broker.config.limits.max_connections));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                // An error means that nobody is left who could say stop.
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    broker.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                let most = broker.config.limits.max_connections;
                tracing::warn!(%peer, most, "connection refused: limits.max_connections is reached");
                continue;
            };
            let (broker, stop) = (Arc::clone(&broker), stop.clone());
            connections.spawn(async move {
                let _slot = slot;
                serve(broker, stream, peer, stop).await;
            });
        }
        drop(self.listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            () = drained => {}
            () = broker.clock.sleep(DRAIN) => {
                tracing::warn!("connections that did not take their answers are cut");
            }
        }
        connections.shutdown().await;
        broker.close().await;
    }
}

async fn serve<F: FileSystem>(
    broker: Arc<Broker<F>>,
    mut stream: TcpStream,
    peer: SocketAddr,
    stop: watch::Receiver<bool>,
) {
    // A response is one write: there is nothing that waiting could put together.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY not set");
    }
    let (reader, writer) = stream.split();
    let outcome = connection::serve(&broker, peer, reader, writer, stop).await;
    if outcome.is_ok() {
        discard_unread(&stream);
    }
    match outcome {
        Ok(()) => tracing::debug!(%peer, "connection closed"),
        Err(error) if error.is_the_peers_leaving() => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed"),
    }
}

/// Takes what a client sent and nobody will read: closing a socket that holds unread bytes resets the
/// connection, and takes away answers that were written to it.
fn discard_unread(stream: &TcpStream) {
    let mut nowhere = [0; 16 * 1024];
    for _ in 0..MAX_DISCARDS {
        if !matches!(stream.try_read(&mut nowhere), Ok(1..)) {
            return;
        }
    }
}
