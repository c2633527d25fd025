//! The rules of the model that was searched exhaustively, written down once more as it has them: each
//! segment a slot that keeps its last state for ever, ends inclusive, and nothing shared with the crate.

use sq_meta::{Applied, Command, Ends, LinkState, MetaState, Partition, PartitionId, Refusal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum St {
    Prepared,
    Active,
    Sealed,
    Dropped,
    Abandoned,
}

#[derive(Clone, Debug)]
struct Slot {
    id: u64,
    st: St,
    pred: Option<u64>,
    base: i64,
    /// Inclusive.
    end: i64,
    writer_epoch: u32,
}

/// One partition.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    id: PartitionId,
    epoch: u32,
    elected: bool,
    slots: Vec<Slot>,
    start: i64,
}

impl Oracle {
    pub(crate) fn new(id: PartitionId, partition: &Partition) -> Self {
        Self {
            id,
            epoch: partition.epoch,
            elected: partition.elected,
            slots: vec![Slot {
                id: partition.active.segment.id.0,
                st: St::Active,
                pred: None,
                base: 0,
                end: -1,
                writer_epoch: 0,
            }],
            start: 0,
        }
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.id == id)
    }

    fn prepared_of(&self, pred: u64) -> Option<u64> {
        let of = |s: &&Slot| s.st == St::Prepared && s.pred == Some(pred);
        self.slots.iter().find(of).map(|s| s.id)
    }

    fn active(&self) -> u64 {
        self.slots.iter().find(|s| s.st == St::Active).unwrap().id
    }

    fn is_led(&self, epoch: u32) -> bool {
        self.epoch == epoch && self.elected
    }

    /// Whether it applies, and applies it.
    fn step(&mut self, command: &Command) -> bool {
        match command {
            Command::PrepareSegment {
                epoch,
                predecessor,
                successor,
                ..
            } => self.prepare(*epoch, predecessor.0, successor.id.0),
            Command::SealSegment {
                epoch,
                segment,
                end,
                successor,
                ..
            } => self.seal(*epoch, segment.0, to_inclusive(*end), successor.0),
            Command::AbandonSegment { epoch, segment, .. } => self.abandon(*epoch, segment.0),
            Command::BeginFailover { .. } => {
                self.epoch += 1;
                self.elected = false;
                true
            }
            Command::ElectLeader {
                epoch,
                ends,
                segment,
                ..
            } => self.elect(*epoch, *ends, segment.id.0),
            Command::AdvanceLogStart {
                epoch, log_start, ..
            } => {
                let log_start = i64::try_from(*log_start).unwrap();
                let active = self.active();
                let applies = self.is_led(*epoch) && log_start <= self.slot(active).unwrap().base;
                if applies {
                    self.start = self.start.max(log_start);
                }
                applies
            }
            _ => false,
        }
    }

    fn prepare(&mut self, epoch: u32, pred: u64, id: u64) -> bool {
        let is_active = self.slot(pred).is_some_and(|s| s.st == St::Active);
        if !self.is_led(epoch) || !is_active {
            return false;
        }
        if self.prepared_of(pred).is_some() {
            return true;
        }
        if self.slot(id).is_some() {
            return false;
        }
        self.slots.push(Slot {
            id,
            st: St::Prepared,
            pred: Some(pred),
            base: 0,
            end: -1,
            writer_epoch: epoch,
        });
        true
    }

    fn seal(&mut self, epoch: u32, id: u64, end: i64, successor: u64) -> bool {
        if !self.is_led(epoch) {
            return false;
        }
        let (Some(slot), is_prepared) = (
            self.slot(id).cloned(),
            self.prepared_of(id) == Some(successor),
        ) else {
            return false;
        };
        if slot.st == St::Sealed {
            let next = self.slot(successor).cloned();
            return slot.end == end
                && next.is_some_and(|n| {
                    n.pred == Some(id)
                        && n.base == end + 1
                        && matches!(n.st, St::Sealed | St::Active)
                });
        }
        if slot.st != St::Active || !is_prepared || end + 1 < slot.base {
            return false;
        }
        let slot = self.slot(id).unwrap();
        slot.st = St::Sealed;
        slot.end = end;
        let next = self.slot(successor).unwrap();
        next.st = St::Active;
        next.base = end + 1;
        true
    }

    fn abandon(&mut self, epoch: u32, id: u64) -> bool {
        let is_led = self.is_led(epoch);
        match self.slot(id) {
            Some(slot) if is_led && slot.st == St::Prepared => {
                slot.st = St::Abandoned;
                true
            }
            _ => false,
        }
    }

    fn elect(&mut self, epoch: u32, ends: Ends, tail: u64) -> bool {
        if self.epoch != epoch || self.elected || self.slot(tail).is_some() {
            return false;
        }
        let a = self.active();
        let s = self.prepared_of(a);
        let da = to_inclusive(ends.active_end);
        let base = self.slot(a).unwrap().base;
        if da + 1 < base || (ends.successor.is_some() && s.is_none()) {
            return false;
        }
        let mut next = da + 1;
        if let Some(kept) = ends.successor {
            let (b, ds) = (i64::try_from(kept.base).unwrap(), to_inclusive(kept.end));
            if b != da + 1 || ds + 1 < b {
                return false;
            }
            let slot = self.slot(s.unwrap()).unwrap();
            (slot.base, slot.end) = (b, ds);
            slot.st = if ds + 1 == b { St::Dropped } else { St::Sealed };
            next = ds + 1;
        } else if let Some(s) = s {
            self.slot(s).unwrap().st = St::Dropped;
        }
        let slot = self.slot(a).unwrap();
        slot.st = if da + 1 == base {
            St::Dropped
        } else {
            St::Sealed
        };
        slot.end = da;
        self.slots.push(Slot {
            id: tail,
            st: St::Active,
            pred: Some(a),
            base: next,
            end: -1,
            writer_epoch: epoch,
        });
        self.elected = true;
        true
    }

    /// Follows one command that the crate has answered, and compares.
    pub(crate) fn follow(
        &mut self,
        command: &Command,
        outcome: &Result<Applied, Refusal>,
        meta: &MetaState,
    ) {
        let mut next = self.clone();
        let applies = next.step(command);
        match outcome {
            Ok(_) => {
                // A seal may be repeated after its segment was dropped; the slots never forget it.
                assert!(applies, "applied against the rules: {command:?}");
                *self = next;
            }
            // The crate has to refuse what names an id that came and went, without remembering it.
            Err(Refusal::Attempt { .. }) => {}
            // So with the repeat of a seal whose successor, too, was dropped meanwhile.
            Err(Refusal::NotActive { segment, .. }) if self.was_dropped(segment.0) => {}
            Err(refusal) => assert!(
                !applies,
                "refused against the rules: {command:?}: {refusal}"
            ),
        }
        self.compare(meta.partition(self.id).unwrap());
    }

    fn was_dropped(&mut self, id: u64) -> bool {
        let start = self.start;
        self.slot(id)
            .is_some_and(|s| s.st == St::Sealed && s.end < start)
    }

    fn compare(&self, partition: &Partition) {
        assert_eq!(
            (self.epoch, self.elected),
            (partition.epoch, partition.elected)
        );
        let chain: Vec<_> = partition
            .chain()
            .map(|link| {
                let (st, base, end) = match link.state {
                    LinkState::Sealed { base, end } => (St::Sealed, base, to_inclusive(end)),
                    LinkState::Active { base } => (St::Active, base, -1),
                    LinkState::Prepared => (St::Prepared, 0, -1),
                };
                let base = i64::try_from(base).unwrap();
                (link.segment.id.0, st, base, end, link.segment.writer_epoch)
            })
            // Those that hold nothing may be kept a while.
            .filter(|link| link.1 != St::Sealed || link.2 <= link.3)
            .collect();
        let mut slots: Vec<_> = self.slots.iter().collect();
        slots.sort_by_key(|s| (s.st != St::Sealed, s.st != St::Active, s.base, s.end));
        let model: Vec<_> = slots
            .into_iter()
            .filter(|s| matches!(s.st, St::Sealed | St::Active | St::Prepared))
            .filter(|s| s.st != St::Sealed || (s.base <= s.end && s.end >= self.start))
            .map(|s| {
                (
                    s.id,
                    s.st,
                    s.base,
                    if s.st == St::Sealed { s.end } else { -1 },
                    s.writer_epoch,
                )
            })
            .collect();
        assert_eq!(chain, model);
    }
}

fn to_inclusive(end: u64) -> i64 {
    i64::try_from(end).unwrap_or(i64::MAX) - 1
}
