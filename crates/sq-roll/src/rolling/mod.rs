//! A log's writer whose segments follow each other by the state machine.

mod calls;
mod driver;
mod handle;
mod record;
mod settings;
mod shared;

use std::sync::Arc;

use sq_sim::FileSystem;
use sq_storage::log::{Append, Head};
use sq_storage::{Error, Result, WalWriter};

pub use driver::Driver;
pub use handle::RollHandle;
pub use record::{Mark, RollRecord};
pub use settings::{Mode, RollSettings};

use crate::node::lock;
use crate::{Epoch, Event, Node, Refusal, Roll, SegmentId, Slack, Start, State, SuccessorSource};
use shared::{DriverState, Shared, Stall};

/// The writer of a log that goes on in the next segment without a wait: a successor is prepared before
/// the active segment is full, and the append that would pass the cap goes there like any other, with
/// one write and one sync.
///
/// What has to be done meanwhile is the [`Driver`]'s, which shares the state machine with this, behind
/// a lock that nobody holds while something is waited for. An append asks the machine where it goes,
/// and makes a switch that it has decided on; there is nothing else on its way. It waits only where
/// the segment is at its hard limit, or takes no further write since one failed, and no successor is
/// ready: for at most [`RollSettings::longest_wait`], and then it has appended nothing.
///
/// What a roll leaves to be done for the files is the writer's
/// [`Maintenance`](sq_storage::Maintenance): have somebody else run that as well
/// ([`MaintenanceMode::Handed`](sq_storage::MaintenanceMode::Handed)), or an append does it.
///
/// A write or sync that fails is made again on the successor, at the same offsets. It is an error only
/// where there is none in time, or where several files in a row fail.
///
/// ```text
///  append ──▶ machine ──▶ WalWriter: write, sync      (the caller's, or a log's turn)
///                │  ▲
///       requests ▼  │ answers
///              Driver ──▶ SuccessorSource, file        (a task)
/// ```
pub struct RollingWriter<F: FileSystem> {
    writer: WalWriter<F>,
    shared: Arc<Shared<F>>,
    /// The machine's active segment has, or had, its file.
    is_begun: bool,
    /// A write of the active segment failed.
    has_failed: bool,
    closing: CloseOnDrop<F>,
}

struct CloseOnDrop<F: FileSystem>(Arc<Shared<F>>);

impl<F: FileSystem> Drop for CloseOnDrop<F> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How the writer stands to what the machine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// The active segment takes writes.
    Good,
    /// It takes none any more, and there is no other yet.
    Ended,
}

impl Start {
    /// Where a log goes on whose writer was just opened: in the segment that it has, or in a fresh one.
    /// A source that others know of the segments from can know better.
    pub fn resume<F: FileSystem>(writer: &WalWriter<F>, epoch: Epoch) -> Self {
        let next = writer.next_offset();
        let Some(active) = writer.active_segment() else {
            let fresh = SegmentId(writer.config().segment_ids.draw());
            return Self::empty(epoch, fresh, next);
        };
        Self {
            bytes: active.bytes,
            age: active.age,
            next,
            ..Self::empty(epoch, SegmentId(active.id), active.base_offset)
        }
    }
}

impl<F: FileSystem> RollingWriter<F> {
    /// A writer that goes on from `start`, and its driver, which prepares files through `fs`: where the
    /// writer's file system blocks the thread it is called on, one that does not.
    pub fn new<S: SuccessorSource>(
        mut writer: WalWriter<F>,
        start: Start,
        source: Arc<S>,
        node: &Node,
        settings: RollSettings,
        fs: Arc<F>,
    ) -> (Self, Driver<F, S>) {
        writer.take_no_step_alone();
        let now = node.now();
        let slack = Slack::new(settings.slack, settings.limits, settings.seed, start.active);
        let roll = Roll::new(start, settings.limits, settings.patience, now);
        let shared = Arc::new(Shared::new(
            roll,
            slack,
            node.clone(),
            settings,
            writer.config().segment_ids.clone(),
            (writer.topic().clone(), writer.partition()),
        ));
        let is_begun = writer
            .active_segment()
            .is_some_and(|active| active.id == start.active.0);
        let driver = Driver::new(
            Arc::clone(&shared),
            source,
            writer.preparer_through(fs),
            writer.reader(),
        );
        let writer = Self {
            writer,
            closing: CloseOnDrop(Arc::clone(&shared)),
            shared,
            is_begun,
            has_failed: false,
        };
        (writer, driver)
    }

    /// What others see of the rolls, and ask of them.
    pub fn handle(&self) -> RollHandle<F> {
        let shared = Arc::clone(&self.shared);
        RollHandle { shared }
    }

    /// Makes a switch that was decided on, such as by [`RollHandle::seal`]. The next append would do so.
    ///
    /// # Errors
    /// As for an append.
    pub async fn settle(&mut self) -> Result<()> {
        self.take_over().await.map(drop)
    }

