//! Opening a partition: its log, and what the log says about its producers.

use std::path::PathBuf;
use std::sync::Arc;

use sq_sim::FileSystem;
use sq_storage::frame::FrameKind;
use sq_storage::{Damage, LogReader, ReadError, RecoveryReport, StoredFrame, WalConfig, WalWriter};

use super::{PartitionEnv, PartitionId, snapshots};
use crate::batch::{BatchHeader, HEADER_LEN};
use crate::meta::chain;
use crate::producers::{ProducerStamp, ProducerTable};

/// How much of the log is read at a time while producers are gathered from it, in bytes.
const REPLAY_BYTES: usize = 1 << 20;

/// A partition that is ready for appends.
pub(super) struct Opened<F: FileSystem> {
    pub(super) writer: WalWriter<F>,
    /// Where its files are.
    pub(super) directory: PathBuf,
    pub(super) producers: ProducerTable,
    /// Where the producer snapshot ends that was taken for it, if one was.
    pub(super) snapshot: Option<u64>,
}

/// Opens the log and brings the producers up to its end. Fails with the reason, in words.
pub(super) async fn open<F: FileSystem>(
    env: &PartitionEnv<F>,
    id: &PartitionId,
    config: WalConfig,
) -> Result<Opened<F>, String> {
    let (fs, clock) = (Arc::clone(&env.appends.fs), Arc::clone(&env.clock));
    let writer = WalWriter::with_clock(fs, config, id.topic.clone(), id.partition, clock)
        .await
        .map_err(|e| e.to_string())?;
    report(id, writer.recovery_report());
    bring_in_line(env, id, &writer).await?;
    let directory = writer.dir().to_owned();
    let reader = writer.reader_through(Arc::clone(&env.fs));
    let limits = env.limits.producers;
    let snapshot = snapshots::load(&*env.fs, &directory, id, reader.end_offset(), limits)
        .await
        .map_err(|e| format!("producer snapshots in {}: {e}", directory.display()))?;
    let newest = snapshot.as_ref().map(|(_, end)| *end);
    let (mut producers, from) =
        snapshot.unwrap_or_else(|| (ProducerTable::new(limits), reader.start_offset()));
    replay(&reader, from.max(reader.start_offset()), id, &mut producers)
        .await
        .map_err(|e| format!("gathering producers: {e}"))?;
    producers.expire(env.clock.wall_ms());
    Ok(Opened {
        writer,
        directory,
        producers,
        snapshot: newest,
    })
}

/// Has the metadata follow what the log holds.
async fn bring_in_line<F: FileSystem>(
    env: &PartitionEnv<F>,
    id: &PartitionId,
    writer: &WalWriter<F>,
) -> Result<(), String> {
    let Some(metadata) = &env.metadata else {
        return Ok(());
    };
    let known = metadata.partition_id(&id.topic, id.partition);
    let known = known.ok_or("its topic is deleted")?;
    let resumed = chain::resume(metadata, known, writer).await;
    resumed.map(drop).map_err(|e| e.to_string())
}

/// Says what opening found that someone may have to look at.
fn report(id: &PartitionId, report: &RecoveryReport) {
    for Damage {
        path,
        position,
        offsets,
        reason,
        evidence,
    } in &report.damage
    {
        let path = path.display();
        tracing::error!(%id, %path, position, ?offsets, %reason, %evidence,
            "acknowledged records are damaged; what is around them is served");
    }
    if let Some(tail) = &report.unacknowledged_tail {
        let path = tail.path.display();
        tracing::warn!(%id, %path, position = tail.position, offset = tail.offset,
            "the log ends in a write that was cut short; it is left in its file");
    }
}

/// Takes in the header of every batch from `offset` on.
async fn replay<F: FileSystem>(
    reader: &LogReader<F>,
    mut offset: u64,
    id: &PartitionId,
    producers: &mut ProducerTable,
) -> Result<(), ReadError> {
    while offset < reader.end_offset() {
        match reader.read(offset, REPLAY_BYTES).await {
            Ok(frames) => {
                let Some(last) = frames.last() else {
                    return Ok(());
                };
                let next = last.end_offset();
                for frame in frames.iter().filter(|f| f.base_offset >= offset) {
                    record(frame, producers);
                }
                offset = next;
            }
            Err(ReadError::Damaged(error)) => {
                // What the damaged part held of producers is lost, and what lies behind it is not.
                tracing::error!(%id, offset, %error, "damage passed over while gathering producers");
                offset = reader.skip_damage(offset).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn record(frame: &StoredFrame, producers: &mut ProducerTable) {
    if frame.kind != FrameKind::Batch {
        return;
    }
    let header = BatchHeader::parse(&frame.payload.head(HEADER_LEN));
    if let Some(stamp) = header.as_ref().and_then(ProducerStamp::of) {
        producers.record(&stamp, frame.base_offset, frame.append_time_ms);
    }
}
