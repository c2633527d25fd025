//! What the writer of a log and its driver share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::FileSystem;
use sq_storage::{Prepared, SegmentIds, TopicName};
use tokio::sync::Notify;

use super::record::{Draft, Finishing, Gaps, Mark, RollRecord};
use super::settings::{Mode, RollSettings};
use crate::node::lock;
use crate::{
    Action, Event, Limits, Node, Refusal, Request, Roll, Seal, SegmentId, Slack, State, Switch,
    Ticket,
};

/// Something for the driver to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Prepare(Request),
    Seal(Seal),
    Abandon(Ticket),
    Discard(SegmentId),
    /// Note when somebody that waits for the record at this offset is told of it.
    Watch(Ticket, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverState {
    NotStarted,
    Running,
    Gone,
}

/// Why appends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// The segment is at its hard limit.
    Full,
    /// It takes no further write.
    Ended,
}

/// What the writer of a log and its driver share.
pub(super) struct Shared<F: FileSystem> {
    pub(super) core: Mutex<Core<F>>,
    /// There is something for the driver.
    news: Notify,
    /// What appends wait for may have come.
    pub(super) relief: Notify,
    pub(super) node: Node,
    pub(super) key: u64,
    pub(super) settings: RollSettings,
    ids: SegmentIds,
    topic: TopicName,
    partition: u32,
}

/// What is behind the lock. Nobody holds that over an await.
pub(super) struct Core<F: FileSystem> {
    pub(super) roll: Roll,
    pub(super) slack: Slack,
    actions: Vec<Action>,
    work: VecDeque<Work>,
    /// What the machine gave a place to and is not written yet: bytes, and records.
    pub(super) placed: Option<(u64, u64)>,
    /// What came meanwhile.
    pub(super) inbox: Vec<Event>,
    /// The successor's file, for the writer.
    pub(super) prepared: Option<Prepared<F>>,
    /// A switch that was decided on, until the writer has made it.
    pub(super) switch: Option<Switch>,
    draft: Draft,
    finishing: Option<Finishing>,
    last_ack: Option<Duration>,
    gaps: Gaps,
    kept: VecDeque<Arc<RollRecord>>,
    /// Since when appends wait, or fail.
    pub(super) stalled_since: Option<Duration>,
    pub(super) driver: DriverState,
    /// When the driver will look by itself.
    driver_wakes_at: Option<Duration>,
    pub(super) is_closed: bool,
}

impl<F: FileSystem> Shared<F> {
    pub(super) fn new(
        roll: Roll,
        slack: Slack,
        node: Node,
        settings: RollSettings,
        ids: SegmentIds,
        (topic, partition): (TopicName, u32),
    ) -> Self {
        let core = Core {
            roll,
            slack,
            actions: Vec::new(),
            work: VecDeque::new(),
            placed: None,
            inbox: Vec::new(),
            prepared: None,
            switch: None,
            draft: Draft::default(),
            finishing: None,
            last_ack: None,
            gaps: Gaps::default(),
            kept: VecDeque::new(),
            stalled_since: None,
            driver: DriverState::NotStarted,
            driver_wakes_at: None,
            is_closed: false,
        };
        let key = node.key();
        Self {
            core: Mutex::new(core),
            news: Notify::new(),
            relief: Notify::new(),
            node,
            key,
            settings,
            ids,
            topic,
            partition,
        }
    }

    /// Where the marks of the active segment are by now.
    pub(super) fn limits(&self, slack: &Slack) -> Limits {
        let limits = self.node.limits(slack);
        match self.settings.mode {
            Mode::Anticipatory => limits,
            Mode::Reactive => limits.reactive(),
        }
    }

