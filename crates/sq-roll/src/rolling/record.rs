//! What is kept of a roll.

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
    /// From that last acknowledgement until a reader at the tail has the record behind it to read.
    pub tail_gap: Option<Duration>,
    /// The median time between two acknowledgements, of the last 64 that were not at a roll.
    pub usual_gap: Option<Duration>,
}

impl RollRecord {
    /// From the request to the successor's being ready.
    pub fn prepared_in(&self) -> Duration {
        self.ready.at.saturating_sub(self.request.at)
    }

    /// Says so where what happens is followed.
    pub(super) fn trace(&self) {
        let micros = |gap: Option<Duration>| gap.map(|gap| gap.as_micros());
        tracing::info!(
            topic = self.topic.as_str(),
            partition = self.partition,
            from = %self.from,
            to = %self.to,
            end = self.end,
            trigger = ?self.trigger,
            prepare_us = self.prepared_in().as_micros(),
            overrun_bytes = self.overrun_bytes,
            waited_us = self.waited.as_micros(),
            producer_gap_us = micros(self.producer_gap),
            tail_gap_us = micros(self.tail_gap),
            usual_gap_us = micros(self.usual_gap),
            "rolled"
        );
    }
}
