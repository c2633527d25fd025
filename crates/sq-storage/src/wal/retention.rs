//! What a log keeps: how much, and for how long. Whole segments go, oldest first.
//!
//! A segment is as old as its newest record, by that record's own timestamp, or by when it was
//! appended where it has none. While the process runs, time is measured on the monotonic clock from
//! the append on: a wall clock that jumps makes nothing old that was just appended. Only across a
//! restart does the wall clock tell how much time has passed; it never runs backwards there.

use std::sync::Arc;
use std::time::Duration;

use sq_sim::{FileSystem, Instant};

use super::manifest::SegmentTimes;
use super::state::Segment;
use super::writer::WalWriter;
use crate::error::Result;

/// How much of a log is kept, and for how long. [`Default`] keeps everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of segments to keep: of those that are closed, the oldest go while so many are left
    /// without them.
    pub max_bytes: Option<u64>,
    /// The age beyond which a segment goes. The active one is closed and goes as well once all of its
    /// records are older.
    pub max_age: Option<Duration>,
}

/// A segment, as far as that decides on whether it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The offset behind its last record.
    pub end_offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The age of its newest record, where that is known.
    pub age: Option<Duration>,
    /// Whether appends go to it.
    pub is_active: bool,
    /// Whether it holds no record.
    pub is_empty: bool,
}

/// What is to be taken out of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Everything below this offset.
    pub purge_to: u64,
    /// The active segment is closed before, as all of it goes.
    pub closes_active: bool,
}

/// When a record was appended, and what the clocks said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// The wall clock when the log was opened, milliseconds since the epoch.
    pub opened_ms: u64,
    /// How long ago the log was opened.
    pub since_opened: Duration,
    /// How long ago the last record was appended, if that was since then.
    pub since_append: Option<Duration>,
    /// The wall clock, milliseconds since the epoch.
    pub now_ms: u64,
}

impl Retention {
    /// Decides what goes, of a log's segments in their order.
    ///
    /// A segment of unknown age goes with an older one behind it, never by itself.
    pub fn expiry(&self, segments: &[Candidate]) -> Option<Expiry> {
        let by_age = self.expired_by_age(segments);
        let by_size = self.expired_by_size(segments);
        let expired = segments.get(..by_age.max(by_size))?;
        let purge_to = expired.last()?.end_offset;
        let closes_active = expired.iter().any(|s| s.is_active && !s.is_empty);
        Some(Expiry {
            purge_to,
            closes_active,
        })
    }

    /// How many of the first segments are too old.
    fn expired_by_age(&self, segments: &[Candidate]) -> usize {
        let Some(max_age) = self.max_age else {
            return 0;
        };
        let kept = segments
            .iter()
            .position(|s| !s.is_empty && s.age.is_some_and(|age| age <= max_age));
        let expired = segments.get(..kept.unwrap_or(segments.len()));
        let last = expired.and_then(|expired| {
            expired
                .iter()
                .rposition(|s| !s.is_empty && s.age.is_some_and(|age| age > max_age))
        });
        last.map_or(0, |last| last + 1)
    }

    /// How many of the first segments are too much.
    fn expired_by_size(&self, segments: &[Candidate]) -> usize {
        let Some(max_bytes) = self.max_bytes else {
            return 0;
        };
        let mut left: u64 = segments.iter().map(|s| s.bytes).sum();
        let goes = |segment: &&Candidate| {
            let without = left.saturating_sub(segment.bytes);
            let goes = !segment.is_active && without >= max_bytes;
            if goes {
                left = without;
            }
            goes
        };
        segments.iter().take_while(goes).count()
    }
}

