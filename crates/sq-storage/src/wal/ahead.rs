//! The zeros in front of a segment's write head.
//!
//! An append to a file that grows has to bring the file's metadata to the disk as well; one to zeros
//! that were written before does not. So the active segment is zeroed ahead of its head, a piece at a
//! time, behind the appends. The lead grows with what the segment has taken, so that one that takes
//! little costs little, and the pace with how little of the lead is left. Large writes are not zeroed for.
//!
//! No piece ever touches a page that holds a frame or is about to: pieces are claimed ahead of the
//! head, and a write that reaches a claimed one waits for it. A piece whose run was dropped may be
//! written at any time from then on, so the segment ends in front of it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::{FileHandle, FileSystem};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::{Segment, lock};
use super::zeroing::{Held, Zeroing};

/// Zeros are written and counted in whole pages.
pub(super) const PAGE_LEN: u64 = 4096;

/// So many bytes and what is left of the last page: writes are padded to its end.
pub(super) fn whole_pages(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE_LEN).unwrap_or(bytes)
}

/// How much is zeroed at a time, in bytes: larger pieces hold up a sync of the disk for longer.
pub(super) const PIECE_LEN: u64 = 256 << 10;

/// How far in front of the head the first piece begins, in bytes, so that appends that go on meanwhile
/// do not run into it.
const GAP_LEN: u64 = 64 << 10;

/// A segment of no more than this is zeroed without a gap.
const SMALL_SEGMENT_LEN: u64 = 1 << 20;

/// The lead is this part of what the segment has taken. Each piece holds up an append or two, so no more
/// of them are written than a burst needs.
const LEAD_SHARE: u64 = 4;

/// A segment that has taken less has to leave some of the budget to others.
const SMALL_LEN: u64 = 1 << 20;

/// Where writes are as long as this, zeros in front of them cost the disk more than they spare it: it would
/// write everything twice.
const LARGE_WRITE_LEN: u64 = 96 << 10;

/// How often zeroing a segment may fail.
const MAX_FAILURES: u32 = 3;

/// The pause between two pieces while more than half of the lead is there: 25 MB a second.
const LONG_PAUSE: Duration = Duration::from_millis(10);

/// The pause while more than a quarter is: 250 MB a second.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// What is known of the zeros in the active segment.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    zone: Mutex<Option<Zone>>,
    /// A claimed piece was settled.
    settled: Notify,
}

/// The zeros of one segment.
#[derive(Debug)]
pub(super) struct Zone {
    pub(super) segment: Arc<Segment>,
    pub(super) budget: Zeroing,
    /// Where the segment ends, in bytes.
    pub(super) end: u64,
    /// In front of this the file was written when it was another segment's: that is as good as zeros.
    written: u64,
    /// The longest lead, in bytes.
    pub(super) most: u64,
    /// Nothing in front of this will be zeroed: it is written, or about to be.
    pub(super) reserved: u64,
    /// Where zeros are on the disk; what the head has passed is not in it.
    pub(super) zeros: Range<u64>,
    /// The budget that they take.
    pub(super) held: Held,
    claimed: Option<Range<u64>>,
    /// The file, opened for the piece before. Only of a segment that takes much: many that take little
    /// would keep many files open.
    file: Option<Box<dyn FileHandle>>,
    /// From here on zeros may be written at any time.
    spoilt_from: Option<u64>,
    failures: u32,
    /// The length of a write, averaged over the last ones, in bytes.
    write_len: u64,
    last_piece_at: Option<Instant>,
    /// The pause before the next piece that whoever waits knows of; `None` if it waits for news.
    told: Option<Duration>,
}

/// Whether a write may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Free,
    /// A piece is just being zeroed there.
    Busy,
    /// Zeros may be written there at any time.
    Spoilt,
}

impl Zone {
    /// The zone of a segment whose next frame goes to `position`.
    pub(super) fn new(
        segment: Arc<Segment>,
        budget: &Zeroing,
        end: u64,
        most: u64,
        position: u64,
    ) -> Self {
        let reserved = position.next_multiple_of(PAGE_LEN);
        Self {
            segment,
            budget: budget.clone(),
            end: whole_pages(end),
            written: 0,
            most,
            reserved,
            zeros: reserved..reserved,
            held: budget.take(0, 1, true),
            claimed: None,
            file: None,
            spoilt_from: None,
            failures: 0,
            write_len: 0,
            last_piece_at: None,
            told: None,
        }
    }