    /// Tells the machine what happened, and sees to what it wants. The answer is that to an append.
    pub(super) fn tell(&self, core: &mut Core<F>, event: Event) -> Result<(), Refusal> {
        let now = self.node.now();
        let before = core.roll.active_bytes();
        let mut actions = std::mem::take(&mut core.actions);
        let mut draw = || SegmentId(self.ids.draw());
        core.roll.handle(now, event, &mut draw, &mut actions);
        let switches = actions.iter().any(|a| matches!(a, Action::Switch(_)));
        let after = core.roll.active_bytes();
        let bytes = if switches { before } else { after };
        let mark = Mark { at: now, bytes };
        if core.roll.trigger().is_some() && !switches {
            core.draft.soft_mark.get_or_insert(mark);
        }
        if matches!(event, Event::Ready { .. }) {
            core.draft.ready.get_or_insert(mark);
        }
        let mut answer = Ok(());
        for action in actions.drain(..) {
            if let Action::Refuse(refusal) = action {
                answer = Err(refusal);
            } else {
                self.see_to(core, mark, action);
            }
        }
        core.actions = actions;
        self.wake_driver_in_time(core);
        answer
    }

    /// [`tell`](Self::tell) for whoever is not the writer. A switch is no answer to it while something
    /// has a place on the old segment that may never be written there: then it is told behind that.
    pub(super) fn tell_between(&self, core: &mut Core<F>, event: Event) {
        if core.placed.is_some() {
            core.inbox.push(event);
        } else {
            let _ = self.tell(core, event);
        }
    }

    /// Tells the machine what came while something was being written.
    pub(super) fn take_in(&self, core: &mut Core<F>) {
        if core.inbox.is_empty() {
            return;
        }
        for event in std::mem::take(&mut core.inbox) {
            let _ = self.tell(core, event);
        }
        self.relief.notify_waiters();
    }

    fn see_to(&self, core: &mut Core<F>, mark: Mark, action: Action) {
        match action {
            Action::Request {
                successor,
                predecessor,
                trigger,
            } => {
                core.draft.soft_mark.get_or_insert(mark);
                core.draft.request.get_or_insert(mark);
                core.work.push_back(Work::Prepare(Request {
                    successor,
                    predecessor,
                    trigger,
                }));
            }
            Action::Switch(switch) => {
                self.switched(core, &switch, mark);
                core.switch = Some(switch);
                self.relief.notify_waiters();
            }
            // The writer has not made it: nothing is ever written to a successor before everything in
            // front of it is on this machine's disk.
            Action::Reopen { .. } => {
                core.switch = None;
                core.finishing = None;
            }
            Action::Seal {
                segment,
                end,
                successor,
            } => core.work.push_back(Work::Seal(Seal {
                segment,
                end,
                successor,
            })),
            Action::Abandon { successor } => {
                core.draft.request = None;
                core.work.push_back(Work::Abandon(successor));
            }
            Action::Discard { segment } => {
                core.prepared.take_if(|p| p.id() == segment.0);
                core.work.push_back(Work::Discard(segment));
            }
            Action::Finish { .. } => {
                if let Some(finishing) = &mut core.finishing {
                    finishing.record.sealed = Some(mark);
                }
                self.publish_if(core, Finishing::is_complete);
            }
            Action::Resume => self.relief.notify_waiters(),
            Action::Write { .. } | Action::Commit { .. } | Action::Refuse(_) => {}
        }
    }

