//! Partitions of one node in virtual time: the state machine, the slack and the schedule that ship.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use sq_roll::{
    Action, Epoch, Event, Latencies, Limits, Patience, Preparations, Roll, SegmentId, Slack,
    SlackSettings, SoftMark, Start, State, Ticket,
};

use super::load::{Delay, Load, Random};

/// How long a write takes to be durable, and a seal to be committed.
const SYNC: Duration = Duration::from_millis(1);
const SEAL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) load: Load,
    pub(super) delay: Delay,
    pub(super) partitions: usize,
    pub(super) soft_mark: SoftMark,
    pub(super) jitter: f64,
    pub(super) limits: Limits,
    pub(super) frame_bytes: u64,
    pub(super) length: Duration,
    /// How many preparations the node runs at once.
    pub(super) at_once: usize,
    pub(super) seed: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) rolls: u64,
    /// The successor was not ready when the segment was at its cap.
    pub(super) late: u64,
    /// Appends that waited for a roll.
    pub(super) stalled: u64,
    /// Rolls at which that would not have been so, had the successor been asked for as early as can be:
    /// when the segment began, or when the one before it was sealed. A preparation more than twice as
    /// long, or writes more than twice as fast, as any that were known when the segment began are a
    /// surprise, and do not count.
    pub(super) avoidable: u64,
    /// Bytes that were still to come when the successor was ready, on all rolls.
    pub(super) unused_slack: u64,
    /// The most successors that were ready at one time.
    pub(super) ahead: usize,
    /// The most preparations that ran at one time.
    pub(super) running: usize,
    /// The largest a segment was.
    pub(super) largest: u64,
    /// When segments were switched to, and each partition's first such time.
    pub(super) first_rolls: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Append,
    Durable { segment: SegmentId, end: u64 },
    Ready(Ticket),
    Sealed(Ticket),
    Tick,
}

struct Partition {
    roll: Roll,
    slack: Slack,
    tick: Option<Duration>,
    refused: bool,
    /// Since when a successor could have been asked for.
    possible: Duration,
    asked: Option<(Duration, Ticket)>,
    /// How long this roll's preparation takes once it runs.
    takes: Duration,
    /// What was known when the segment began: the longest preparation of the node, and the highest rate
    /// of the partition.
    longest: Duration,
    fastest: f64,
    armed: bool,
    rolled: bool,
}

pub(super) struct World {
    scenario: Scenario,
    now: Duration,
    partitions: Vec<Partition>,
    preparations: Preparations<usize>,
    latencies: Latencies,
    random: Random,
    drawn: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(Duration, u64, usize, What)>>,
    /// How many successors are ready.
    ahead: usize,
    outcome: Outcome,
}

