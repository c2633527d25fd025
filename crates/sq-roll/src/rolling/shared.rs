//! What the writer of a log and its driver share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sq_sim::FileSystem;
use sq_storage::{Prepared, SegmentIds};
use tokio::sync::Notify;

use super::history::History;
use super::record::Mark;
use super::settings::{Mode, RollSettings};
use crate::node::lock;
use crate::{
    Action, Event, Limits, Node, Refusal, Request, Roll, Seal, SegmentId, Slack, Switch, Ticket,
};

/// Something for the driver to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Prepare(Request),
    Seal(Seal),
    Abandon(Ticket),
    Discard(SegmentId),
    /// Note when a reader has the record at this offset to read.
    Watch(Ticket, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverState {
    NotStarted,
    Running,
    Gone,
}

/// What the writer of a log and its driver share.
pub(super) struct Shared<F: FileSystem> {
    pub(super) core: Mutex<Core<F>>,
    /// There is something for the driver.
    news: Notify,
    /// What appends wait for may have come.
    pub(super) relief: Notify,
    /// An append begins to wait.
    pub(super) stalled: Notify,
    pub(super) node: Node,
    pub(super) key: u64,
    pub(super) settings: RollSettings,
    ids: SegmentIds,
}

/// What is behind the lock. Nobody holds that over an await.
pub(super) struct Core<F: FileSystem> {
    pub(super) roll: Roll,
    pub(super) slack: Slack,
    pub(super) history: History,
    actions: Vec<Action>,
    /// For the driver.
    work: VecDeque<Work>,
    /// For the driver behind the [`Crossing`].
    held: VecDeque<Work>,
    is_crossing: bool,
    /// What the machine gave a place to and is not written yet: bytes, and records.
    pub(super) placed: Option<(u64, u64)>,
    /// What came meanwhile.
    pub(super) inbox: Vec<Event>,
    /// The successor's file, for the writer.
    pub(super) prepared: Option<Prepared<F>>,
    /// A switch that was decided on, until the writer has made it.
    pub(super) switch: Option<Switch>,
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
        history: History,
        node: Node,
        settings: RollSettings,
        ids: SegmentIds,
    ) -> Self {
        let core = Core {
            roll,
            slack,
            history,
            actions: Vec::new(),
            work: VecDeque::new(),
            held: VecDeque::new(),
            is_crossing: false,
            placed: None,
            inbox: Vec::new(),
            prepared: None,
            switch: None,
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
            stalled: Notify::new(),
            node,
            key,
            settings,
            ids,
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
            core.history.is_past_soft_mark(mark);
        }
        if matches!(event, Event::Ready { .. }) {
            core.history.ready(mark);
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
        if matches!(event, Event::Fenced { .. } | Event::Deleted) {
            self.relief.notify_waiters();
        }
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
                core.history.requested(mark);
                core.ask(Work::Prepare(Request {
                    successor,
                    predecessor,
                    trigger,
                }));
            }
            Action::Switch(switch) => {
                core.history.switched(&switch, mark);
                core.is_crossing = core.placed.is_some();
                let ticket = Ticket {
                    segment: switch.to,
                    epoch: core.roll.epoch(),
                };
                core.ask(Work::Watch(ticket, switch.end));
                core.switch = Some(switch);
                self.relief.notify_waiters();
            }
            // The writer has not made it: nothing is ever written to a successor before everything in
            // front of it is on this machine's disk.
            Action::Reopen { .. } => {
                core.switch = None;
                core.history.reopened();
            }
            Action::Seal {
                segment,
                end,
                successor,
            } => core.ask(Work::Seal(Seal {
                segment,
                end,
                successor,
            })),
            Action::Abandon { successor } => {
                core.history.abandoned();
                core.ask(Work::Abandon(successor));
            }
            Action::Discard { segment } => {
                core.prepared.take_if(|p| p.id() == segment.0);
                core.ask(Work::Discard(segment));
            }
            Action::Finish { .. } => core.history.sealed(mark),
            Action::Resume => self.relief.notify_waiters(),
            Action::Write { .. } | Action::Commit { .. } | Action::Refuse(_) => {}
        }
    }

    /// What the segment holds besides what was appended: its header, marks.
    pub(super) fn account(&self, core: &mut Core<F>, bytes: u64) {
        let more = bytes.saturating_sub(core.roll.active_bytes());
        if more > 0 {
            let _ = self.tell(core, Event::Accounted { bytes: more });
        }
    }

    /// Takes back what was given a place and not written. Whether there was something.
    pub(super) fn withdraw(&self, core: &mut Core<F>) -> bool {
        let Some((bytes, records)) = core.placed.take() else {
            return false;
        };
        let _ = self.tell(core, Event::Withdrawn { bytes, records });
        self.take_in(core);
        true
    }

    /// An append of so many bytes was acknowledged.
    pub(super) fn acknowledged(&self, core: &mut Core<F>, bytes: u64) {
        let now = self.node.now();
        core.slack.appended(now, bytes);
        core.stalled_since = None;
        core.history.acknowledged(now);
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

    /// Not while a record crosses: that is seen to behind it.
    pub(super) fn wake_driver_in_time(&self, core: &Core<F>) {
        if core.is_crossing {
            return;
        }
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
}

impl<F: FileSystem> fmt::Debug for Shared<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl<F: FileSystem> Core<F> {
    /// Leaves something to the driver.
    fn ask(&mut self, work: Work) {
        if self.is_crossing {
            self.held.push_back(work);
        } else {
            self.work.push_back(work);
        }
    }
}

/// The time from a switch that an append brings about until that append is written, or comes to nothing.
///
/// What the switch leaves to the driver waits for its end: a commit of the metadata is a sync as well, and
/// the record that crosses would share the disk with it.
pub(super) struct Crossing<F: FileSystem>(pub(super) Arc<Shared<F>>);

impl<F: FileSystem> Drop for Crossing<F> {
    fn drop(&mut self) {
        let mut core = lock(&self.0.core);
        core.is_crossing = false;
        let held = std::mem::take(&mut core.held);
        core.work.extend(held);
        self.0.wake_driver_in_time(&core);
    }
}
