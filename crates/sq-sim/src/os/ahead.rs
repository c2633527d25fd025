//! Reading ahead: one thread copies from the page cache what another looks at.

use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;

use super::Executor;
use super::file::OsFile;
use crate::fs::ReadAhead;

/// How many pieces are read and not yet taken, at most.
const DEPTH: usize = 4;

/// A shorter range is read faster than a thread starts.
const LEAST_LEN: u64 = 4 << 20;

type Piece = io::Result<Bytes>;

/// Starts to read a range; `None` if it is short, or there is no thread to be had.
pub(super) fn start(
    file: Arc<OsFile>,
    executor: Executor,
    range: Range<u64>,
    piece_len: usize,
) -> Option<Box<dyn ReadAhead>> {
    if range.end.saturating_sub(range.start) < LEAST_LEN || piece_len == 0 {
        return None;
    }
    match executor {
        Executor::Inline => {
            let (sender, pieces) = mpsc::sync_channel(DEPTH);
            let work = move || read(&file, range, piece_len, |piece| sender.send(piece).is_ok());
            let thread = std::thread::Builder::new().name("sq-read-ahead".to_owned());
            let thread = Some(thread.spawn(work).ok()?);
            let pieces = Some(pieces);
            Some(Box::new(OnThread { pieces, thread }))
        }
        Executor::BlockingPool => {
            let (sender, pieces) = tokio::sync::mpsc::channel(DEPTH);
            tokio::task::spawn_blocking(move || {
                read(&file, range, piece_len, |piece| {
                    sender.blocking_send(piece).is_ok()
                });
            });
            Some(Box::new(OnPool(pieces)))
        }
    }
}

/// Reads piece by piece until the range or the file ends, something fails, or nobody wants more.
fn read(file: &OsFile, range: Range<u64>, piece_len: usize, mut give: impl FnMut(Piece) -> bool) {
    let Range { mut start, end } = range;
    while start < end {
        let left = usize::try_from(end - start).unwrap_or(usize::MAX);
        let wanted = piece_len.min(left);
        let piece = file.read(start, wanted);
        let is_last = piece.as_ref().map_or(true, |p| p.len() < wanted);
        start += wanted as u64;
        if !give(piece) || is_last {
            return;
        }
    }
}

/// On a thread of its own; whoever waits for a piece blocks their thread, as inline operations do.
#[derive(Debug)]
struct OnThread {
    pieces: Option<mpsc::Receiver<Piece>>,
    thread: Option<JoinHandle<()>>,
}

#[async_trait]
impl ReadAhead for OnThread {
    async fn next(&mut self) -> Piece {
        let pieces = self.pieces.as_ref();
        // The other end is gone once all was read.
        pieces
            .and_then(|pieces| pieces.recv().ok())
            .unwrap_or(Ok(Bytes::new()))
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        // Which ends the thread, at its next piece.
        self.pieces = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, nobody is left to be told.
            let _ = thread.join();
        }
    }
}

/// On tokio's blocking pool.
#[derive(Debug)]
struct OnPool(tokio::sync::mpsc::Receiver<Piece>);

#[async_trait]
impl ReadAhead for OnPool {
    async fn next(&mut self) -> Piece {
        self.0.recv().await.unwrap_or(Ok(Bytes::new()))
    }
}
