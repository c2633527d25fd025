//! How a writer comes to a log: from what recovery makes of the disk.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::{Clock, FileSystem, SystemClock};

use super::super::config::WalConfig;
use super::super::maintenance::{Backlog, Chore};
use super::super::recovery::{Place, Recovered, recover};
use super::super::segment::SegmentHeader;
use super::super::sidecar::RecoveryVisitor;
use super::super::state::LogState;
use super::{Opens, Unsynced, WalWriter};
use crate::error::Result;
use crate::topic::TopicName;

impl<F: FileSystem> WalWriter<F> {
    /// Recovers what is on disk, on the system's clock, and continues it. Creates nothing.
    ///
    /// # Errors
    /// [`MissingSegment`], [`SegmentHeader`](crate::Error::SegmentHeader) and [`Damaged`] where files are
    /// missing, another's, or contradict each other; nothing is changed then. Other damage is reported
    /// ([`recovery_report`](Self::recovery_report)) and served around.
    /// [`Io`] where the file system fails.
    ///
    /// [`MissingSegment`]: crate::Error::MissingSegment
    /// [`Damaged`]: crate::Error::Damaged
    /// [`Io`]: crate::Error::Io
    pub async fn new(
        fs: Arc<F>,
        config: WalConfig,
        topic: TopicName,
        partition: u32,
    ) -> Result<Self> {
        Self::with_clock(fs, config, topic, partition, Arc::new(SystemClock)).await
    }

    /// [`new`](Self::new) on another clock.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn with_clock(
        fs: Arc<F>,
        config: WalConfig,
        topic: TopicName,
        partition: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        Self::open(fs, config, topic, partition, clock, None).await
    }

    /// [`with_clock`](Self::with_clock) that brings a layer above back together with the log.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn visited(
        fs: Arc<F>,
        config: WalConfig,
        topic: TopicName,
        partition: u32,
        clock: Arc<dyn Clock>,
        visitor: &mut dyn RecoveryVisitor,
    ) -> Result<Self> {
        Self::open(fs, config, topic, partition, clock, Some(visitor)).await
    }

    async fn open(
        fs: Arc<F>,
        config: WalConfig,
        topic: TopicName,
        partition: u32,
        clock: Arc<dyn Clock>,
        visitor: Option<&mut dyn RecoveryVisitor>,
    ) -> Result<Self> {
        let place = Place {
            dir: config
                .data_dir
                .join(topic.as_str())
                .join(partition.to_string()),
            header: SegmentHeader::new(&topic, partition),
        };
        let recovered = recover(&fs, &config, &place, &*clock, visitor).await?;
        Ok(Self::continue_from(
            fs, config, topic, partition, clock, place, recovered,
        ))
    }

    fn continue_from(
        fs: Arc<F>,
        config: WalConfig,
        topic: TopicName,
        partition: u32,
        clock: Arc<dyn Clock>,
        place: Place,
        recovered: Recovered,
    ) -> Self {
        let start = recovered.start;
        let next_offset = recovered.next_offset;
        let tail_cache = config.tail_cache.clone();
        let segment_cache = config.segment_cache.clone();
        let mut writer = Self {
            segment_base_offset: next_offset,
            segment_position: 0,
            segment_opened_at: clock.now(),
            opened_at: clock.now(),
            opened_ms: clock.wall_ms(),
            fs,
            config,
            topic,
            partition,
            clock,
            place,
            active_segment: None,
            next_offset,
            segment_age_when_opened: Duration::ZERO,
            segment: None,
            told_committed: 0,
            has_unsynced_write: false,
            unsynced: Unsynced::default(),
            write_under_way: false,
            closed: Vec::new(),
            armed: None,
            opens: Opens::Itself,
            last_attempt: None,
            leftover_bases: recovered.leftover_bases,
            has_chores: false,
            point_due: u64::MAX,
            next_ordinal: recovered.next_ordinal,
            poisoned_in_a_row: 0,
            trash: Arc::clone(recovered.manifest.trash()),
            moved_end: None,
            backlog: Arc::new(Backlog::new(recovered.manifest)),
            state: Arc::new(LogState::new(
                recovered.segments,
                start,
                next_offset,
                tail_cache,
                segment_cache,
            )),
            sidecar_source: None,
            report: recovered.report,
        };
        for (segment, length) in recovered.untrimmed {
            writer.backlog.push(Chore::Trim {
                segment,
                length,
                written_through: Arc::default(),
            });
        }
        if let Some(retired) = recovered.retired {
            let cache = writer.config.segment_cache.clone();
            let segment = Arc::clone(&retired);
            writer.backlog.push(Chore::WriteIndex(segment, cache));
            writer.backlog.push(Chore::ListSealed(retired));
        }
        if let Some(active) = recovered.active {
            writer.segment_base_offset = active.segment.name.base_offset;
            writer.segment_position = active.segment.extent().bytes;
            writer.segment_age_when_opened = active.age;
            writer.told_committed = active.told_committed;
            writer.point_due = writer.next_point(active.read_from);
            writer.zero_ahead(&active.segment, writer.segment_position, None);
            writer.active_segment = Some(active.file);
            writer.segment = Some(active.segment);
        }
        writer
    }
}
