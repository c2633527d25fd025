//! Opening a partition: its log, and what the log says about its producers.

use std::sync::{Arc, Mutex};

use sq_roll::{Epoch, LocalSource, Start};
use sq_sim::FileSystem;
use sq_storage::{Damage, RecoveryReport, WalConfig, WalWriter};

use super::gather::{self, Gathering, SharedProducers};
use super::head::PartitionHead;
use super::{LEADER_EPOCH, PartitionEnv, PartitionId, snapshots};
use crate::meta::{MetaSource, chain};

/// A partition that is ready for appends.
pub(super) struct Opened<F: FileSystem> {
    pub(super) head: PartitionHead<F>,
    pub(super) producers: SharedProducers,
}

/// Opens the log, which brings its producers back. Fails with the reason, in words.
pub(super) async fn open<F: FileSystem>(
    env: &PartitionEnv<F>,
    id: &PartitionId,
    config: WalConfig,
) -> Result<Opened<F>, String> {
    let (fs, clock) = (Arc::clone(&env.appends.fs), Arc::clone(&env.clock));
    let (topic, partition, limits) = (id.topic.clone(), id.partition, env.limits.producers);
    let directory = config.data_dir.join(topic.as_str());
    let directory = directory.join(partition.to_string());
    let mut earlier = snapshots::load(&*env.fs, &directory, id, limits)
        .await
        .map_err(|e| format!("producer snapshots in {}: {e}", directory.display()))?;
    let mut gathering = Gathering::new(limits, earlier.newest.take());
    let mut writer = WalWriter::visited(fs, config, topic, partition, clock, &mut gathering)
        .await
        .map_err(|e| e.to_string())?;
    if gathering.has_sidecar {
        earlier.remove(&*env.fs).await;
    }
    report(id, writer.recovery_report());
    let mut producers = gathering.finish(writer.next_offset());
    producers.table.expire(env.clock.wall_ms());
    let producers = Arc::new(Mutex::new(producers));
    writer.set_sidecar_source(gather::sidecars(&producers));
    let head = head(env, id, writer).await?;
    Ok(Opened { head, producers })
}

/// Has the log roll from now on, through the metadata if that knows of it. It is to follow first what the
/// log holds.
async fn head<F: FileSystem>(
    env: &PartitionEnv<F>,
    id: &PartitionId,
    writer: WalWriter<F>,
) -> Result<PartitionHead<F>, String> {
    let Some(metadata) = &env.metadata else {
        let start = Start::resume(&writer, Epoch(LEADER_EPOCH));
        return Ok(PartitionHead::new(env, writer, start, LocalSource));
    };
    let known = metadata.partition_id(&id.topic, id.partition);
    let known = known.ok_or("its topic is deleted")?;
    let start = chain::resume(metadata, known, &writer)
        .await
        .map_err(|e| e.to_string())?;
    let source = MetaSource::new(metadata.clone(), known, writer.reader());
    Ok(PartitionHead::new(env, writer, start, source))
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
