//! How the bytes at risk meet their fate.

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::{Content, Unsynced, at, copy_range, length};
use super::fate::{ContentFate, FileFate, LengthFate, SectorFate};
use crate::draws::Draws;

/// The unit that a disk writes whole or not, in bytes.
const SECTOR: u64 = 512;

impl Content {
    /// The power fails. Of what was not synced remains what `fate` says, and it is durable.
    pub(super) fn power_loss(&mut self, fate: &FileFate, draws: &mut Draws) {
        if !self.is_durable() {
            let (image, _) = self.resolve(fate, draws);
            self.disk.clone_from(&image);
            self.cached = image;
        }
        self.dirty.clear();
        self.lost.clear();
        self.cut_to = None;
        self.journal.clear();
        self.allocated.truncate(self.len());
    }

    /// What the disk holds once the un-synced changes have met their fate, and whether a cut was
    /// among those that reached it.
    pub(super) fn resolve(&self, fate: &FileFate, draws: &mut Draws) -> (Vec<u8>, bool) {
        let content = match &fate.content {
            ContentFate::Mixed => match draws.within(0..=3) {
                0 => ContentFate::Old,
                1 => ContentFate::New,
                2 => ContentFate::Prefix,
                _ => ContentFate::Sectors(SectorFate::ALL.to_vec()),
            },
            other => other.clone(),
        };
        if content == ContentFate::Prefix {
            return self.resolve_prefix(fate.length, draws);
        }
        let length_fate = match (fate.length, &content) {
            (LengthFate::AsContent, ContentFate::Old) => LengthFate::Old,
            (LengthFate::AsContent, ContentFate::Sectors(_)) => LengthFate::Any,
            (LengthFate::AsContent, _) => LengthFate::New,
            (other, _) => other,
        };
        let (len, cut) = self.draw_len(length_fate, draws);
        let mut image = self.disk.clone();
        if cut && let Some(cut_to) = self.cut_to {
            image.truncate(at(cut_to));
        }
        image.resize(image.len().max(self.cached.len()), 0);
        match content {
            ContentFate::New => self.keep(std::slice::from_ref(&(0..u64::MAX)), &mut image),
            ContentFate::NewIn(ranges) => self.keep(&ranges, &mut image),
            ContentFate::Sectors(fates) => self.resolve_sectors(&fates, &mut image, draws),
            ContentFate::Old | ContentFate::Prefix | ContentFate::Mixed => {}
        }
        image.resize(at(len), 0);
        (image, cut)
    }

    /// The length that reached the disk, and whether cuts did.
    fn draw_len(&self, fate: LengthFate, draws: &mut Draws) -> (u64, bool) {
        let (old, new) = (length(&self.disk), self.len());
        let fate = match fate {
            LengthFate::Any => *draws
                .pick(&[LengthFate::Old, LengthFate::New, LengthFate::Between])
                .unwrap_or(&LengthFate::New),
            other => other,
        };
        match fate {
            LengthFate::Old => (old, false),
            LengthFate::Between => (
                draws.within(old.min(new)..=old.max(new)),
                self.cut_to.is_some() && draws.coin(),
            ),
            LengthFate::New | LengthFate::Any | LengthFate::AsContent => {
                (new, self.cut_to.is_some())
            }
        }
    }

    fn keep(&self, ranges: &[Range<u64>], image: &mut [u8]) {
        for range in ranges {
            for dirty in self.dirty.overlap(range.clone()) {
                copy_range(&self.cached, image, dirty);
            }
        }
    }

