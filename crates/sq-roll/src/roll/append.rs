//! Appends, the marks that they pass, and the room that is left.

use std::time::Duration;

use super::{Roll, Trigger};
use crate::{Action, Refusal};

impl Roll {
    pub(super) fn append(&mut self, bytes: u64, records: u64, actions: &mut Vec<Action>) {
        if let Some(trigger) = self.passes_cap(bytes, self.active.age(self.now)) {
            self.active.trigger.get_or_insert(trigger);
            self.switch(actions);
        }
        // A frame larger than a segment gets one to itself.
        if !self.is_empty() && self.size_with(bytes) > self.limits.hard_bytes() {
            self.backpressure = true;
            actions.push(Action::Refuse(Refusal::Backpressure));
            return;
        }
        actions.push(Action::Write {
            segment: self.active.id,
            offset: self.next,
        });
        self.next = self.next.saturating_add(records);
        self.account(bytes);
    }

    /// Never below what is acknowledged, or what another segment holds.
    pub(super) fn withdraw(&mut self, bytes: u64, records: u64) {
        let least = self.committed.max(self.active.base);
        self.next = self.next.saturating_sub(records).max(least);
        self.active.bytes = self.active.bytes.saturating_sub(bytes);
        self.active.durable = self.active.durable.min(self.next);
        if self.is_empty() {
            self.active.began = None;
        }
    }

    pub(super) fn account(&mut self, bytes: u64) {
        self.active.bytes = self.size_with(bytes);
        self.active.began.get_or_insert(self.now);
        self.active.last_append = self.now;
    }

    /// Why a frame of that length belongs on the next segment, if it does.
    pub(super) fn passes_cap(&self, bytes: u64, age: Duration) -> Option<Trigger> {
        if self.is_empty() {
            None
        } else if self.size_with(bytes) > self.limits.cap_bytes {
            Some(Trigger::Size)
        } else if age >= self.limits.cap_age {
            Some(Trigger::Age)
        } else {
            None
        }
    }

    /// Notes that the soft mark is passed. Age alone makes nobody prepare for a segment that is idle.
    pub(super) fn judge(&mut self) {
        if self.is_empty() || self.active.trigger.is_some() {
            return;
        }
        let age = self.active.age(self.now);
        let idle = self.now.saturating_sub(self.active.last_append);
        if self.active.bytes >= self.limits.soft_bytes.min(self.limits.cap_bytes) {
            self.active.trigger = Some(Trigger::Size);
        } else if self.limits.soft_age < Duration::MAX
            && age >= self.limits.soft_age.min(self.limits.cap_age)
            && idle < self.limits.idle_after
        {
            self.active.trigger = Some(Trigger::Age);
        }
    }

    pub(super) fn seal_requested(&mut self) {
        if !self.is_empty() {
            self.active.trigger.get_or_insert(Trigger::Seal);
            self.active.at_once = true;
        }
    }

    /// Whoever was refused may try again: there is somewhere to go, or will be with the next append.
    pub(super) fn relieve(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.backpressure) {
            actions.push(Action::Resume);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.active.base
    }

    fn size_with(&self, bytes: u64) -> u64 {
        self.active.bytes.saturating_add(bytes)
    }
}
