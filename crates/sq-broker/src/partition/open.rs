//! Opening a partition: its log, and what the log says about its producers.

use std::sync::{Arc, Mutex};

use sq_sim::FileSystem;
use sq_storage::{Damage, RecoveryReport, WalConfig, WalWriter};

use super::gather::{self, Gathering, SharedProducers};
use super::{PartitionEnv, PartitionId, snapshots};
use crate::meta::chain;

/// A partition that is ready for appends.
pub(super) struct Opened<F: FileSystem> {
    pub(super) writer: WalWriter<F>,
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
    bring_in_line(env, id, &writer).await?;
    let mut producers = gathering.finish(writer.next_offset());
    producers.table.expire(env.clock.wall_ms());
    let producers = Arc::new(Mutex::new(producers));
    writer.set_sidecar_source(gather::sidecars(&producers));
    Ok(Opened { writer, producers })
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