pub(super) fn run(scenario: Scenario) -> Outcome {
    let mut world = World::new(scenario);
    while let Some(Reverse((at, _, who, what))) = world.queue.pop() {
        if at > scenario.length {
            break;
        }
        world.now = at;
        world.happen(who, what);
    }
    world.outcome
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let settings = SlackSettings {
            soft_mark: scenario.soft_mark,
            jitter: scenario.jitter,
            ..SlackSettings::default()
        };
        let partitions = (0..scenario.partitions).map(|who| {
            let segment = SegmentId(u64::try_from(who).unwrap() + 1);
            let slack = Slack::new(settings, scenario.limits, scenario.seed, segment);
            let start = Start::empty(Epoch(1), segment, 0);
            Partition {
                roll: Roll::new(start, scenario.limits, Patience::default(), Duration::ZERO),
                slack,
                tick: None,
                refused: false,
                possible: Duration::ZERO,
                asked: None,
                takes: Duration::ZERO,
                longest: Duration::ZERO,
                fastest: 0.0,
                armed: false,
                rolled: false,
            }
        });
        let mut world = Self {
            scenario,
            now: Duration::ZERO,
            partitions: partitions.collect(),
            preparations: Preparations::new(scenario.at_once),
            latencies: Latencies::default(),
            random: Random::new(scenario.seed),
            drawn: u64::try_from(scenario.partitions).unwrap(),
            order: 0,
            queue: BinaryHeap::new(),
            ahead: 0,
            outcome: Outcome::default(),
        };
        for who in 0..scenario.partitions {
            world.after(Duration::ZERO, who, What::Append);
        }
        world
    }

    fn after(&mut self, wait: Duration, who: usize, what: What) {
        self.at(self.now + wait, who, what);
    }

    fn at(&mut self, at: Duration, who: usize, what: What) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, who, what)));
    }

    fn happen(&mut self, who: usize, what: What) {
        let event = match what {
            What::Append => Event::Append {
                bytes: self.scenario.frame_bytes,
                records: 1,
            },
            What::Durable { segment, end } => Event::Durable { segment, end },
            What::Ready(successor) => {
                self.ready(who);
                Event::Ready { successor }
            }
            What::Sealed(segment) => {
                self.partitions[who].possible = self.now;
                Event::Sealed { segment }
            }
            What::Tick => {
                self.partitions[who].tick = None;
                Event::Tick
            }
        };
        let partition = &mut self.partitions[who];
        partition
            .roll
            .set_limits(partition.slack.limits(&self.latencies));
        let drawn = &mut self.drawn;
        let mut draw = || {
            *drawn += 1;
            SegmentId(*drawn)
        };
        let actions = partition.roll.on(self.now, event, &mut draw);
        for action in actions {
            self.obey(who, action);
        }
        self.settle(who);
    }

    fn obey(&mut self, who: usize, action: Action) {
        let partition = &mut self.partitions[who];
        match action {
            Action::Write { segment, offset } => {
                let bytes = self.scenario.frame_bytes;
                partition.slack.appended(self.now, bytes);
                self.outcome.largest = self.outcome.largest.max(partition.roll.active_bytes());
                self.after(
                    SYNC,
                    who,
                    What::Durable {
                        segment,
                        end: offset + 1,
                    },
                );
                let (load, length) = (self.scenario.load, self.scenario.length);
                let offset = Duration::from_millis(37 * u64::try_from(who).unwrap());
                let next = load.next(self.now, bytes, length, offset);
                self.at(next, who, What::Append);
            }
            Action::Refuse(_) => self.refused(who),
            Action::Resume => self.after(Duration::ZERO, who, What::Append),
            Action::Request { successor, .. } => self.ask(who, successor),
            Action::Switch(switch) => {
                self.outcome.rolls += 1;
                self.outcome.late += u64::from(partition.refused || switch.overrun_bytes > 0);
                partition.slack.switched(switch.to);
                partition.fastest = partition.slack.write_rate();
                partition.longest = self.latencies.percentile(1.0).unwrap_or_default();
                (partition.refused, partition.possible) = (false, self.now);
                if !std::mem::replace(&mut partition.rolled, true) {
                    self.outcome.first_rolls.push(self.now);
                }
            }
            Action::Seal { segment, .. } => self.after(SEAL, who, What::Sealed(segment)),
            Action::Commit { .. } | Action::Finish { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self, who: usize) {
        let partition = &mut self.partitions[who];
        self.outcome.stalled += 1;
        let in_time = partition.possible + partition.takes <= self.now;
        let surprise = partition.takes > 2 * partition.longest
            || partition.slack.write_rate() > 2.0 * partition.fastest;
        self.outcome.avoidable += u64::from(in_time && !surprise && !partition.refused);
        partition.refused = true;
    }

    fn ask(&mut self, who: usize, successor: Ticket) {
        let partition = &mut self.partitions[who];
        if partition.asked.is_none() {
            partition.asked = Some((self.now, successor));
            partition.takes =
                self.scenario
                    .delay
                    .draw(self.now, self.scenario.length, &mut self.random);
        }
        let roll = &partition.roll;
        let due = partition.slack.due(
            self.now,
            roll.limits(),
            roll.active_bytes(),
            roll.active_age(),
        );
        if self.preparations.ask(who, due) {
            self.begin(who);
        }
        self.outcome.running = self.outcome.running.max(self.preparations.running());
    }

    fn begin(&mut self, who: usize) {
        let partition = &self.partitions[who];
        if let Some((_, successor)) = partition.asked {
            self.after(partition.takes, who, What::Ready(successor));
        }
    }

    fn ready(&mut self, who: usize) {
        let partition = &mut self.partitions[who];
        if let Some((asked, _)) = partition.asked.take() {
            self.latencies.observe(self.now.saturating_sub(asked));
            let cap = partition.roll.limits().cap_bytes;
            self.outcome.unused_slack += cap.saturating_sub(partition.roll.active_bytes());
        }
        if let Some(next) = self.preparations.done(&who) {
            self.begin(next);
        }
    }

    /// Counts successors that are ready, and keeps one tick under way.
    fn settle(&mut self, who: usize) {
        let partition = &mut self.partitions[who];
        let armed = partition.roll.state() == State::Armed;
        match (std::mem::replace(&mut partition.armed, armed), armed) {
            (false, true) => self.ahead += 1,
            (true, false) => self.ahead -= 1,
            _ => {}
        }
        self.outcome.ahead = self.outcome.ahead.max(self.ahead);
        if let Some(deadline) = partition.roll.deadline()
            && partition.tick.is_none_or(|tick| deadline < tick)
        {
            partition.tick = Some(deadline);
            self.at(deadline.max(self.now), who, What::Tick);
        }
    }
}
