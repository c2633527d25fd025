//! Reading ahead: what one thread looks at, others copy from the page cache.

use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;

use super::Executor;
use super::file::OsFile;
use crate::fs::ReadAhead;

/// How many pieces each thread has read that are not yet taken, at most.
const DEPTH: usize = 2;

/// Copying takes longer than looking, so two threads share it.
const LANES: usize = 2;

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
            let mut lanes = Vec::with_capacity(LANES);
            for lane in 0..LANES {
                let (sender, pieces) = mpsc::sync_channel(DEPTH);
                let (file, plan) = (Arc::clone(&file), Plan::new(&range, piece_len, lane, LANES));
                let work = move || read(&file, &plan, |piece| sender.send(piece).is_ok());
                let thread = std::thread::Builder::new().name("sq-read-ahead".to_owned());
                let thread = Some(thread.spawn(work).ok()?);
                let pieces = Some(pieces);
                lanes.push(Lane { pieces, thread });
            }
            Some(Box::new(OnThreads { lanes, next: 0 }))
        }
        Executor::BlockingPool => {
            let (sender, pieces) = tokio::sync::mpsc::channel(DEPTH);
            tokio::task::spawn_blocking(move || {
                let plan = Plan::new(&range, piece_len, 0, 1);
                read(&file, &plan, |piece| sender.blocking_send(piece).is_ok());
            });
            Some(Box::new(OnPool(pieces)))
        }
    }
}

/// The pieces that one thread reads: every so many-th of a range.
struct Plan {
    start: u64,
    end: u64,
    piece_len: usize,
    step: u64,
}

impl Plan {
    fn new(range: &Range<u64>, piece_len: usize, lane: usize, lanes: usize) -> Self {
        let len = piece_len as u64;
        Self {
            start: range.start.saturating_add(len.saturating_mul(lane as u64)),
            end: range.end,
            piece_len,
            step: len.saturating_mul(lanes as u64),
        }
    }
}

/// Reads piece by piece until the range or the file ends, something fails, or nobody wants more.
fn read(file: &OsFile, plan: &Plan, mut give: impl FnMut(Piece) -> bool) {
    let mut start = plan.start;
    while start < plan.end {
        let left = usize::try_from(plan.end - start).unwrap_or(usize::MAX);
        let wanted = plan.piece_len.min(left);
        let piece = file.read(start, wanted);
        let is_last = piece.as_ref().map_or(true, |p| p.len() < wanted);
        start = start.saturating_add(plan.step);
        if !give(piece) || is_last {
            return;
        }
    }
}

/// On threads of their own, which take turns; whoever waits for a piece blocks their thread, as inline
/// operations do.
#[derive(Debug)]
struct OnThreads {
    lanes: Vec<Lane>,
    /// Whose piece is the next one.
    next: usize,
}

#[derive(Debug)]
struct Lane {
    pieces: Option<mpsc::Receiver<Piece>>,
    thread: Option<JoinHandle<()>>,
}

#[async_trait]
impl ReadAhead for OnThreads {
    async fn next(&mut self) -> Piece {
        let lane = self.lanes.get(self.next);
        self.next = (self.next + 1) % self.lanes.len().max(1);
        // The other end is gone once all was read.
        let pieces = lane.and_then(|lane| lane.pieces.as_ref());
        let piece = pieces.and_then(|pieces| pieces.recv().ok());
        let piece = piece.unwrap_or(Ok(Bytes::new()));
        if piece.as_ref().map_or(true, Bytes::is_empty) {
            // Behind the end, and behind a failure, there is nothing.
            self.lanes.clear();
        }
        piece
    }
}

impl Drop for Lane {
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
