//! Clients of a log, each of which knows what its topic has to be.

use std::collections::{BTreeMap, BTreeSet};

use sq_storage::TopicName;

use super::runtime::Draws;
use crate::command::{Applied, Command, Ends, Kept, NewPartition, NewSegment, NewTopic, Refusal};
use crate::ids::{BrokerId, PartitionId, ReplicaSet, SegmentId, TopicId};
use crate::state::{Broker, MetaState, Partition};

/// What is not as it was promised to be.
pub(super) type Violation = String;

pub(super) fn broker(id: u32) -> Broker {
    Broker {
        id: BrokerId(id),
        incarnation: 1,
        host: "here".to_owned(),
        port: 9092,
        rack: None,
    }
}

/// The only one that changes a topic of one partition, one command at a time.
#[derive(Debug)]
pub(super) struct Client {
    draws: Draws,
    topic: TopicId,
    name: TopicName,
    /// All that was answered, applied to nothing else.
    model: MetaState,
    /// What was submitted and not answered.
    pending: Option<Command>,
    segments: u64,
    /// Commands whose outcome was looked up, and that had taken place or had not.
    pub(super) found: [u32; 2],
}

impl Client {
    pub(super) fn new(number: u8, seed: u64) -> Self {
        let mut model = MetaState::default();
        model.apply(&Command::RegisterBroker(broker(0))).unwrap();
        Self {
            draws: Draws::new(seed ^ (u64::from(number) << 56)),
            topic: TopicId::from_random(u128::from(number)),
            name: TopicName::new(&format!("t{number}")).unwrap(),
            model,
            pending: None,
            segments: 0,
            found: [0, 0],
        }
    }

    /// The next command; it is under way from now on.
    pub(super) fn propose(&mut self) -> Command {
        let command = self.draw();
        self.pending = Some(command.clone());
        command
    }

    /// It is known that the command was not taken.
    pub(super) fn withdraw(&mut self) {
        self.pending = None;
    }

    /// Hears what came of the command.
    pub(super) fn hear(&mut self, outcome: &Result<Applied, Refusal>) -> Result<(), Violation> {
        let command = self.pending.take().unwrap();
        let expected = self.model.apply(&command);
        if *outcome == expected {
            return Ok(());
        }
        Err(format!("{command:?} gave {outcome:?}, not {expected:?}"))
    }

    /// Looks at a state in which the command under way has taken place or never will.
    pub(super) fn look(&mut self, state: &MetaState) -> Result<(), Violation> {
        let pending = self.pending.take();
        if self.is_as(state, &self.model) {
            self.found[1] += u32::from(pending.is_some());
            return Ok(());
        }
        let mut after = self.model.clone();
        if let Some(command) = &pending {
            let _ = after.apply(command);
            if self.is_as(state, &after) {
                self.model = after;
                self.found[0] += 1;
                return Ok(());
            }
        }
        Err(format!(
            "of topic {} there is {:?}; answered was {:?}, under way {pending:?}",
            self.name,
            state.topic(self.topic),
            self.model.topic(self.topic),
        ))
    }

    fn is_as(&self, state: &MetaState, model: &MetaState) -> bool {
        let deleted = |state: &MetaState| state.deleted.get(&self.topic).cloned();
        state.topic(self.topic) == model.topic(self.topic) && deleted(state) == deleted(model)
    }

    fn segment(&mut self) -> NewSegment {
        self.segments += 1;
        NewSegment {
            id: SegmentId(self.segments),
            replicas: ReplicaSet::new(vec![BrokerId(0)]).unwrap(),
        }
    }

    fn draw(&mut self) -> Command {
        let (topic, partition) = (self.topic, 0);
        let id = PartitionId { topic, partition };
        if self.model.deleted.contains_key(&topic) {
            let broker = BrokerId(0);
            return Command::ForgetDeleted { topic, broker };
        }
        let Some(partition) = self.model.partition(id).map(|p| (**p).clone()) else {
            return Command::CreateTopic(NewTopic {
                id: topic,
                name: self.name.clone(),
                configs: BTreeMap::new(),
                partitions: vec![NewPartition::empty(BrokerId(0), self.segment())],
            });
        };
        if self.draws.one_in(100) {
            return Command::DeleteTopic { topic };
        }
        self.draw_for(id, &partition)
    }

    fn draw_for(&mut self, id: PartitionId, p: &Partition) -> Command {
        let (partition, epoch) = (id, p.epoch);
        let end = p.active.base + self.draws.below(8);
        if !p.elected {
            let successor = p.prepared.is_some().then_some(Kept { base: end, end });
            return Command::ElectLeader {
                partition,
                epoch,
                leader: BrokerId(0),
                ends: Ends {
                    active_end: end,
                    successor,
                },
                segment: self.segment(),
            };
        }
        match (self.draws.below(16), &p.prepared) {
            (0, _) => Command::BeginFailover { partition },
            (1..=3, _) => Command::AdvanceLogStart {
                partition,
                epoch,
                log_start: p.active.base,
            },
            (4, Some(prepared)) => Command::AbandonSegment {
                partition,
                epoch,
                segment: prepared.id,
            },
            (_, Some(prepared)) => Command::SealSegment {
                partition,
                epoch,
                segment: p.active.segment.id,
                end,
                successor: prepared.id,
            },
            (_, None) => Command::PrepareSegment {
                partition,
                epoch,
                predecessor: p.active.segment.id,
                attempt: p.attempt,
                successor: self.segment(),
            },
        }
    }
}

/// The producer ids that were given.
#[derive(Debug, Default)]
pub(super) struct Ids(BTreeSet<i64>);

impl Ids {
    /// Below this one all may be given.
    pub(super) fn end(&self) -> i64 {
        self.0.last().map_or(0, |last| last + 1)
    }

    /// Notes what was given for a request that was made when all below `floor` were.
    pub(super) fn take(&mut self, floor: i64, outcome: &Applied) -> Result<(), Violation> {
        let Applied::ProducerIds(ids) = outcome else {
            return Err(format!("{outcome:?} for producer ids"));
        };
        if ids.start >= floor && ids.clone().all(|id| self.0.insert(id)) {
            return Ok(());
        }
        Err(format!("producer ids {ids:?} were given before"))
    }

    pub(super) fn look(&self, state: &MetaState) -> Result<(), Violation> {
        if state.next_producer_id() >= self.end() {
            return Ok(());
        }
        let next = state.next_producer_id();
        Err(format!(
            "{next} is the next producer id, below {}",
            self.end()
        ))
    }
}
