//! Random commands, most of them meant, some repeated, some long out of date.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sq_meta::codec::{command, snapshot};
use sq_meta::{
    Applied, BrokerId, Command, Ends, Kept, MetaState, NewPartition, PartitionId, Refusal,
    SegmentId,
};

use crate::oracle::Oracle;
use crate::support::{broker, new_topic, segment, topic_id};

/// One draw: what to do, and numbers to do it with.
type Draw = (u8, u8, u8, u8);

const TOPICS: u8 = 2;
const PARTITIONS: u8 = 2;

struct History {
    meta: MetaState,
    /// All that was ever proposed.
    past: Vec<Command>,
    next_segment: u64,
    oracles: BTreeMap<PartitionId, Oracle>,
    leaders: BTreeMap<(PartitionId, u32), BrokerId>,
    /// Segments that left a chain.
    gone: BTreeSet<(PartitionId, SegmentId)>,
}

impl History {
    fn new() -> Self {
        let mut history = Self {
            meta: MetaState::default(),
            past: Vec::new(),
            next_segment: 1,
            oracles: BTreeMap::new(),
            leaders: BTreeMap::new(),
            gone: BTreeSet::new(),
        };
        for id in 0..4 {
            history.apply(&Command::RegisterBroker(broker(id)));
        }
        history
    }

    fn step(&mut self, draw: Draw) {
        let command = self.command(draw);
        self.past.push(command.clone());
        self.apply(&command);
    }

    fn command(&mut self, (what, x, y, z): Draw) -> Command {
        let id = PartitionId {
            topic: topic_id(u128::from(x % TOPICS) + 1),
            partition: u32::from(x / TOPICS % PARTITIONS),
        };
        match what % 20 {
            0..=3 if !self.past.is_empty() => {
                let back = (usize::from(x) << 8 | usize::from(y)) % self.past.len();
                self.past[self.past.len() - 1 - back].clone()
            }
            4 => self.create(x % TOPICS),
            5 if y < 40 => Command::DeleteTopic { topic: id.topic },
            5 => Command::RegisterBroker(broker(u32::from(y % 4))),
            6 => Command::AllocateProducerIds {
                count: u32::from(y),
            },
            _ => match self.meta.partition(id).map(|p| (**p).clone()) {
                None => self.create(x % TOPICS),
                Some(partition) => self.partition_command(id, &partition, what % 20, (y, z)),
            },
        }
    }

    fn create(&mut self, topic: u8) -> Command {
        let id = topic_id(u128::from(topic) + 1);
        if let Some((_, deleted)) = self.meta.deleted().find(|(deleted, _)| *deleted == id) {
            return Command::ForgetDeleted {
                topic: id,
                broker: *deleted.holders.first().unwrap(),
            };
        }
        let partitions = (0..PARTITIONS).map(|p| {
            let leader = u32::from(p % 4);
            NewPartition::empty(BrokerId(leader), self.segment(leader, topic))
        });
        let partitions = partitions.collect();
        Command::CreateTopic(new_topic(
            u128::from(topic) + 1,
            &format!("t{topic}"),
            partitions,
        ))
    }

    fn segment(&mut self, leader: u32, draw: u8) -> sq_meta::NewSegment {
        let other = u32::from(draw % 4);
        let id = self.next_segment;
        self.next_segment += 1;
        if other == leader {
            segment(id, &[leader])
        } else {
            segment(id, &[leader, other])
        }
    }

    fn partition_command(
        &mut self,
        partition: PartitionId,
        p: &sq_meta::Partition,
        what: u8,
        (y, z): (u8, u8),
    ) -> Command {
        let epoch = if y < 20 {
            p.epoch.saturating_sub(1)
        } else {
            p.epoch
        };
        let end = p.active.base + u64::from(z % 8);
        let prepared = p
            .prepared
            .as_ref()
            .map_or(SegmentId(u64::from(z)), |s| s.id);
        match what {
            7..=9 => Command::PrepareSegment {
                partition,
                epoch,
                predecessor: p.active.segment.id,
                attempt: if y % 16 == 0 { u32::from(z) } else { p.attempt },
                successor: self.segment(p.leader.0, z),
            },
            10..=12 => Command::SealSegment {
                partition,
                epoch,
                segment: p.active.segment.id,
                end: if y % 16 == 0 {
                    end.saturating_sub(2)
                } else {
                    end
                },
                successor: prepared,
            },
            13 | 14 => Command::AbandonSegment {
                partition,
                epoch,
                segment: prepared,
            },
            15 => Command::BeginFailover { partition },
            16 | 17 => {
                let kept = y % 3 == 0;
                let leader = u32::from(y % 4);
                Command::ElectLeader {
                    partition,
                    epoch,
                    leader: BrokerId(leader),
                    ends: Ends {
                        active_end: end,
                        successor: kept.then_some(Kept {
                            base: end,
                            end: end + u64::from(y % 5),
                        }),
                    },
                    segment: self.segment(leader, z),
                }
            }
            _ => Command::AdvanceLogStart {
                partition,
                epoch,
                log_start: p.log_start + u64::from(z % 16),
            },
        }
    }

