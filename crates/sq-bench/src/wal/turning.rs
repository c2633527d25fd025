//! A log that goes on in prepared segments, whatever becomes of those behind it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use sq_sim::{Clock as _, OsFileSystem, SystemClock};
use sq_storage::log::{Log, LogConfig};
use sq_storage::{Maintenance, Preparation, Removal, Spares, WalWriter};

use super::sq::{Chores, batch, writer_with};

/// How often such a log is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What becomes of the segments behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// Nothing.
    Kept,
    /// They are purged as soon as they are closed, and their files removed.
    Removed,
    /// They are purged as soon as they are closed, and their files become the next successors.
    WrittenAgain,
}

/// A log, and the thread that does what no append has to wait for.
#[derive(Debug)]
pub(super) struct Turning {
    pub(super) log: Log<OsFileSystem>,
    _turns: Chores,
}

impl Turning {
    pub(super) fn open(
        dir: &Path,
        config: LogConfig,
        segment_bytes: u64,
        past: Past,
    ) -> Result<Self> {
        let spares = match past {
            Past::Kept | Past::Removed => Spares::none(),
            Past::WrittenAgain => Spares::default(),
        };
        let writer = writer_with(dir, segment_bytes, spares)?;
        let (chores, removal) = (writer.maintenance(), writer.removal());
        let log = Log::new(writer, config);
        let turns = turn(log.clone(), chores, removal, past);
        Ok(Self {
            log,
            _turns: Chores::spawn(turns)?,
        })
    }

    /// One that has come to write files again.
    pub(super) fn written_again(dir: &Path, config: LogConfig, segment_bytes: u64) -> Result<Self> {
        let turning = Self::open(dir, config, segment_bytes, Past::WrittenAgain)?;
        turning.write(4 * segment_bytes)?;
        Ok(turning)
    }

    /// Appends so many bytes, 1 MiB at a time.
    pub(super) fn write(&self, bytes: u64) -> Result<()> {
        let piece = Bytes::from(vec![0x5a; 1 << 20]);
        for _ in 0..bytes >> 20 {
            let piece = batch(std::slice::from_ref(&piece))?;
            self.log.append_batches_blocking(vec![piece])?;
        }
        Ok(())
    }
}

/// Has a log go on in prepared segments, and does what is to become of those behind it.
async fn turn(
    log: Log<OsFileSystem>,
    chores: Maintenance<OsFileSystem>,
    removal: Removal<OsFileSystem>,
    past: Past,
) {
    loop {
        // What fails is said where it does, and tried again.
        let _ = chores.run().await;
        let looked = log.with_writer(move |writer, _| Box::pin(look(writer.as_mut(), past)));
        let Ok(preparation) = looked.await else {
            return;
        };
        // A file that is to be written again is one before the next is prepared; to free one takes long.
        let (removed, armed) = if past == Past::WrittenAgain {
            let removed = removal.run().await;
            (removed, arm(&log, preparation).await)
        } else {
            tokio::join!(removal.run(), arm(&log, preparation))
        };
        drop(removed);
        if armed.is_none() {
            return;
        }
        SystemClock.sleep(LOOK_EVERY).await;
    }
}

/// Lets go of segments but the last, if that is to be, and says what it takes to prepare the next.
async fn look(
    writer: Option<&mut WalWriter<OsFileSystem>>,
    past: Past,
) -> Option<Preparation<OsFileSystem>> {
    let writer = writer?;
    let active = writer.active_segment()?;
    if !writer.take_closed().is_empty() && past != Past::Kept {
        // Tried again with the next one.
        let _ = writer.purge_to(active.base_offset).await;
    }
    writer.armed().is_none().then(|| writer.preparation(None))
}

/// Prepares what there is to prepare; `None` once the log is closed.
async fn arm(
    log: &Log<OsFileSystem>,
    preparation: Option<Preparation<OsFileSystem>>,
) -> Option<()> {
    let Some(preparation) = preparation else {
        return Some(());
    };
    let Ok(prepared) = preparation.run().await else {
        return Some(());
    };
    let arm = log.with_writer(|writer, _| {
        let armed = writer.as_mut().map(|writer| writer.arm(prepared).is_ok());
        Box::pin(async move { armed })
    });
    arm.await.ok().map(drop)
}