    fn switched(&self, core: &mut Core<F>, switch: &Switch, mark: Mark) {
        self.publish_if(core, |_| true);
        core.slack.switched(switch.to);
        let draft = std::mem::take(&mut core.draft);
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
            usual_gap: core.gaps.median(),
        };
        core.finishing = Some(Finishing {
            record,
            last_ack: core.last_ack,
            is_acknowledged: false,
            is_seen: false,
        });
        let ticket = Ticket {
            segment: switch.to,
            epoch: core.roll.epoch(),
        };
        core.work.push_back(Work::Watch(ticket, switch.end));
    }

    fn publish_if(&self, core: &mut Core<F>, wanted: impl FnOnce(&Finishing) -> bool) {
        let Some(finishing) = core.finishing.take_if(|finishing| wanted(finishing)) else {
            return;
        };
        let record = finishing.into_record();
        self.node.publish(&record);
        while core.kept.len() >= self.settings.kept_records.max(1) {
            core.kept.pop_front();
        }
        core.kept.push_back(record);
    }

    /// An append of so many bytes was acknowledged.
    pub(super) fn acknowledged(&self, core: &mut Core<F>, bytes: u64) {
        let now = self.node.now();
        core.slack.appended(now, bytes);
        core.stalled_since = None;
        match &mut core.finishing {
            Some(finishing) if !finishing.is_acknowledged => {
                finishing.acknowledged(now);
                self.publish_if(core, Finishing::is_complete);
            }
            _ => {
                if let Some(last) = core.last_ack {
                    core.gaps.push(now.saturating_sub(last));
                }
            }
        }
        core.last_ack = Some(now);
    }

    /// Somebody that waited for the first record of a segment was told of it.
    pub(super) fn seen(&self, segment: SegmentId) {
        let now = self.node.now();
        let mut core = lock(&self.core);
        if let Some(finishing) = &mut core.finishing
            && finishing.record.to == segment
        {
            finishing.seen(now);
            self.publish_if(&mut core, Finishing::is_complete);
        }
    }

    /// Whether appends may go on; how long they waited for it is noted.
    pub(super) fn is_relieved(&self, core: &mut Core<F>, stall: Stall, began: Duration) -> bool {
        let is_over = core.switch.is_some()
            || match (stall, core.roll.state()) {
                (_, State::Stopped) => true,
                (Stall::Full, state) => state != State::Backpressure,
                (Stall::Ended, _) => false,
            };
        if is_over {
            self.waited(core, began);
        }
        is_over
    }

    /// An append waited for the roll.
    fn waited(&self, core: &mut Core<F>, began: Duration) {
        let waited = self.node.now().saturating_sub(began);
        match &mut core.finishing {
            // It came with the switch.
            Some(finishing) if core.switch.is_some() => finishing.record.waited += waited,
            _ => core.draft.waited += waited,
        }
    }

    /// Whether an append has waited for long enough.
    pub(super) fn gives_up(&self, core: &mut Core<F>, began: Duration) -> bool {
        let now = self.node.now();
        let since = *core.stalled_since.get_or_insert(now);
        let gives_up = core.is_closed
            || core.driver == DriverState::Gone
            || now.saturating_sub(since) >= self.settings.longest_wait;
        if gives_up {
            self.waited(core, began);
        } else {
            self.wake_driver_in_time(core);
        }
        gives_up
    }

    /// When the driver has to look, if nothing is told before.
    fn deadline(&self, core: &Core<F>) -> Option<Duration> {
        let longest = self.settings.longest_wait;
        let stall = core
            .stalled_since
            .map(|since| since.saturating_add(longest));
        // Those who fail at once need nobody to wake them.
        let stall = stall.filter(|at| *at > self.node.now());
        [stall, core.roll.deadline()].into_iter().flatten().min()
    }

    fn wake_driver_in_time(&self, core: &Core<F>) {
        let sooner = |at| core.driver_wakes_at.is_none_or(|wakes| at < wakes);
        if !core.work.is_empty() || self.deadline(core).is_some_and(sooner) {
            self.news.notify_one();
        }
    }

    /// Does what is due by now and takes what there is to do, and how long the driver may sleep then, at
    /// most for ever. `None` if the log is closed.
    pub(super) fn take_work(&self, work: &mut VecDeque<Work>) -> Option<Duration> {
        let now = self.node.now();
        let mut core = lock(&self.core);
        if core.is_closed {
            return None;
        }
        if core.roll.deadline().is_some_and(|at| at <= now) {
            let _ = self.tell(&mut core, Event::Tick);
        }
        let longest = self.settings.longest_wait;
        if core
            .stalled_since
            .is_some_and(|since| since.saturating_add(longest) <= now)
        {
            self.relief.notify_waiters();
        }
        std::mem::swap(&mut core.work, work);
        core.driver_wakes_at = self.deadline(&core);
        let pause = core.driver_wakes_at.map(|at| at.saturating_sub(now));
        Some(pause.unwrap_or(Duration::MAX))
    }

    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    pub(super) fn close(&self) {
        lock(&self.core).is_closed = true;
        self.news.notify_one();
        self.relief.notify_waiters();
    }

    pub(super) fn records(&self) -> Vec<Arc<RollRecord>> {
        lock(&self.core).kept.iter().cloned().collect()
    }
}