    /// The same of a file that is zeroed up to some page, on this part of the budget.
    pub(super) fn zeroed(self, held: Held) -> Self {
        let mut zone = Self {
            zeros: 0..held.bytes(),
            held,
            ..self
        };
        zone.pass(zone.reserved);
        zone
    }

    /// The same of a file of which so much was written when it was another segment's.
    pub(super) fn recycled(self, written: u64) -> Self {
        let written = written - written % PAGE_LEN;
        Self { written, ..self }
    }

    /// The head is about to pass everything in front of `end`.
    fn pass(&mut self, end: u64) {
        self.reserved = self.reserved.max(end);
        self.zeros.start = self.zeros.start.max(self.reserved);
        self.zeros.end = self.zeros.end.max(self.zeros.start);
        self.held.shrink_to(self.zeros.end - self.zeros.start);
    }

    fn reserve(&mut self, end: u64) -> Way {
        if self.spoilt_from.is_some_and(|from| from < end) {
            return Way::Spoilt;
        }
        if self.claimed.as_ref().is_some_and(|c| c.start < end) {
            return Way::Busy;
        }
        let len = end.saturating_sub(self.reserved);
        self.write_len = self.write_len - self.write_len / 8 + len / 8;
        self.pass(end.next_multiple_of(PAGE_LEN));
        Way::Free
    }

    /// How far ahead of the head there should be zeros.
    fn lead(&self) -> u64 {
        (self.reserved / LEAD_SHARE).max(PIECE_LEN).min(self.most)
    }

    /// What of the lead is there.
    fn zeroed_ahead(&self) -> u64 {
        let end = self.zeros.end.max(self.written);
        end.saturating_sub(self.reserved)
    }

    fn is_small(&self) -> bool {
        self.reserved < SMALL_LEN
    }

    /// What should be zeroed next.
    fn next(&self) -> Option<Range<u64>> {
        if self.claimed.is_some() || self.spoilt_from.is_some() || self.failures >= MAX_FAILURES {
            return None;
        }
        if self.write_len >= LARGE_WRITE_LEN {
            return None;
        }
        let lead = self.lead();
        let target = self.reserved.saturating_add(lead).min(self.end);
        let gap = if self.end > SMALL_SEGMENT_LEN {
            GAP_LEN
        } else {
            0
        };
        let start = if self.zeros.is_empty() {
            self.reserved + gap
        } else {
            self.zeros.end
        };
        let start = start.max(self.written);
        let stop = target.min(start.saturating_add(PIECE_LEN));
        let stop = stop - stop % PAGE_LEN;
        let len = stop.checked_sub(start).filter(|&len| len > 0)?;
        let is_worth_it = len >= (PIECE_LEN / 2).min(lead / 2) || stop == self.end;
        (is_worth_it && self.budget.has_room(PAGE_LEN, self.is_small())).then_some(start..stop)
    }

    /// How long the head can do without the next piece.
    fn pause(&self) -> Duration {
        let (ahead, lead) = (self.zeroed_ahead(), self.lead());
        if ahead >= lead / 2 {
            LONG_PAUSE
        } else if ahead >= lead / 4 {
            SHORT_PAUSE
        } else {
            Duration::ZERO
        }
    }

    /// The pause before the next piece, if one is wanted.
    fn wanted(&self) -> Option<Duration> {
        self.next().map(|_| self.pause())
    }

    /// Whether a piece is wanted of which whoever waits does not know, or not that it is so soon: that is
    /// told, and not every write.
    fn is_news(&mut self) -> bool {
        let wanted = self.wanted();
        let is_news = wanted.is_some_and(|pause| self.told.is_none_or(|told| pause < told));
        if is_news {
            self.told = wanted;
        }
        is_news
    }

    /// When the next piece is due, if one is wanted.
    fn due_in(&self, now: Instant) -> Option<Duration> {
        let pause = self.wanted()?;
        let Some(last) = self.last_piece_at else {
            return Some(Duration::ZERO);
        };
        let since = now.saturating_duration_since(last);
        Some(pause.saturating_sub(since))
    }
}

impl Ahead {
    /// A segment is active from now on.
    pub(super) fn begin(&self, zone: Zone) {
        *lock(&self.zone) = Some(zone);
    }

    /// No segment is active any more, or none that should be zeroed.
    pub(super) fn end(&self) {
        *lock(&self.zone) = None;
    }

