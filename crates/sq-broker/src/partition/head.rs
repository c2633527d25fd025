//! What a partition's log writes through: where its segments end, and who hears of it.

use std::sync::Arc;

use sq_roll::{Limits, Mode, Node, RollHandle, RollSettings, RollingWriter, SlackSettings, Start};
use sq_sim::FileSystem;
use sq_storage::log::{Append, Head};
use sq_storage::{Result, WalConfig, WalWriter};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::config::{RollConfig, RollMode};
use crate::meta::MetaSource;

/// The head of a partition's log.
#[derive(Debug)]
pub(super) enum PartitionHead<F: FileSystem> {
    /// Its segments are files, and nobody else knows of them.
    Alone(WalWriter<F>),
    /// The metadata knows of its segments: a successor is registered and prepared before it is needed.
    Rolling {
        writer: RollingWriter<F>,
        /// The task that does what rolls need behind the appends.
        driver: JoinHandle<()>,
    },
}

/// What it takes to roll through the metadata.
pub(super) struct Rolls<'a, F: FileSystem> {
    pub(super) source: MetaSource<F>,
    pub(super) start: Start,
    pub(super) node: &'a Node,
    pub(super) config: &'a RollConfig,
    /// Where successors are prepared: a file system that does not block.
    pub(super) fs: Arc<F>,
    pub(super) runtime: &'a Handle,
}

impl<F: FileSystem> PartitionHead<F> {
    /// Has a writer go on from segment to segment through the metadata.
    pub(super) fn rolling(writer: WalWriter<F>, wal: &WalConfig, rolls: Rolls<'_, F>) -> Self {
        let Rolls {
            source,
            start,
            node,
            config,
            fs,
            runtime,
        } = rolls;
        let settings = settings(config, wal, start.active.0);
        let source = Arc::new(source);
        let (writer, driver) = RollingWriter::new(writer, start, source, node, settings, fs);
        let driver = runtime.spawn(driver.run());
        Self::Rolling { writer, driver }
    }

    /// What others see of its rolls.
    pub(super) fn rolls(&self) -> Option<RollHandle<F>> {
        match self {
            Self::Alone(_) => None,
            Self::Rolling { writer, .. } => Some(writer.handle()),
        }
    }

    /// Lets go of a log that will be deleted: nothing is under way in its directory any more.
    pub(super) async fn abandon(self) {
        match self {
            Self::Alone(writer) => writer.abandon().await,
            Self::Rolling { mut writer, driver } => {
                writer.handle().delete();
                writer.writer_mut().let_go().await;
                drop(writer);
                // A panic of the driver has been told, and it does nothing more.
                let _ = driver.await;
            }
        }
    }
}

fn settings(config: &RollConfig, wal: &WalConfig, seed: u64) -> RollSettings {
    let limits = Limits::bytes(wal.max_segment_bytes).with_age(wal.max_segment_age);
    RollSettings {
        mode: match config.mode {
            RollMode::Anticipatory => Mode::Anticipatory,
            RollMode::Reactive => Mode::Reactive,
        },
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
        match self {
            Self::Alone(writer) => writer,
            Self::Rolling { writer, .. } => writer.writer(),
        }
    }

    fn writer_mut(&mut self) -> &mut WalWriter<F> {
        match self {
            Self::Alone(writer) => writer,
            Self::Rolling { writer, .. } => writer.writer_mut(),
        }
    }

    async fn append(&mut self, frames: &[Append]) -> Result<usize> {
        match self {
            Self::Alone(writer) => Head::append(writer, frames).await,
            Self::Rolling { writer, .. } => writer.append(frames).await,
        }
    }

    async fn sync(&mut self) -> Result<()> {
        match self {
            Self::Alone(writer) => writer.sync().await,
            Self::Rolling { writer, .. } => writer.sync().await,
        }
    }

    async fn close(self) -> Result<()> {
        match self {
            Self::Alone(writer) => writer.close().await,
            Self::Rolling { writer, driver } => {
                let closed = writer.close().await;
                // A panic of the driver has been told, and it does nothing more.
                let _ = driver.await;
                closed
            }
        }
    }
}