    /// The changes up to a moment: whole ones, and some bytes of the next.
    fn resolve_prefix(&self, length_fate: LengthFate, draws: &mut Draws) -> (Vec<u8>, bool) {
        let whole = at(draws.within(0..=self.journal.len() as u64));
        let mut image = self.disk.clone();
        let mut cut = false;
        for change in self.journal.iter().take(whole) {
            cut |= matches!(change, Unsynced::SetLen(len) if *len < length(&image));
            replay(change, &mut image);
        }
        if let Some(Unsynced::Write { offset, data }) = self.journal.get(whole) {
            let bytes = at(draws.within(0..=length(data)));
            replay(
                &Unsynced::Write {
                    offset: *offset,
                    data: data.slice(..bytes),
                },
                &mut image,
            );
        }
        if length_fate != LengthFate::AsContent {
            let (len, _) = self.draw_len(length_fate, draws);
            image.resize(at(len), 0);
        }
        (image, cut)
    }

    fn resolve_sectors(&self, fates: &[SectorFate], image: &mut [u8], draws: &mut Draws) {
        let mut at_risk: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for range in self.dirty.iter() {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / SECTOR + 1) * SECTOR);
                at_risk.entry(start / SECTOR).or_default().push(start..end);
                start = end;
            }
        }
        let mut run = (0, SectorFate::Old);
        for (sector, ranges) in at_risk {
            if sector >= run.0 {
                let fate = draws.pick(fates).copied().unwrap_or(SectorFate::Old);
                // A disk often loses neighbouring sectors together: an erase block, a stripe.
                let together = if draws.one_in(4) {
                    draws.within(1..=16)
                } else {
                    1
                };
                run = (sector + together, fate);
            }
            self.resolve_sector(run.1, sector * SECTOR, &ranges, image, draws);
        }
    }

    fn resolve_sector(
        &self,
        fate: SectorFate,
        start: u64,
        at_risk: &[Range<u64>],
        image: &mut [u8],
        draws: &mut Draws,
    ) {
        let end = start + SECTOR;
        let new = match fate {
            SectorFate::Old => return,
            SectorFate::New => start..end,
            SectorFate::Torn => {
                let k = start + draws.within(1..=SECTOR - 1);
                if draws.coin() { start..k } else { k..end }
            }
            SectorFate::Earlier => return self.resolve_earlier(start, at_risk, image, draws),
            SectorFate::Zero | SectorFate::Garbage => {
                for position in at_risk.iter().cloned().flatten() {
                    if let Some(byte) = image.get_mut(at(position)) {
                        *byte = if fate == SectorFate::Zero {
                            0
                        } else {
                            draws.byte()
                        };
                    }
                }
                return;
            }
        };
        for range in at_risk {
            let kept = range.start.max(new.start)..range.end.min(new.end);
            if !kept.is_empty() {
                copy_range(&self.cached, image, kept);
            }
        }
    }

    /// The sector after some of the writes to it.
    fn resolve_earlier(
        &self,
        start: u64,
        at_risk: &[Range<u64>],
        image: &mut [u8],
        draws: &mut Draws,
    ) {
        let writes: Vec<_> = self
            .journal
            .iter()
            .filter_map(|change| match change {
                Unsynced::Write { offset, data }
                    if *offset < start + SECTOR && offset + length(data) > start =>
                {
                    Some((*offset, data))
                }
                _ => None,
            })
            .collect();
        let some = at(draws.within(0..=writes.len() as u64));
        for (offset, data) in writes.into_iter().take(some) {
            for range in at_risk {
                let from = range.start.max(offset);
                let to = range.end.min(offset + length(data));
                for position in from..to {
                    let byte = data.get(at(position - offset));
                    if let (Some(byte), Some(target)) = (byte, image.get_mut(at(position))) {
                        *target = *byte;
                    }
                }
            }
        }
    }
}

fn replay(change: &Unsynced, image: &mut Vec<u8>) {
    match change {
        Unsynced::SetLen(len) => image.resize(at(*len), 0),
        Unsynced::Write { offset, data } => {
            let end = offset + length(data);
            if data.is_empty() {
                return;
            }
            if length(image) < end {
                image.resize(at(end), 0);
            }
            if let Some(target) = image.get_mut(at(*offset)..at(end)) {
                target.copy_from_slice(data);
            }
        }
    }
}
