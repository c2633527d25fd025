//! What becomes of a segment's recovery points while it takes records.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sq_sim::{FileHandle, FileSystem};

use super::companion::{Companion, dir};
use super::index::{Index, Subject};
use super::manifest::SegmentTimes;
use super::point::{LastFrame, Point};
use super::scan::{Expected, Found, Walk, Window, frame_at};
use super::segment::SEGMENT_HEADER_LEN;
use super::state::{Extent, Segment, lock};
use crate::frame::{FRAME_HEADER_LEN, stored_crc};

/// How much of a segment is durable, and when that is from.
#[derive(Clone, Copy, Debug)]
struct Reached {
    extent: Extent,
    times: SegmentTimes,
}

/// What there is to know of a segment's recovery points.
#[derive(Debug, Default)]
pub(super) struct Points {
    /// Where there is to be one.
    due: Mutex<Option<Reached>>,
    /// Whether there may be a file.
    is_there: AtomicBool,
    /// Below this position the segment's index is what a recovery point said, which may lie.
    told_below: AtomicU64,
}

impl Points {
    /// Those of a segment that opening found one of, or a file that could not be used.
    pub(super) fn found(is_there: bool, told_below: u64) -> Self {
        Self {
            due: Mutex::default(),
            is_there: is_there.into(),
            told_below: told_below.into(),
        }
    }

    /// Whether there may be a file.
    pub(super) fn may_be_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Below this position, the segment's index is as a recovery point told it.
    pub(super) fn told_below(&self) -> u64 {
        self.told_below.load(Ordering::Acquire)
    }

    /// The index was made of what the segment holds.
    pub(super) fn confirmed(&self) {
        self.told_below.store(0, Ordering::Release);
    }
}

impl Segment {
    /// It is durable up to `extent`, where a recovery point is wanted. Whether that has to be said to
    /// whoever makes it: not while an earlier one waits, which then becomes this.
    pub(super) fn reached(&self, extent: Extent) -> bool {
        let Some(times) = self.in_live_index(Index::times).flatten() else {
            return false;
        };
        let reached = Reached { extent, times };
        lock(&self.points.due).replace(reached).is_none()
    }
}

/// Writes the recovery point that a segment waits for. The next one makes good for one that fails.
pub(super) async fn write<F: FileSystem>(fs: &F, segment: &Segment) {
    let due = lock(&segment.points.due).take();
    let Some(reached) = due else { return };
    let written = async {
        let file = segment.open_read_only(fs).await?;
        let Some(point) = Point::of(segment, &*file, reached).await? else {
            return Ok(());
        };
        segment.points.is_there.store(true, Ordering::Release);
        Companion::Point
            .write(fs, dir(segment), &segment.name, point.encode())
            .await
    };
    if let Err::<(), io::Error>(error) = written.await {
        tracing::debug!(segment = %segment.path.display(), %error, "recovery point not written");
    }
}

impl Point {
    /// What a segment gives that is durable up to `reached`; `None` if it does not read as it should.
    async fn of(
        segment: &Segment,
        file: &dyn FileHandle,
        reached: Reached,
    ) -> io::Result<Option<Self>> {
        let Extent { end_offset, bytes } = reached.extent;
        let start = (segment.name.base_offset, SEGMENT_HEADER_LEN as u64);
        let Some(index) = segment.in_live_index(|index| index.up_to(bytes, reached.times)) else {
            return Ok(None);
        };
        let window = || Window::new(file, bytes).with_piece_len(FRAME_HEADER_LEN);
        let Found::Frame(first) = frame_at(&mut window(), start.1).await? else {
            return Ok(None);
        };
        let from = index.before_offset(end_offset).unwrap_or(start);
        let mut walk = Walk::from(Window::new(file, bytes), from.1, Some(segment.id), from.0);
        let mut last = None;
        while walk.position < bytes {
            let Ok(found) = walk.next().await? else {
                return Ok(None);
            };
            last = Some(found);
        }
        let Some((position, frame)) = last.filter(|_| walk.expected.offset == end_offset) else {
            return Ok(None);
        };
        let Some(crc) = stored_crc(&window().at(position, FRAME_HEADER_LEN).await?) else {
            return Ok(None);
        };
        let is_first = Expected {
            id: Some(segment.id),
            offset: start.0,
        };
        Ok(is_first.check(&first.header).is_ok().then_some(Self {
            subject: Subject {
                extent: reached.extent,
                ..segment.subject()
            },
            last: LastFrame {
                position,
                base_offset: frame.header.base_offset,
                crc,
            },
            first_append_ms: first.header.append_time_ms,
            index,
        }))
    }
}