    /// Brings the writer to where the machine is, and tells the machine what became of the segment.
    async fn take_over(&mut self) -> Result<Condition> {
        if self.withdraw() && self.active().is_none() {
            self.has_failed = true;
        }
        loop {
            self.make_switch().await;
            let (segment, is_empty, is_ending) = {
                let core = lock(&self.shared.core);
                if core.roll.state() == State::Stopped {
                    return Ok(Condition::Good);
                }
                let is_empty = core.roll.next_offset() == core.roll.active_base();
                (core.roll.active(), is_empty, core.roll.is_ending())
            };
            if let Some(active) = self.writer.active_segment()
                && active.id == segment.0
            {
                self.is_begun = true;
                self.account(active.bytes);
                return Ok(Condition::Good);
            }
            if is_empty && !self.is_begun {
                self.writer.begin(segment.0).await?;
                continue;
            }
            if is_ending {
                return Ok(Condition::Ended);
            }
            // Retention ends a segment in good order.
            let event = if self.has_failed || is_empty {
                Event::ReplicaFailed { segment }
            } else {
                Event::SealRequested
            };
            self.has_failed = false;
            self.tell(event);
        }
    }

    /// Makes the switch that the machine has decided on, if there is one.
    async fn make_switch(&mut self) {
        let Some(switch) = lock(&self.shared.core).switch.clone() else {
            return;
        };
        let segment = switch.from;
        if self.writer.unsynced_since().is_some() && self.writer.active_segment().is_some() {
            // What a failure leaves is seen below.
            let _ = self.writer.sync().await;
        }
        // A sync that was under way when the switch was decided on tells nothing, nor how it ended.
        let end = self.writer.durable_offset();
        self.tell(Event::Durable { segment, end });
        if end < switch.end {
            self.tell(Event::ReplicaFailed { segment });
            return;
        }
        let prepared = lock(&self.shared.core).prepared.take();
        if let Some(prepared) = prepared {
            // None is armed, unless the switch to it came to nothing.
            drop(self.writer.disarm());
            let _ = self.writer.arm(prepared);
        }
        if self.writer.unsynced_since().is_some()
            && let Err(error) = self.writer.sync().await
        {
            tracing::warn!(%error, "acknowledged records are not on a disk yet");
        }
        if self.writer.armed() == Some(switch.to.0) {
            self.writer.switch();
        }
        self.is_begun = true;
        self.has_failed = false;
        lock(&self.shared.core).switch = None;
        if let Some(bytes) = self.active() {
            self.account(bytes);
        }
    }

    /// The size of the machine's active segment, if the writer writes that.
    fn active(&self) -> Option<u64> {
        let segment = lock(&self.shared.core).roll.active();
        let active = self.writer.active_segment()?;
        (active.id == segment.0).then_some(active.bytes)
    }

    /// What the segment holds besides what was appended: its header, marks.
    fn account(&self, bytes: u64) {
        let mut core = lock(&self.shared.core);
        let more = bytes.saturating_sub(core.roll.active_bytes());
        if more > 0 {
            let _ = self
                .shared
                .tell(&mut core, Event::Accounted { bytes: more });
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.shared.tell(&mut lock(&self.shared.core), event);
    }

    /// Takes back what was given a place and not written. Whether there was something.
    fn withdraw(&mut self) -> bool {
        let mut core = lock(&self.shared.core);
        let Some((bytes, records)) = core.placed.take() else {
            return false;
        };
        let withdrawn = Event::Withdrawn { bytes, records };
        let _ = self.shared.tell(&mut core, withdrawn);
        self.shared.take_in(&mut core);
        true
    }

    /// Asks the machine for a place for as many of `frames` as fit one segment; with `at_least` none,
    /// for as many as still fit behind those that have one. Returns how many that were.
    fn place(&mut self, frames: &[Append], at_least: usize) -> Result<usize, Refusal> {
        let mut core = lock(&self.shared.core);
        let limits = self.shared.limits(&core.slack);
        core.roll.set_limits(limits);
        let room = core.roll.room();
        let (mut count, mut bytes, mut records) = (0, 0, 0);
        for frame in frames {
            let len = frame.frame_len() as u64;
            if count >= at_least && bytes + len > room {
                break;
            }
            count += 1;
            bytes += len;
            records += u64::from(frame.batch().record_count);
        }
        if count > 0 {
            self.shared
                .tell(&mut core, Event::Append { bytes, records })?;
            let before = core.placed.unwrap_or_default();
            core.placed = Some((before.0 + bytes, before.1 + records));
        }
        Ok(count)
    }

    /// What is acknowledged and not synced is made durable before a switch, which then is in memory
    /// only.
    async fn sync_before_switch(&mut self, bytes: u64) -> Result<()> {
        if self.writer.unsynced_since().is_none() {
            return Ok(());
        }
        let now = self.shared.node.now();
        if lock(&self.shared.core).roll.switches_for(now, bytes) {
            self.sync_writer().await?;
        }
        Ok(())
    }

    async fn sync_writer(&mut self) -> Result<()> {
        let synced = self.writer.sync().await;
        if synced.is_ok() {
            self.tell_durable();
        } else if self.active().is_none() {
            self.has_failed = true;
        }
        synced
    }

    fn tell_durable(&self) {
        let end = self.writer.durable_offset();
        let mut core = lock(&self.shared.core);
        let segment = core.roll.active();
        let _ = self.shared.tell(&mut core, Event::Durable { segment, end });
    }

    /// Waits until appends may go on. `false`: for too long.
    async fn wait(&self, stall: Stall) -> bool {
        let began = self.shared.node.now();
        loop {
            let relief = self.shared.relief.notified();
            {
                let mut core = lock(&self.shared.core);
                if self.shared.is_relieved(&mut core, stall, began) {
                    return true;
                }
                if self.shared.gives_up(&mut core, began) {
                    return false;
                }
            }
            relief.await;
        }
    }

    /// Writes frames that have a place, and says how many went into one write.
    async fn write(&mut self, frames: &[Append]) -> Result<usize> {
        let count = Head::append(&mut self.writer, frames).await?;
        let (bytes, records) = size(frames.get(count..).unwrap_or_default());
        let end = self.writer.durable_offset();
        let mut core = lock(&self.shared.core);
        let (placed, _) = core.placed.take().unwrap_or_default();
        if records > 0 {
            let withdrawn = Event::Withdrawn { bytes, records };
            let _ = self.shared.tell(&mut core, withdrawn);
        }
        let segment = core.roll.active();
        let durable = Event::Durable { segment, end };
        let _ = self.shared.tell(&mut core, durable);
        self.shared.acknowledged(&mut core, placed - bytes);
        self.shared.take_in(&mut core);
        Ok(count)
    }

    /// Why appends can't go on: there is no successor, or the disk has no room for one.
    async fn no_successor(&self) -> Error {
        if let Some(reserve) = self.writer.config().reserve.clone()
            && let Err(full) = reserve.give_back_if_short().await
        {
            return full;
        }
        let path = self.writer.dir().to_path_buf();
        Error::NoSuccessor { path }
    }

    fn stopped(&self, refusal: Refusal) -> Error {
        Error::Stopped {
            path: self.writer.dir().to_path_buf(),
            reason: refusal.to_string(),
        }
    }
}

/// The bytes and records of frames.
fn size(frames: &[Append]) -> (u64, u64) {
    frames.iter().fold((0, 0), |(bytes, records), frame| {
        let more = u64::from(frame.batch().record_count);
        (bytes + frame.frame_len() as u64, records + more)
    })
}

impl<F: FileSystem> Head<F> for RollingWriter<F> {
    fn writer(&self) -> &WalWriter<F> {
        &self.writer
    }

