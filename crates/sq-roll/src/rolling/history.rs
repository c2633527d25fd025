//! What is measured of a log's rolls, and the records that come of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sq_storage::TopicName;

use super::record::{Mark, RollRecord};
use crate::{Node, SegmentId, Switch};

/// What is measured of a log's rolls, and the records of the last of them.
pub(super) struct History {
    node: Node,
    topic: TopicName,
    partition: u32,
    /// How many records are kept.
    most: usize,
    kept: VecDeque<Arc<RollRecord>>,
    draft: Draft,
    finishing: Option<Finishing>,
    last_ack: Option<Duration>,
    gaps: Gaps,
}

/// What is known so far of the active segment's roll.
#[derive(Clone, Copy, Debug, Default)]
struct Draft {
    soft_mark: Option<Mark>,
    request: Option<Mark>,
    ready: Option<Mark>,
    /// How long appends waited for it.
    waited: Duration,
}

/// A roll whose switch is decided on.
#[derive(Debug)]
struct Finishing {
    record: RollRecord,
    /// The last acknowledgement in the old segment.
    last_ack: Option<Duration>,
    /// A record of the new segment was acknowledged.
    is_acknowledged: bool,
    /// And a reader has it to read.
    is_seen: bool,
}

impl Finishing {
    fn is_complete(&self) -> bool {
        self.is_acknowledged && self.is_seen && self.record.sealed.is_some()
    }

    fn gap_until(&self, now: Duration) -> Option<Duration> {
        self.last_ack.map(|last| now.saturating_sub(last))
    }
}

impl History {
    pub(super) fn new(node: Node, topic: TopicName, partition: u32, most: usize) -> Self {
        Self {
            node,
            topic,
            partition,
            most,
            kept: VecDeque::new(),
            draft: Draft::default(),
            finishing: None,
            last_ack: None,
            gaps: Gaps::default(),
        }
    }

    /// The records of the last rolls, the oldest first.
    pub(super) fn records(&self) -> Vec<Arc<RollRecord>> {
        self.kept.iter().cloned().collect()
    }

    /// The soft mark is passed, now or before.
    pub(super) fn is_past_soft_mark(&mut self, mark: Mark) {
        self.draft.soft_mark.get_or_insert(mark);
    }

    /// A successor is asked for, or is asked for again.
    pub(super) fn requested(&mut self, mark: Mark) {
        self.is_past_soft_mark(mark);
        self.draft.request.get_or_insert(mark);
    }

    /// The successor is ready.
    pub(super) fn ready(&mut self, mark: Mark) {
        self.draft.ready.get_or_insert(mark);
    }

    /// The successor will not be used.
    pub(super) fn abandoned(&mut self) {
        self.draft.request = None;
        self.draft.ready = None;
    }

    /// A switch is decided on.
    pub(super) fn switched(&mut self, switch: &Switch, mark: Mark) {
        self.publish_if(|_| true);
        let draft = std::mem::take(&mut self.draft);
        let record = RollRecord {
            topic: self.topic.clone(),
            partition: self.partition,
            from: switch.from,
            to: switch.to,
            end: switch.end,
            trigger: switch.trigger,
            soft_mark: draft.soft_mark.unwrap_or(mark),
            request: draft.request.unwrap_or(mark),
            ready: draft.ready.unwrap_or(mark),
            switch: mark,
            switch_wall_ms: self.node.clock().wall_ms(),
            sealed: None,
            overrun_bytes: switch.overrun_bytes,
            waited: draft.waited,
            producer_gap: None,
            tail_gap: None,
            usual_gap: self.gaps.median(),
        };
        self.finishing = Some(Finishing {
            record,
            last_ack: self.last_ack,
            is_acknowledged: false,
            is_seen: false,
        });
    }

    /// The switch was taken back: there is no such roll.
    pub(super) fn reopened(&mut self) {
        self.finishing = None;
    }

    /// An append waited for so long; with a switch that is not made yet, until that was decided on.
    pub(super) fn waited(&mut self, waited: Duration, is_switching: bool) {
        match &mut self.finishing {
            Some(finishing) if is_switching => finishing.record.waited += waited,
            _ => self.draft.waited += waited,
        }
    }

    /// An append was acknowledged.
    pub(super) fn acknowledged(&mut self, now: Duration) {
        match &mut self.finishing {
            Some(finishing) if !finishing.is_acknowledged => {
                finishing.is_acknowledged = true;
                finishing.record.producer_gap = finishing.gap_until(now);
                self.publish_if(Finishing::is_complete);
            }
            _ => {
                if let Some(last) = self.last_ack {
                    self.gaps.push(now.saturating_sub(last));
                }
            }
        }
        self.last_ack = Some(now);
    }

    /// A reader has the first record of a segment to read.
    pub(super) fn seen(&mut self, now: Duration, segment: SegmentId) {
        if let Some(finishing) = &mut self.finishing
            && finishing.record.to == segment
        {
            finishing.is_seen = true;
            finishing.record.tail_gap = finishing.gap_until(now);
            self.publish_if(Finishing::is_complete);
        }
    }

    /// The old segment's end is committed.
    pub(super) fn sealed(&mut self, mark: Mark) {
        if let Some(finishing) = &mut self.finishing {
            finishing.record.sealed = Some(mark);
        }
        self.publish_if(Finishing::is_complete);
    }

    fn publish_if(&mut self, wanted: impl FnOnce(&Finishing) -> bool) {
        let Some(finishing) = self.finishing.take_if(|finishing| wanted(finishing)) else {
            return;
        };
        let record = Arc::new(finishing.record);
        record.trace();
        self.node.publish(&record);
        self.kept.push_back(record);
        while self.kept.len() > self.most {
            self.kept.pop_front();
        }
    }
}

/// The times between acknowledgements.
#[derive(Clone, Debug, Default)]
struct Gaps {
    last: VecDeque<Duration>,
}

impl Gaps {
    const REMEMBERED: usize = 64;

    fn push(&mut self, gap: Duration) {
        if self.last.len() == Self::REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(gap);
    }

    fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use sq_sim::VirtualClock;

    use super::*;
    use crate::Trigger;

    #[test]
    fn the_median_is_of_the_last_gaps() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.median(), None);
        for ms in 0..1_000 {
            gaps.push(Duration::from_millis(ms));
        }
        assert_eq!(gaps.median(), Some(Duration::from_millis(936 + 31)));
    }

    #[test]
    fn as_many_records_are_kept_as_are_wanted() {
        // One was kept where none was wanted.
        for most in [0, 1, 3] {
            let node = Node::new(Arc::new(VirtualClock::new()), 1);
            let mut told = node.subscribe();
            let topic = TopicName::new("orders").unwrap();
            let mut history = History::new(node, topic, 0, most);
            for n in 0..6 {
                let switch = Switch {
                    from: SegmentId(n),
                    to: SegmentId(n + 1),
                    end: n,
                    reissue: n..n,
                    trigger: Trigger::Size,
                    overrun_bytes: 0,
                };
                let mark = Mark {
                    at: Duration::from_secs(n),
                    bytes: 1_000,
                };
                history.switched(&switch, mark);
            }
            // The last roll is not over.
            let kept: Vec<u64> = history.records().iter().map(|r| r.end).collect();
            let last: Vec<u64> = (0..5).skip(5 - most).collect();
            assert_eq!(kept, last);
            let heard = std::iter::from_fn(|| told.try_recv().ok());
            assert_eq!(heard.count(), 5);
        }
    }
}
