//! Appends: where they go, and what they wait for.

use std::sync::Arc;

use sq_sim::FileSystem;
use sq_storage::log::{Append, Head};
use sq_storage::{Error, Result, WalWriter};

use super::driver::Driver;
use super::follow::Condition;
use super::handle::RollHandle;
use super::history::History;
use super::settings::RollSettings;
use super::shared::{Crossing, DriverState, Shared};
use super::stall::Stall;
use crate::node::lock;
use crate::{Epoch, Event, Node, Refusal, Roll, SegmentId, Slack, Start, SuccessorSource, Switch};

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
    pub(super) writer: WalWriter<F>,
    pub(super) shared: Arc<Shared<F>>,
    /// The machine's active segment has, or had, its file.
    pub(super) is_begun: bool,
    /// A write of the active segment failed.
    pub(super) has_failed: bool,
    closing: CloseOnDrop<F>,
}

struct CloseOnDrop<F: FileSystem>(Arc<Shared<F>>);

impl<F: FileSystem> Drop for CloseOnDrop<F> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the machine said about an append.
struct Place {
    /// How many frames have one.
    count: usize,
    /// What is to be made first.
    switch: Option<Switch>,
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
        let history = History::new(
            node.clone(),
            writer.topic().clone(),
            writer.partition(),
            settings.kept_records,
        );
        let ids = writer.config().segment_ids.clone();
        let shared = Shared::new(roll, slack, history, node.clone(), settings, ids);
        let shared = Arc::new(shared);
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

    /// Asks the machine for a place for as many of `frames` as fit one segment, and at least for so many.
    fn place(&mut self, frames: &[Append], at_least: usize) -> Result<Place, Refusal> {
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
            records += u64::from(frame.record_count());
        }
        if count > 0 {
            let before = core.placed;
            let (other_bytes, other_records) = before.unwrap_or_default();
            core.placed = Some((other_bytes + bytes, other_records + records));
            let told = self
                .shared
                .tell(&mut core, Event::Append { bytes, records });
            if let Err(refusal) = told {
                core.placed = before;
                return Err(refusal);
            }
        }
        let switch = core.switch.clone();
        Ok(Place { count, switch })
    }

    /// Makes the switch that an append brings about, and has those of the frames behind it written with
    /// it that fit as well. Returns how many these are.
    async fn cross(&mut self, switch: &Switch, behind: &[Append]) -> usize {
        self.make_switch(switch).await;
        self.place(behind, 0).map_or(0, |place| place.count)
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
        } else if !self.is_in_step() {
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

    /// Why nothing goes on: what failed before, the disk has no room for a successor, or there is none.
    async fn gave_up(&self, failure: Option<Error>) -> Error {
        if let Some(failure) = failure {
            return failure;
        }
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
        let more = u64::from(frame.record_count());
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
                if self.shared.wait(Stall::Ended).await {
                    continue;
                }
                return Err(self.gave_up(failure).await);
            }
            if let Err(error) = self.sync_before_switch(first.frame_len() as u64).await {
                failure = Some(error);
                continue;
            }
            let Place { mut count, switch } = match self.place(frames, 1) {
                Ok(place) => place,
                Err(Refusal::Backpressure) if self.shared.wait(Stall::Full).await => continue,
                Err(Refusal::Backpressure) => return Err(self.gave_up(None).await),
                Err(refusal) => return Err(self.stopped(refusal)),
            };
            // Ends with this append, however that ends.
            let _crossing = switch.is_some().then(|| Crossing(Arc::clone(&self.shared)));
            if let Some(switch) = &switch {
                let behind = frames.get(count..).unwrap_or_default();
                count += self.cross(switch, behind).await;
            }
            match self.write(frames.get(..count).unwrap_or(frames)).await {
                Ok(count) => return Ok(count),
                Err(error) => {
                    self.shared.withdraw(&mut lock(&self.shared.core));
                    if self.is_in_step() {
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
            if self.take_over().await? == Condition::Ended && !self.shared.wait(Stall::Ended).await
            {
                return Err(self.gave_up(failure).await);
            }
            match self.sync_writer().await {
                Err(error) if self.is_in_step() => return Err(error),
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