    fn writer_mut(&mut self) -> &mut WalWriter<F> {
        &mut self.writer
    }

    async fn append(&mut self, frames: &[Append]) -> Result<usize> {
        let Some(first) = frames.first() else {
            return Ok(0);
        };
        let mut failure = None;
        loop {
            if self.take_over().await? == Condition::Ended {
                if self.wait(Stall::Ended).await {
                    continue;
                }
                return Err(match failure {
                    Some(failure) => failure,
                    None => self.no_successor().await,
                });
            }
            if let Err(error) = self.sync_before_switch(first.frame_len() as u64).await {
                failure = Some(error);
                continue;
            }
            let mut count = match self.place(frames, 1) {
                Ok(count) => count,
                Err(Refusal::Backpressure) if self.wait(Stall::Full).await => continue,
                Err(Refusal::Backpressure) => return Err(self.no_successor().await),
                Err(refusal) => return Err(self.stopped(refusal)),
            };
            if lock(&self.shared.core).switch.is_some() {
                self.make_switch().await;
                let rest = frames.get(count..).unwrap_or_default();
                count += self.place(rest, 0).unwrap_or_default();
            }
            match self.write(frames.get(..count).unwrap_or(frames)).await {
                Ok(count) => return Ok(count),
                Err(error) => {
                    self.withdraw();
                    if self.active().is_some() {
                        return Err(error);
                    }
                    tracing::warn!(%error, "a segment ends before its time");
                    self.has_failed = true;
                    failure = Some(error);
                }
            }
        }
    }

    async fn sync(&mut self) -> Result<()> {
        let mut failure = None;
        while self.writer.unsynced_since().is_some() {
            if self.take_over().await? == Condition::Ended && !self.wait(Stall::Ended).await {
                return Err(match failure {
                    Some(failure) => failure,
                    None => self.no_successor().await,
                });
            }
            match self.sync_writer().await {
                Err(error) if self.active().is_some() => return Err(error),
                Err(error) => failure = Some(error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        // What a failed sync left in memory may need the driver to find it a place.
        let synced = self.sync().await;
        let Self {
            writer,
            shared,
            closing,
            ..
        } = self;
        drop(closing);
        loop {
            let gone = shared.relief.notified();
            let is_running = lock(&shared.core).driver == DriverState::Running;
            if !is_running {
                break;
            }
            gone.await;
        }
        // Removed by the writer as it closes.
        drop(lock(&shared.core).prepared.take());
        let closed = writer.close().await;
        synced.and(closed)
    }
}

impl<F: FileSystem> std::fmt::Debug for RollingWriter<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RollingWriter")
            .field("writer", &self.writer)
            .finish_non_exhaustive()
    }
}
