//! A new leader, and what it keeps.

use sq_roll::{Epoch, Start};

use super::Bounds;
use super::chain::{NONE, SLOTS, Verdict};
use super::world::{Broken, File, NOTHING, OFFSETS, Sent, World, segment};

impl World {
    /// Fences one replica of the active segment or of its prepared successor.
    pub(super) fn fence(&mut self, broker: u8) -> bool {
        let epoch = Epoch(u32::from(self.meta.epoch));
        let fence = &mut self.brokers[usize::from(broker)].fence;
        fence.epoch() < epoch && fence.raise(epoch)
    }

    fn answered(&self, slot: u8) -> impl Iterator<Item = u8> + '_ {
        let epoch = Epoch(u32::from(self.meta.epoch));
        self.replicas(slot)
            .filter(move |broker| self.brokers[usize::from(*broker)].fence.epoch() == epoch)
    }

    /// What those that were fenced have; `None` as long as too few were.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let active = self.meta.active()?;
        let base = self.meta.at(active).base;
        let end = |broker| self.file(broker, active).map_or(base, |file| file.end);
        let keep = self.answered(active).map(end).min()?;
        let nothing = Verdict {
            keep,
            successor_base: None,
        };
        let Some(successor) = self.meta.prepared_after(active) else {
            return Some(nothing);
        };
        let files: Vec<_> = self
            .answered(successor)
            .map(|broker| self.file(broker, successor))
            .collect();
        if files.is_empty() {
            return None;
        }
        let bound: Option<Vec<File>> = files.into_iter().collect();
        let Some(bound) = bound else {
            return Some(nothing);
        };
        let base = bound[0].base;
        let last = bound.iter().map(|file| file.end).min()?;
        Some(if keep >= base {
            Verdict {
                keep: last,
                successor_base: Some(base),
            }
        } else {
            nothing
        })
    }

    /// The commits that a broker can have heard of, from the active segment's base on.
    pub(super) fn known_commits(&self, ends: Verdict) -> std::ops::RangeInclusive<u8> {
        let count = self
            .acknowledged
            .iter()
            .take_while(|record| **record != 0)
            .count();
        let known = u8::try_from(count).unwrap().min(ends.keep);
        let base = self
            .meta
            .active()
            .map_or(0, |active| self.meta.at(active).base);
        base..=known.max(base)
    }

    /// Copies what may have been acknowledged to a fresh segment, elects, and lets the leader know.
    pub(super) fn elect(&mut self, bounds: &Bounds, known: u8, replicas: u8, broker: u8) -> bool {
        let epoch = self.meta.epoch;
        let Some(ends) = self.verdict() else {
            return false;
        };
        let (Some(active), fresh) = (self.meta.active(), self.drawn) else {
            return false;
        };
        if self.meta.elected || self.meta.placed() >= bounds.segments || usize::from(fresh) >= SLOTS
        {
            return false;
        }
        let successor = self.meta.prepared_after(active).unwrap_or(NONE);
        let mut payload = [epoch; OFFSETS];
        for (at, record) in (0..ends.keep).zip(&mut payload) {
            let from = match ends.successor_base {
                Some(base) if at >= base => successor,
                _ => active,
            };
            let holds = |file: File| file.base <= at && at < file.end;
            let held = self
                .answered(from)
                .any(|broker| self.file(broker, from).is_some_and(holds));
            if held {
                *record = self.payload(from, at);
            } else if at < known {
                *record = self.acknowledged[usize::from(at)];
            } else {
                self.broken = Some(Broken::Hole);
            }
        }
        self.drawn += 1;
        if !self
            .meta
            .elect(epoch, ends, known, fresh, (broker, replicas))
        {
            return false;
        }
        let carried = File {
            base: known,
            end: ends.keep,
        };
        let sent = &mut self.sent[usize::from(fresh)];
        (sent.writer, sent.frames) = (epoch, Some(carried));
        if known < ends.keep {
            for broker in self.replicas(fresh) {
                self.brokers[usize::from(broker)].files[usize::from(fresh)] = Some(carried);
            }
        }
        let start = Start {
            bytes: u64::from(ends.keep - known),
            next: u64::from(ends.keep),
            ..Start::empty(Epoch(u32::from(epoch)), segment(fresh), u64::from(known))
        };
        self.lead(bounds, epoch, broker, start, payload);
        true
    }

    /// The only broker restarts: its segments can be nobody else's, so their leader goes on where its
    /// disk ends. What it had asked of the metadata, in the same process, was done before or never is.
    pub(super) fn resume(&mut self, bounds: &Bounds, epoch: u8) -> bool {
        let (Some(active), Some(leader)) = (self.meta.active(), self.leader(epoch)) else {
            return false;
        };
        let (broker, mut payload) = (leader.broker, leader.payload);
        let prepared = self.meta.prepared_after(active);
        let written = prepared.filter(|slot| self.file(broker, *slot).is_some());
        let current = written.unwrap_or(active);
        let base = self.meta.at(active).base;
        let file = self
            .file(broker, current)
            .unwrap_or(File { base, end: base });
        for record in &mut payload[usize::from(file.end)..] {
            *record += 10;
        }
        for (sent, file) in self
            .sent
            .iter_mut()
            .zip(&self.brokers[usize::from(broker)].files)
        {
            *sent = Sent {
                writer: sent.writer,
                frames: *file,
                ..NOTHING
            };
        }
        let start = Start {
            bytes: u64::from(file.end - file.base),
            next: u64::from(file.end),
            unsealed: written.map(|_| segment(active)),
            prepared: prepared.filter(|_| written.is_none()).map(segment),
            ..Start::empty(
                Epoch(u32::from(epoch)),
                segment(current),
                u64::from(file.base),
            )
        };
        self.lead(bounds, epoch, broker, start, payload);
        true
    }
}
