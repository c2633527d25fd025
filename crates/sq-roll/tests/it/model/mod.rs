//! The state machine that ships, in a world where whatever is sent arrives late, repeatedly or never,
//! explored exhaustively within bounds.
//!
//! Real: [`Roll`](sq_roll::Roll) for each epoch's leader and [`Fence`](sq_roll::Fence) for each replica.
//! Modelled: replicas' disks, and failover. Messages are a set that nothing ever leaves, so loss, delay,
//! repetition and reordering are all the same thing. What applies the metadata's five commands is
//! `crate::metadata`: a model of their guards in this crate's tests, and the state machine that ships in
//! those of the first crate that has both, which explores the same worlds.
//!
//! `SQ_MODEL="offsets=4" cargo test -p sq-roll --test it three_brokers -- --nocapture` explores
//! a larger world; the names are those of [`Bounds`].

pub(crate) mod chain;
mod failover;
mod invariants;
mod liveness;
mod mutants;
mod steps;
mod world;

use sq_roll::mutants::Guard;
use stateright::{Checker, HasDiscoveries, Model, Property};
use steps::Step;
use world::{Broken, World};

/// Carelessness of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Careless {
    /// An id that was abandoned is prepared again.
    PreparesAgain,
    /// A segment that is sealed is sealed again.
    SealsAgain,
}

/// How large a world is explored.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    brokers: u8,
    /// How many replicas a segment has.
    replicas: u8,
    offsets: u8,
    epochs: u8,
    segments: usize,
    crashes: u8,
    seal_requests: bool,
    ticks: bool,
    /// Whether to check in every state that there is a way on.
    liveness: bool,
    /// The guard that the state machine lacks.
    lacking: Option<Guard>,
    /// What the metadata does that it may not.
    careless: Option<Careless>,
}

const SMALL: Bounds = Bounds {
    brokers: 3,
    replicas: 2,
    offsets: 3,
    epochs: 2,
    segments: 3,
    crashes: 1,
    seal_requests: false,
    ticks: false,
    liveness: true,
    lacking: None,
    careless: None,
};

impl Bounds {
    fn is_sound(&self) -> bool {
        self.lacking.is_none() && self.careless.is_none()
    }

    /// The replica sets that a leader on `broker` can have. In the last epoch, which no failover
    /// follows, nothing depends on it.
    fn placements(&self, broker: u8, epoch: u8) -> impl Iterator<Item = u8> + use<> {
        let wanted = u32::from(self.replicas);
        let sets = if epoch == self.epochs && self.epochs > 1 {
            1
        } else {
            usize::MAX
        };
        (1..1 << self.brokers)
            .filter(move |set: &u8| set & (1 << broker) != 0 && set.count_ones() == wanted)
            .take(sets)
    }

    fn new_leaders(&self, epoch: u8) -> std::ops::Range<u8> {
        if epoch == self.epochs {
            self.brokers - 1..self.brokers
        } else {
            0..self.brokers
        }
    }
}

const CONTIGUOUS: &str = "I1: the chain is contiguous";
const KEPT: &str = "I2: what was acknowledged is kept";
const ONCE: &str = "I3: an offset is acknowledged for one record";
const SEALED: &str = "I4: a sealed end stays";
const ONE_SUCCESSOR: &str = "I6: one successor, and no stray one";
const GOES_ON: &str = "I7: with any one broker gone, there is a way on";
const WHOLE: &str = "sealed segments are whole on every replica";
const STOPPED: &str = "a deposed leader gives and acknowledges nothing";
const NO_HOLE: &str = "a failover finds all that it keeps";

impl Model for Bounds {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(self, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(self, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn whole(world: &World, broken: Broken) -> bool {
            world.broken != Some(broken)
        }
        vec![
            Property::always(CONTIGUOUS, |_, world: &World| world.is_contiguous()),
            Property::always(KEPT, |_, world: &World| world.keeps_what_it_acknowledged()),
            Property::always(ONCE, |_, world| whole(world, Broken::TwoAcknowledged)),
            Property::always(SEALED, |_, world| whole(world, Broken::SealedEndChanged)),
            Property::always(ONE_SUCCESSOR, |_, world: &World| {
                world.has_no_stray_successor()
            }),
            Property::always(GOES_ON, |bounds: &Self, world: &World| {
                !bounds.liveness || world.can_go_on(bounds)
            }),
            Property::always(WHOLE, |_, world: &World| world.seals_whole_segments()),
            Property::always(STOPPED, |_, world| whole(world, Broken::WentOnDeposed)),
            Property::always(NO_HOLE, |_, world| whole(world, Broken::Hole)),
            Property::sometimes(
                "everything is acknowledged",
                |bounds: &Self, world: &World| {
                    world.acknowledged_count() == usize::from(bounds.offsets)
                },
            ),
        ]
    }
}

fn explore(bounds: Bounds) -> usize {
    let checker = bounds
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs();
    let checker = checker.join();
    println!(
        "{bounds:?}: {} states, {} steps, {} deep",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
    checker.unique_state_count()
}

/// `SQ_MODEL="offsets=4 segments=5"` explores other bounds.
fn from_environment(mut bounds: Bounds) -> Bounds {
    for setting in std::env::var("SQ_MODEL")
        .unwrap_or_default()
        .split_whitespace()
    {
        let (name, value) = setting.split_once('=').unwrap();
        let number = value.parse::<u8>().unwrap();
        match name {
            "brokers" => bounds.brokers = number,
            "replicas" => bounds.replicas = number,
            "offsets" => bounds.offsets = number,
            "epochs" => bounds.epochs = number,
            "segments" => bounds.segments = usize::from(number),
            "crashes" => bounds.crashes = number,
            "seal_requests" => bounds.seal_requests = number > 0,
            "liveness" => bounds.liveness = number > 0,
            "ticks" => bounds.ticks = number > 0,
            _ => panic!("no such bound: {name}"),
        }
    }
    bounds
}

/// At least a million worlds: three brokers, three segments of three records, a failover, a crash.
#[test]
fn the_invariants_hold_in_every_world_of_three_brokers() {
    let states = explore(from_environment(SMALL));
    assert!(states >= 1_000_000 || std::env::var_os("SQ_MODEL").is_some());
}

/// One broker, where every restart resumes what the disk holds.
#[test]
fn the_invariants_hold_in_every_world_of_one_broker() {
    let alone = Bounds {
        brokers: 1,
        replicas: 1,
        epochs: 1,
        ..SMALL
    };
    explore(Bounds {
        crashes: 2,
        seal_requests: true,
        ticks: true,
        ..alone
    });
}