impl Moments {
    /// The age of a segment whose records are from `times`. Never below zero.
    pub fn age_of(&self, times: SegmentTimes) -> Duration {
        let (now_ms, appended_ms) = match self.since_append {
            Some(since_append) => {
                // The wall clock may have been wrong when it was asked, by any amount. Had it gone on
                // from the opening as the monotonic one did, it would have said this.
                let ran = self.since_opened.saturating_sub(since_append);
                let steady_ms = self.opened_ms.saturating_add(millis(ran));
                let appended_ms = times.last_append_ms.min(steady_ms);
                (
                    appended_ms.saturating_add(millis(since_append)),
                    appended_ms,
                )
            }
            None => (self.now_ms, times.last_append_ms),
        };
        let newest_ms = u64::try_from(times.max_timestamp_ms).unwrap_or(appended_ms);
        Duration::from_millis(now_ms.saturating_sub(newest_ms))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl<F: FileSystem> WalWriter<F> {
    /// Takes whole segments out of the log that are more, or older, than what is to be kept, or of which
    /// [`advance_start`](Self::advance_start) has left nothing; whether there were any. The files are
    /// left to [`removal`](Self::removal).
    ///
    /// The active segment stays, unless all of its records are too old: then it is closed and goes
    /// too, without waiting for an append. Where the log starts, and which offset is next, stays known
    /// when nothing is left.
    ///
    /// # Errors
    /// As for [`purge_to`](Self::purge_to) and
    /// [`close_active_segment`](Self::close_active_segment); the next call goes on with it.
    pub async fn apply_retention(&mut self, retention: &Retention) -> Result<bool> {
        self.retire_if_abandoned();
        let segments = self.state.segments();
        let mut candidates = Vec::with_capacity(segments.len());
        // Behind the first that is young enough, none is looked at: its age may be unknown.
        let mut by_age = retention.max_age.is_some();
        for segment in segments.iter() {
            let extent = segment.extent();
            let is_empty = extent.end_offset == segment.name.base_offset;
            let age = if by_age && !is_empty {
                self.age_of(segment).await
            } else {
                None
            };
            by_age &= age.is_none_or(|age| Some(age) > retention.max_age);
            candidates.push(Candidate {
                end_offset: extent.end_offset,
                bytes: extent.bytes,
                age,
                is_active: self.segment.as_ref().is_some_and(|s| s.id == segment.id),
                is_empty,
            });
        }
        let expiry = retention.expiry(&candidates);
        if expiry.is_none() && !self.has_leftovers() {
            return Ok(false);
        }
        if expiry.is_some_and(|expiry| expiry.closes_active) {
            self.close_active_segment().await?;
        }
        // A purge lets go of what was left of earlier ones, wherever it ends itself.
        self.purge_to(expiry.map_or(0, |expiry| expiry.purge_to))
            .await?;
        Ok(true)
    }

    /// The age of a segment's newest record; `None` where its file does not tell.
    async fn age_of(&self, segment: &Arc<Segment>) -> Option<Duration> {
        let times = match segment.times() {
            Some(times) => times,
            None => self.reader().times_of(segment).await?,
        };
        let now = self.clock.now();
        let since = |then: Instant| now.saturating_duration_since(then);
        let moments = Moments {
            opened_ms: self.opened_ms,
            since_opened: since(self.opened_at),
            since_append: segment.appended_at().map(since),
            now_ms: self.clock.wall_ms(),
        };
        Some(moments.age_of(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn closed(end_offset: u64, bytes: u64, minutes: Option<u32>) -> Candidate {
        Candidate {
            end_offset,
            bytes,
            age: minutes.map(|n| MINUTE * n),
            is_active: false,
            is_empty: false,
        }
    }

    fn active(end_offset: u64, bytes: u64, minutes: Option<u32>) -> Candidate {
        Candidate {
            is_active: true,
            ..closed(end_offset, bytes, minutes)
        }
    }

    fn keep(max_bytes: Option<u64>, minutes: Option<u32>) -> Retention {
        Retention {
            max_bytes,
            max_age: minutes.map(|n| MINUTE * n),
        }
    }

    fn purge(retention: Retention, segments: &[Candidate]) -> Option<(u64, bool)> {
        let expiry = retention.expiry(segments);
        expiry.map(|e| (e.purge_to, e.closes_active))
    }

    #[test]
    fn by_size_as_many_bytes_are_kept_as_were_asked_for() {
        // Kafka's rule: a segment goes if what is left without it is still that much.
        let log = [
            closed(10, 100, None),
            closed(20, 100, None),
            active(25, 50, None),
        ];
        for (max_bytes, expected) in [
            (251, None),
            (151, None),
            (150, Some(10)),
            (51, Some(10)),
            (50, Some(20)),
            (0, Some(20)),
        ] {
            let expected = expected.map(|to| (to, false));
            assert_eq!(
                purge(keep(Some(max_bytes), None), &log),
                expected,
                "{max_bytes}"
            );
        }
        assert_eq!(purge(keep(None, None), &log), None);
        assert_eq!(
            purge(keep(Some(0), None), &[active(9, 1 << 40, None)]),
            None
        );
    }

    #[test]
    fn by_age_a_segment_goes_once_its_newest_record_is_older() {
        let log = [
            closed(10, 1, Some(30)),
            closed(20, 1, Some(20)),
            active(25, 1, Some(10)),
        ];
        for (minutes, expected) in [
            (30, None),
            (29, Some((10, false))),
            (20, Some((10, false))),
            (19, Some((20, false))),
            (10, Some((20, false))),
            (9, Some((25, true))),
        ] {
            assert_eq!(
                purge(keep(None, Some(minutes)), &log),
                expected,
                "{minutes}"
            );
        }
        // An older one behind a younger one stays with it.
        let log = [
            closed(10, 1, Some(5)),
            closed(20, 1, Some(90)),
            active(25, 1, Some(1)),
        ];
        assert_eq!(purge(keep(None, Some(30)), &log), None);
    }

    #[test]
    fn what_is_not_known_goes_with_an_older_one_behind_it_only() {
        let log = [
            closed(10, 1, None),
            closed(20, 1, Some(90)),
            closed(30, 1, None),
            active(35, 1, Some(1)),
        ];
        assert_eq!(purge(keep(None, Some(30)), &log), Some((20, false)));
        assert_eq!(purge(keep(None, Some(30)), &log[2..]), None);
        // An active segment without a record is not closed for its age.
        let empty = Candidate {
            is_empty: true,
            ..active(20, 32, None)
        };
        let log = [closed(20, 1, Some(90)), empty];
        assert_eq!(purge(keep(None, Some(30)), &log), Some((20, false)));
        assert_eq!(purge(keep(None, Some(30)), &log[1..]), None);
    }

    proptest! {
        #[test]
        fn neither_too_much_nor_the_active_one_nor_what_is_young_goes(
            sizes in vec((1..1000u64, proptest::option::of(0..100u32)), 1..10),
            max_bytes in proptest::option::of(0..5000u64),
            minutes in proptest::option::of(0..100u32),
        ) {
            let count = sizes.len();
            let log: Vec<_> = sizes.iter().enumerate().map(|(n, (bytes, age))| {
                let mut segment = closed(n as u64 + 1, *bytes, *age);
                segment.is_active = n + 1 == count;
                segment
            }).collect();
            let retention = keep(max_bytes, minutes);
            let Some(expiry) = retention.expiry(&log) else { return Ok(()) };
            let gone = usize::try_from(expiry.purge_to).unwrap();
            let (gone, left) = log.split_at(gone);
            let by_size = max_bytes.is_some_and(|max| {
                let last = gone.last().unwrap().bytes;
                let left: u64 = left.iter().map(|s| s.bytes).sum();
                left >= max && last > 0
            });
            let limit = minutes.map(|n| MINUTE * n);
            let last_is_old = gone.last().unwrap().age > limit && limit.is_some();
            prop_assert!(by_size && !gone.last().unwrap().is_active || last_is_old);
            prop_assert_eq!(expiry.closes_active, gone.iter().any(|s| s.is_active));
        }
    }

    fn times(max_timestamp_ms: i64, last_append_ms: u64) -> SegmentTimes {
        SegmentTimes {
            max_timestamp_ms,
            last_append_ms,
        }
    }

    #[test]
    fn age_is_that_of_the_newest_records_timestamp() {
        let opened_ms = 1_000_000;
        let moments = |since_append_ms: Option<u64>, now_ms| Moments {
            opened_ms,
            since_opened: Duration::from_secs(50),
            since_append: since_append_ms.map(Duration::from_millis),
            now_ms,
        };
        let ms = |m: Moments, max, appended| {
            u64::try_from(m.age_of(times(max, appended)).as_millis()).unwrap()
        };
        // Appended 10 s ago, in time, late, ahead of time, and without a timestamp.
        let m = moments(Some(10_000), 1_050_000);
        assert_eq!(ms(m, 1_040_000, 1_040_000), 10_000);
        assert_eq!(ms(m, 540_000, 1_040_000), 510_000);
        assert_eq!(ms(m, 1_045_000, 1_040_000), 5_000);
        assert_eq!(ms(m, 9_000_000, 1_040_000), 0);
        assert_eq!(ms(m, -1, 1_040_000), 10_000);
        // In another life of the process: by the wall clock, which may be behind.
        assert_eq!(ms(moments(None, 1_050_000), 540_000, 560_000), 510_000);
        assert_eq!(ms(moments(None, 1_050_000), -1, 560_000), 490_000);
        assert_eq!(ms(moments(None, 400_000), 540_000, 560_000), 0);
        // The wall clock was set back, a record came, and it was set right: nothing is old.
        assert_eq!(ms(m, 400_000, 400_000), 10_000);
        // It jumped ahead by a year when a record came whose producer knew the time.
        assert_eq!(ms(m, 1_040_000, 31_000_000_000), 10_000);
        // It jumps only now.
        assert_eq!(
            ms(moments(Some(10_000), u64::MAX), 1_040_000, 1_040_000),
            10_000
        );
        assert_eq!(ms(moments(Some(10_000), 0), 1_040_000, 1_040_000), 10_000);
    }
}
