//! What a log's appends go through.

use sq_sim::FileSystem;

use super::append::Append;
use crate::error::Result;
use crate::wal::WalWriter;

/// What a [`Log`](super::Log) writes through: a [`WalWriter`], or something on top of one that
/// decides where its segments end.
///
/// All calls come from whoever takes the log's turn, one at a time. A call may wait; the turn is
/// suspended then, and its thread is free for other logs. A call may be dropped at any await, when the
/// log is: nothing that was acknowledged depends on the rest of it.
pub trait Head<F: FileSystem>: Send + 'static {
    /// The writer at the bottom.
    fn writer(&self) -> &WalWriter<F>;

    /// The writer at the bottom, for what neither appends nor ends a segment.
    fn writer_mut(&mut self) -> &mut WalWriter<F>;

    /// Appends as many of `frames`, from the first on, as go into one segment with one write, and
    /// returns how many that were: at least one, unless `frames` is empty. They are as durable then as
    /// the writer's [`SyncPolicy`](crate::SyncPolicy) says.
    ///
    /// # Errors
    /// Nothing was appended; [`Error::action`](crate::Error::action) says what to do.
    fn append(&mut self, frames: &[Append]) -> impl Future<Output = Result<usize>> + Send;

    /// Makes everything durable that was acknowledged: [`WalWriter::sync`].
    ///
    /// # Errors
    /// As there.
    fn sync(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Closes the log: [`WalWriter::close`].
    ///
    /// # Errors
    /// As there.
    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

impl<F: FileSystem> Head<F> for WalWriter<F> {
    fn writer(&self) -> &WalWriter<F> {
        self
    }

    fn writer_mut(&mut self) -> &mut WalWriter<F> {
        self
    }

    async fn append(&mut self, frames: &[Append]) -> Result<usize> {
        self.append_frames(frames).await
    }

    async fn sync(&mut self) -> Result<()> {
        WalWriter::sync(self).await
    }

    async fn close(self) -> Result<()> {
        WalWriter::close(self).await
    }
}
