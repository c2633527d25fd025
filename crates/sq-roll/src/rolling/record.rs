//! What is kept of a roll.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sq_storage::TopicName;

use crate::{SegmentId, Trigger};

/// A moment of a roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it was, on [`Node::now`](crate::Node::now).
    pub at: Duration,
    /// How large the segment was that was written then, in bytes.
    pub bytes: u64,
}

/// What is kept of a roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollRecord {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: u32,
    /// The segment that ended.
    pub from: SegmentId,
    /// The one that appends went to from then on.
    pub to: SegmentId,
    /// The first offset that the old one doesn't hold.
    pub end: u64,
    /// What made it end.
    pub trigger: Trigger,
    /// The soft mark was passed, or what else made it end came.
    pub soft_mark: Mark,
    /// A successor was asked for.
    pub request: Mark,
    /// It was ready.
    pub ready: Mark,
    /// Appends went there from now on.
    pub switch: Mark,
    /// The same, in milliseconds since the Unix epoch.
    pub switch_wall_ms: u64,
    /// The old one's end was committed; `None` if another roll came first.
    pub sealed: Option<Mark>,
    /// By how much the old one passed its cap.
    pub overrun_bytes: u64,
    /// How long appends waited for this roll.
    pub waited: Duration,
    /// From the last acknowledgement in the old segment to the first in the new, as a producer gets
    /// them. `None` where there was no earlier one, or no later one before the next roll.
    pub producer_gap: Option<Duration>,
    /// From that last acknowledgement until somebody that waited for the record behind it was told of it,
    /// as a reader at the tail is.
    pub tail_gap: Option<Duration>,
    /// The median time between two acknowledgements, of the last 64 that were not at a roll.
    pub usual_gap: Option<Duration>,
}

impl RollRecord {
    /// From the request to the successor's being ready.
    pub fn prepared_in(&self) -> Duration {
        self.ready.at.saturating_sub(self.request.at)
    }
}

/// The times between acknowledgements.
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    last: VecDeque<Duration>,
}

impl Gaps {
    const REMEMBERED: usize = 64;

    pub(super) fn push(&mut self, gap: Duration) {
        if self.last.len() == Self::REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(gap);
    }

    pub(super) fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

/// What is known so far of the active segment's roll.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Draft {
    pub(super) soft_mark: Option<Mark>,
    pub(super) request: Option<Mark>,
    pub(super) ready: Option<Mark>,
    /// How long appends waited for it.
    pub(super) waited: Duration,
}

/// A roll whose switch is made.
#[derive(Debug)]
pub(super) struct Finishing {
    pub(super) record: RollRecord,
    /// The last acknowledgement in the old segment.
    pub(super) last_ack: Option<Duration>,
    /// A record of the new segment was acknowledged.
    pub(super) is_acknowledged: bool,
    /// And somebody that waited for it was told.
    pub(super) is_seen: bool,
}

impl Finishing {
    pub(super) fn acknowledged(&mut self, now: Duration) {
        self.is_acknowledged = true;
        self.record.producer_gap = self.last_ack.map(|last| now.saturating_sub(last));
    }

    pub(super) fn seen(&mut self, now: Duration) {
        self.is_seen = true;
        self.record.tail_gap = self.last_ack.map(|last| now.saturating_sub(last));
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_acknowledged && self.is_seen && self.record.sealed.is_some()
    }

    /// The record, which is told of.
    pub(super) fn into_record(self) -> Arc<RollRecord> {
        let record = self.record;
        let micros = |gap: Option<Duration>| gap.map(|gap| gap.as_micros());
        tracing::info!(
            topic = record.topic.as_str(),
            partition = record.partition,
            from = %record.from,
            to = %record.to,
            end = record.end,
            trigger = ?record.trigger,
            prepare_us = record.prepared_in().as_micros(),
            overrun_bytes = record.overrun_bytes,
            waited_us = record.waited.as_micros(),
            producer_gap_us = micros(record.producer_gap),
            tail_gap_us = micros(record.tail_gap),
            usual_gap_us = micros(record.usual_gap),
            "rolled"
        );
        Arc::new(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_last_gaps() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.median(), None);
        for ms in 0..1_000 {
            gaps.push(Duration::from_millis(ms));
        }
        assert_eq!(gaps.median(), Some(Duration::from_millis(936 + 31)));
    }
}
