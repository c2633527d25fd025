//! Beginning with the metadata at a start of the broker.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sq_meta::codec::Damage;
use sq_meta::{
    Broker, Command, MetaLog, MetaLogConfig, NewPartition, NewSegment, SealedBefore, StartError,
    StoreConfig,
};
use sq_sim::{Clock, FileSystem};
use sq_storage::{SegmentIds, SegmentInfo, WalConfig, WalWriter};

use super::earlier::{self, MetaImage};
use super::{MetaError, Metadata, TopicRecord};
use crate::data_dir::DataDir;

/// The directory of the metadata's log, in the data directory.
pub const META_LOG_DIR: &str = "@raft";

/// Why the metadata could not be opened. No topic's data was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There are topics, and no metadata that knows of them.
    #[error("{0} is missing, and there are directories of topics beside it")]
    Missing(PathBuf),
    /// There are topics, and the metadata was never begun: it is not theirs.
    #[error(
        "{0} holds nothing, and there are directories of topics beside it: their metadata was lost"
    )]
    Lost(PathBuf),
    /// The log does not start.
    #[error(transparent)]
    Log(#[from] StartError),
    /// The file of an earlier version is there and can't be trusted.
    #[error("{path} is damaged: {damage}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The file system's error.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// What an earlier version kept was not taken over. The next start goes on with it.
    #[error("the metadata of an earlier version was not taken over: {0}")]
    TakeOver(#[source] MetaError),
}

/// What the metadata is opened with.
#[derive(Debug)]
pub struct Setup<F: FileSystem> {
    /// The file system.
    pub fs: Arc<F>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// This broker, as it is to be known.
    pub broker: Broker,
    /// Where segment ids come from.
    pub segment_ids: SegmentIds,
    /// How much later than it could be a command is committed. For tests and benchmarks.
    pub commit_delay: Duration,
}

/// Opens the metadata of a data directory, or begins it. `wal` is how a topic's logs are kept: those of
/// an earlier version are read, so that their segments are known.
///
/// What it says can be read once this returns; it can be changed as soon as the log runs, which a change
/// waits for.
///
/// # Errors
/// [`OpenError`].
pub async fn open<F: FileSystem>(
    data_dir: &DataDir<F>,
    setup: Setup<F>,
    wal: impl Fn(&TopicRecord) -> WalConfig,
) -> Result<Metadata<F>, OpenError> {
    let fs = setup.fs;
    let dir = data_dir.path().join(META_LOG_DIR);
    let before = earlier::read(&*fs, data_dir.path()).await?;
    let must_be_there = before.is_none() && data_dir.holds_topics();
    if must_be_there && is_missing(&*fs, &dir).await? {
        return Err(OpenError::Missing(dir));
    }
    let mut config = MetaLogConfig::new(setup.broker.id, &dir);
    config.store = StoreConfig {
        segment_ids: setup.segment_ids.clone(),
        clock: setup.clock,
        ..config.store
    };
    config.commit_delay = setup.commit_delay;
    let log = MetaLog::open(Arc::clone(&fs), config).await?;
    let metadata = Metadata::new(log, setup.broker, setup.segment_ids);
    // A broker is made known before there can be any topic.
    if must_be_there && metadata.state().brokers().len() == 0 {
        metadata.close().await;
        return Err(OpenError::Lost(dir));
    }
    if let Some(before) = before {
        let taken_over = take_over(&metadata, &fs, data_dir, &before, wal).await;
        if taken_over.is_err() {
            metadata.close().await;
        }
        taken_over?;
    }
    let registering = metadata.clone();
    tokio::spawn(async move {
        if let Err(error) = registering.register().await {
            tracing::warn!(%error, "the metadata does not know this broker's address yet");
        }
    });
    Ok(metadata)
}

async fn is_missing<F: FileSystem>(fs: &F, dir: &Path) -> Result<bool, OpenError> {
    match fs.list_dir(dir).await {
        Ok(entries) => Ok(entries.is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(OpenError::Io {
            path: dir.to_owned(),
            error,
        }),
    }
}

/// Brings what an earlier version knew into the log, and removes its file once all of it is there. Each
/// step can be made again, and nothing is served before the last.
async fn take_over<F: FileSystem>(
    metadata: &Metadata<F>,
    fs: &Arc<F>,
    data_dir: &DataDir<F>,
    before: &MetaImage,
    wal: impl Fn(&TopicRecord) -> WalConfig,
) -> Result<(), OpenError> {
    let io = |error| OpenError::Io {
        path: data_dir.path().to_owned(),
        error,
    };
    for (id, name) in &before.deleting {
        data_dir.move_deleted(name, *id).await.map_err(io)?;
    }
    let below = before.next_producer_id;
    let skipped = metadata.submit(Command::SkipProducerIds { below }).await;
    skipped.map_err(OpenError::TakeOver)?;
    for topic in before.topics.values() {
        if metadata.state().topic(topic.id).is_some() {
            continue;
        }
        let mut partitions = Vec::new();
        for number in 0..topic.partitions {
            partitions.push(partition_on_disk(metadata, fs, wal(topic), topic, number).await);
        }
        let created = metadata.create_topic_with(topic, partitions).await;
        created.map_err(OpenError::TakeOver)?;
    }
    earlier::remove(&**fs, data_dir.path()).await.map_err(io)?;
    let (topics, next_producer_id) = (before.topics.len(), before.next_producer_id);
    tracing::info!(
        topics,
        next_producer_id,
        "took over the metadata of an earlier version"
    );
    Ok(())
}

/// The chain that a partition's directory holds. Of one that does not open now nothing is known: its
/// segments will be registered once it does.
async fn partition_on_disk<F: FileSystem>(
    metadata: &Metadata<F>,
    fs: &Arc<F>,
    wal: WalConfig,
    topic: &TopicRecord,
    number: u32,
) -> NewPartition {
    let name = topic.name.clone();
    match WalWriter::new(Arc::clone(fs), wal, name, number).await {
        Ok(writer) => {
            let reader = writer.reader();
            let chain = chain(metadata, &reader.segments(), reader.start_offset());
            writer.abandon().await;
            chain
        }
        Err(error) => {
            tracing::warn!(topic = %topic.name, number, %error,
                "a partition's segments are not known yet: its log does not open");
            NewPartition::empty(metadata.broker(), metadata.new_segment())
        }
    }
}

/// What the metadata is to say of a log that holds these segments and begins at `log_start`.
fn chain<F: FileSystem>(
    metadata: &Metadata<F>,
    segments: &[SegmentInfo],
    log_start: u64,
) -> NewPartition {
    let here = |segment: &SegmentInfo| NewSegment {
        id: sq_meta::SegmentId(segment.id),
        replicas: sq_meta::ReplicaSet::of(metadata.broker()),
    };
    let Some((active, sealed)) = segments.split_last() else {
        return NewPartition {
            log_start,
            active_base: log_start,
            ..NewPartition::empty(metadata.broker(), metadata.new_segment())
        };
    };
    let log_start = log_start.min(active.base_offset);
    // A segment ends where the next one begins, also where its last records can't be read.
    let ends = segments.iter().skip(1).map(|next| next.base_offset);
    let sealed = sealed.iter().zip(ends).map(|(segment, end)| SealedBefore {
        segment: here(segment),
        base: segment.base_offset,
        end,
    });
    NewPartition {
        log_start,
        sealed: sealed.filter(|s| s.end > log_start).collect(),
        active_base: active.base_offset,
        ..NewPartition::empty(metadata.broker(), here(active))
    }
}