    /// The file was cut to this length.
    pub(super) fn cut(&self, length: u64) {
        if let Some(zone) = &mut *lock(&self.zone) {
            let length = length - length % PAGE_LEN;
            zone.zeros.end = zone.zeros.end.min(length);
            zone.written = zone.written.min(length);
            zone.pass(zone.reserved);
        }
    }

    /// Makes room for a write that ends at `end`. Not if there is none: then the segment has to end.
    /// Says also whether a piece is wanted for which nobody has been waiting.
    pub(super) async fn make_way(&self, end: u64) -> (bool, bool) {
        loop {
            let settled = self.settled.notified();
            let (way, is_news) = match &mut *lock(&self.zone) {
                Some(zone) => (zone.reserve(end), zone.is_news()),
                None => (Way::Free, false),
            };
            match way {
                Way::Free => return (true, is_news),
                Way::Spoilt => return (false, is_news),
                Way::Busy => settled.await,
            }
        }
    }

    /// When the next piece is due, if one is wanted.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        lock(&self.zone).as_ref()?.due_in(now)
    }

    /// [`due_in`](Self::due_in) for somebody who is going to wait that long, or for news.
    pub(super) fn wait_for(&self, now: Instant) -> Option<Duration> {
        let mut slot = lock(&self.zone);
        let zone = slot.as_mut()?;
        zone.told = zone.wanted();
        zone.due_in(now)
    }

    /// Zeroes the next piece, if it is due `now`, or wanted at all where no time is given. Whether it
    /// was.
    pub(super) async fn zero<F: FileSystem>(&self, fs: &F, now: Option<Instant>) -> bool {
        let Some(mut piece) = self.claim(now) else {
            return false;
        };
        let zeroed = piece.write(fs).await;
        piece.settle(zeroed);
        true
    }

    fn claim(&self, now: Option<Instant>) -> Option<Piece<'_>> {
        let mut slot = lock(&self.zone);
        let zone = slot.as_mut()?;
        if now.is_some_and(|now| zone.due_in(now).is_none_or(|d| !d.is_zero())) {
            return None;
        }
        let wanted = zone.next()?;
        let held = zone
            .budget
            .take(wanted.end - wanted.start, PAGE_LEN, zone.is_small());
        let range = wanted.start..wanted.start + held.bytes();
        if range.is_empty() {
            return None;
        }
        zone.claimed = Some(range.clone());
        zone.last_piece_at = now;
        Some(Piece {
            ahead: self,
            segment: Arc::clone(&zone.segment),
            range,
            file: zone.file.take(),
            held: Some(held),
        })
    }

    /// Ends the claim of a segment's piece.
    fn unclaim(&self, segment: &Segment, outcome: impl FnOnce(&mut Zone)) {
        if let Some(zone) = &mut *lock(&self.zone)
            && zone.segment.id == segment.id
        {
            zone.claimed = None;
            outcome(zone);
        }
        self.settled.notify_waiters();
    }
}

/// A piece that is being zeroed. Dropped before it is settled, it may still be written.
struct Piece<'a> {
    ahead: &'a Ahead,
    segment: Arc<Segment>,
    range: Range<u64>,
    file: Option<Box<dyn FileHandle>>,
    /// `None` once it is settled.
    held: Option<Held>,
}

impl Piece<'_> {
    async fn write<F: FileSystem>(&mut self, fs: &F) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.segment.open(fs).await?,
        };
        let Range { start, end } = self.range;
        file.zero_range(start, end - start).await?;
        self.file = Some(file);
        Ok(())
    }

    fn settle(mut self, zeroed: io::Result<()>) {
        let Some(held) = self.held.take() else {
            return;
        };
        let range = self.range.clone();
        let file = self.file.take();
        let path = &self.segment.path;
        self.ahead.unclaim(&self.segment, |zone| match zeroed {
            Ok(()) => {
                if zone.zeros.is_empty() {
                    zone.zeros.start = range.start;
                }
                zone.zeros.end = range.end;
                zone.held.join(held);
                zone.file = file.filter(|_| !zone.is_small());
            }
            Err(error) => {
                zone.failures += 1;
                zone.segment.wear.spoil();
                tracing::warn!(path = %path.display(), %error, "not zeroed ahead");
            }
        });
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        if self.held.is_some() {
            let from = self.range.start;
            self.segment.wear.spoil();
            self.ahead
                .unclaim(&self.segment, |zone| zone.spoilt_from = Some(from));
        }
    }
}
