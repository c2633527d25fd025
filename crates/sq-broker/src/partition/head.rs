//! What a partition's log writes through, and who is at work beside it.

use std::sync::Arc;

use sq_roll::{
    Limits, RollHandle, RollSettings, RollingWriter, SlackSettings, Start, SuccessorSource,
};
use sq_sim::FileSystem;
use sq_storage::log::{Append, Head};
use sq_storage::{Result, WalConfig, WalWriter};
use tokio::task::JoinHandle;

use super::PartitionEnv;
use crate::config::RollConfig;

/// The head of a partition's log: a successor is prepared before it is needed.
#[derive(Debug)]
pub(super) struct PartitionHead<F: FileSystem> {
    writer: RollingWriter<F>,
    /// The task that does what rolls need behind the appends.
    driver: JoinHandle<()>,
}

impl<F: FileSystem> PartitionHead<F> {
    /// Has a writer go on from segment to segment, as `source` says.
    pub(super) fn new<S: SuccessorSource>(
        env: &PartitionEnv<F>,
        writer: WalWriter<F>,
        start: Start,
        source: S,
    ) -> Self {
        let settings = settings(&env.roll, writer.config(), start.active.0);
        // Appends may have a file system that blocks, and successors are prepared beside them.
        let fs = Arc::clone(&env.fs);
        let source = Arc::new(source);
        let (writer, driver) = RollingWriter::new(writer, start, source, &env.node, settings, fs);
        let driver = env.runtime.spawn(driver.run());
        Self { writer, driver }
    }

    /// What others see of its rolls.
    pub(super) fn rolls(&self) -> RollHandle<F> {
        self.writer.handle()
    }

    /// Lets go of a log that will be deleted: nothing is under way in its directory any more.
    pub(super) async fn abandon(self) {
        let Self { mut writer, driver } = self;
        writer.handle().delete();
        writer.writer_mut().let_go().await;
        drop(writer);
        // A panic of the driver has been told, and it does nothing more.
        let _ = driver.await;
    }
}

fn settings(config: &RollConfig, wal: &WalConfig, seed: u64) -> RollSettings {
    let limits = Limits::bytes(wal.max_segment_bytes).with_age(wal.max_segment_age);
    RollSettings {
        mode: config.mode,
        slack: SlackSettings {
            soft_mark: config.soft_mark,
            ..SlackSettings::default()
        },
        longest_wait: config.longest_wait,
        kept_records: config.kept_records,
        seed,
        ..RollSettings::new(limits)
    }
}

impl<F: FileSystem> Head<F> for PartitionHead<F> {
    fn writer(&self) -> &WalWriter<F> {
        self.writer.writer()
    }

    fn writer_mut(&mut self) -> &mut WalWriter<F> {
        self.writer.writer_mut()
    }

    async fn append(&mut self, frames: &[Append]) -> Result<usize> {
        self.writer.append(frames).await
    }

    async fn sync(&mut self) -> Result<()> {
        self.writer.sync().await
    }

    async fn close(self) -> Result<()> {
        let closed = self.writer.close().await;
        // A panic of the driver has been told, and it does nothing more.
        let _ = self.driver.await;
        closed
    }
}