    /// Applies a command and checks all that must hold of a step.
    fn apply(&mut self, command: &Command) {
        assert_eq!(
            &command::decode(&command::encode(command)).unwrap(),
            command
        );
        let before = self.meta.clone();
        let outcome = self.meta.apply(command);
        self.meta
            .validate()
            .unwrap_or_else(|v| panic!("after {command:?}: {v}"));
        if outcome.is_err() {
            assert_eq!(self.meta, before, "{command:?} was refused");
        }
        if let (Command::CreateTopic(topic), Ok(Applied::TopicCreated { repeated: false })) =
            (command, &outcome)
        {
            self.follow_new(topic.id);
        } else if let Some(partition) = partition_of(command) {
            self.follow(partition, command, &outcome, &before);
        }
    }

    fn follow_new(&mut self, topic: sq_meta::TopicId) {
        // What it was before it was deleted and forgotten is of no matter.
        self.leaders.retain(|(id, _), _| id.topic != topic);
        self.gone.retain(|(id, _)| id.topic != topic);
        for (number, partition) in (0..).zip(&self.meta.topic(topic).unwrap().partitions) {
            let id = PartitionId {
                topic,
                partition: number,
            };
            self.oracles.insert(id, Oracle::new(id, partition));
            self.leaders.insert((id, 0), partition.leader);
        }
    }

    fn follow(
        &mut self,
        id: PartitionId,
        command: &Command,
        outcome: &Result<Applied, Refusal>,
        before: &MetaState,
    ) {
        let (Some(old), Some(new)) = (before.partition(id), self.meta.partition(id)) else {
            assert_eq!(*outcome, Err(Refusal::UnknownPartition(id)));
            return;
        };
        assert!(new.epoch >= old.epoch && new.log_start >= old.log_start);
        for sealed in &old.sealed {
            let kept = new.sealed.contains(sealed);
            assert!(
                kept || sealed.end <= new.log_start,
                "a sealed segment changed: {sealed:?}"
            );
        }
        if new.elected {
            let leader = self.leaders.entry((id, new.epoch)).or_insert(new.leader);
            assert_eq!(*leader, new.leader, "two leaders in an epoch");
        }
        let ids = |p: &sq_meta::Partition| -> BTreeSet<_> {
            p.chain().map(|link| (id, link.segment.id)).collect()
        };
        let (old_ids, new_ids) = (ids(old), ids(new));
        self.gone.extend(old_ids.difference(&new_ids));
        assert!(self.gone.is_disjoint(&new_ids), "a segment came back");
        self.oracles
            .get_mut(&id)
            .unwrap()
            .follow(command, outcome, &self.meta);
    }
}

fn partition_of(command: &Command) -> Option<PartitionId> {
    match command {
        Command::PrepareSegment { partition, .. }
        | Command::SealSegment { partition, .. }
        | Command::AbandonSegment { partition, .. }
        | Command::BeginFailover { partition }
        | Command::ElectLeader { partition, .. }
        | Command::AdvanceLogStart { partition, .. } => Some(*partition),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_state_is_valid_and_every_step_is_by_the_rules(
        draws in prop::collection::vec(any::<Draw>(), 1..250),
    ) {
        let mut history = History::new();
        for draw in draws {
            history.step(draw);
        }
        let bytes = snapshot::encode(&history.meta);
        prop_assert_eq!(snapshot::decode(&bytes).unwrap(), history.meta.clone());
    }

    #[test]
    fn a_state_that_was_restored_goes_on_as_the_one_it_was_taken_of(
        draws in prop::collection::vec(any::<Draw>(), 1..120),
        at in 0_usize..120,
    ) {
        let mut history = History::new();
        let mut restored = None;
        for (step, draw) in draws.into_iter().enumerate() {
            if step == at {
                restored = Some(snapshot::decode(&snapshot::encode(&history.meta)).unwrap());
            }
            history.step(draw);
            if let (Some(state), Some(command)) = (&mut restored, history.past.last()) {
                let _ = state.apply(command);
            }
        }
        if let Some(state) = restored {
            prop_assert_eq!(state, history.meta);
        }
    }
}

#[test]
fn the_histories_reach_every_command_and_its_refusal() {
    // A generator that only ever got refusals would show nothing.
    let mut reached = BTreeMap::<(&str, bool), u32>::new();
    let mut rng = 1_u64;
    let mut draw = || {
        rng = rng
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        rng.to_be_bytes()
    };
    for _ in 0..50 {
        let mut history = History::new();
        for _ in 0..250 {
            let [what, x, y, z, ..] = draw();
            let before = history.meta.revision();
            history.step((what, x, y, z));
            let name = match history.past.last().unwrap() {
                Command::PrepareSegment { .. } => "prepare",
                Command::SealSegment { .. } => "seal",
                Command::AbandonSegment { .. } => "abandon",
                Command::BeginFailover { .. } => "begin",
                Command::ElectLeader { ends, .. } if ends.successor.is_some() => "elect, two kept",
                Command::ElectLeader { .. } => "elect",
                Command::AdvanceLogStart { .. } => "advance",
                Command::CreateTopic(_) => "create",
                Command::DeleteTopic { .. } => "delete",
                _ => "other",
            };
            let changed = history.meta.revision() > before;
            *reached.entry((name, changed)).or_default() += 1;
        }
    }
    for name in [
        "prepare",
        "seal",
        "abandon",
        "begin",
        "elect, two kept",
        "elect",
        "advance",
        "create",
        "delete",
    ] {
        for changed in [true, false] {
            let times = reached.get(&(name, changed)).copied().unwrap_or_default();
            assert!(times >= 5, "{name}, {changed}: {reached:?}");
        }
    }
}
