//! The slack, measured in a simulation: what ships, in virtual time.

mod load;
mod sizing;
mod world;

use std::time::Duration;

use load::{Delay, Load};
use sq_roll::{Limits, SoftMark};
use world::{Outcome, Scenario, run};

const MIB: u64 = 1 << 20;
const FIXED: SoftMark = SoftMark::Fraction(0.9);
/// Low: a segment of 4 MiB takes more than a minute.
const LOW: u64 = 64 << 10;
const HIGH: u64 = MIB / 2;

const LOADS: [Load; 5] = [
    Load::Constant(LOW),
    Load::Constant(HIGH),
    Load::Ramp(2 * MIB),
    Load::Burst(8 * MIB),
    Load::StopAndGo(2 * MIB),
];
const DELAYS: [Delay; 3] = [Delay::Fixed, Delay::HeavyTailed, Delay::Drifting];
const PARTITIONS: [usize; 4] = [1, 10, 100, 1_000];

fn scenario(load: Load, delay: Delay, partitions: usize, soft_mark: SoftMark) -> Scenario {
    let length = match load {
        Load::Constant(LOW) => 640,
        _ => 120,
    };
    Scenario {
        load,
        delay,
        partitions,
        soft_mark,
        jitter: 0.125,
        limits: Limits::bytes(4 * MIB),
        frame_bytes: 64 << 10,
        length: Duration::from_secs(length),
        at_once: 256,
        seed: 0x5eed,
    }
}

impl Outcome {
    fn unused_a_roll(&self) -> u64 {
        self.unused_slack / self.rolls.max(1)
    }
}

fn row(outcome: &Outcome) -> String {
    let Outcome {
        rolls,
        late,
        stalled,
        avoidable,
        ahead,
        ..
    } = outcome;
    let unused = outcome.unused_a_roll() >> 10;
    format!("{rolls:7} {late:5} {stalled:6} {avoidable:5} {unused:7} {ahead:6}")
}

/// The table: for each load, delay and number of partitions what the fixed mark and the measured one
/// come to. `unused` is KiB a roll, the others are counts.
#[test]
fn auto_stalls_no_append_that_could_have_been_spared() {
    let head = "  rolls  late  stall avoid  unused  ahead";
    println!(
        "{:24} {:11} {:>5} | 0.9: {head} | auto:{head}",
        "load", "delay", "parts"
    );
    let mut fixed_avoidable = 0;
    for load in LOADS {
        for delay in DELAYS {
            for partitions in PARTITIONS {
                let fixed = run(scenario(load, delay, partitions, FIXED));
                let auto = run(scenario(load, delay, partitions, SoftMark::Auto));
                let name = format!("{load:24} {:11} {partitions:5}", format!("{delay:?}"));
                println!("{name} |      {} |      {}", row(&fixed), row(&auto));
                assert_eq!(auto.avoidable, 0, "{name}");
                assert!(auto.stalled <= fixed.stalled, "{name}");
                if load == Load::Constant(LOW) {
                    assert!(auto.unused_a_roll() < fixed.unused_a_roll(), "{name}");
                    assert_eq!(auto.stalled, 0, "{name}");
                }
                fixed_avoidable += fixed.avoidable;
            }
        }
    }
    assert!(
        fixed_avoidable > 0,
        "the loads are such that a mark can be wrong"
    );
}

#[test]
fn the_same_seed_twice_is_the_same_run() {
    let scenario = scenario(Load::Burst(8 * MIB), Delay::HeavyTailed, 10, SoftMark::Auto);
    assert_eq!(run(scenario), run(scenario));
    assert_ne!(
        run(scenario),
        run(Scenario {
            seed: 7,
            ..scenario
        })
    );
}

/// A hundred partitions of equal rate, created in the same millisecond, all finished their segments at
/// the same moment, each time: a burst of work, and a spike of latency.
#[test]
fn partitions_that_fill_together_do_not_roll_together() {
    let age = Duration::from_mins(1);
    for (by, cap, at_once) in [("age", 1 << 40, 8), ("size", 4 * MIB, 8)] {
        let limits = Limits::bytes(cap).with_age(if by == "age" { age } else { 100 * age });
        let scenario = Scenario {
            limits,
            jitter: 0.2,
            at_once,
            length: 20 * age,
            ..scenario(Load::Constant(LOW), Delay::Fixed, 100, SoftMark::Auto)
        };
        let outcome = run(scenario);
        let first = &outcome.first_rolls;
        assert_eq!(first.len(), 100, "{by}");
        let spread = first
            .iter()
            .max()
            .unwrap()
            .saturating_sub(*first.iter().min().unwrap());
        assert!(spread >= age / 10, "{by}: {spread:?}");
        assert!(outcome.running <= at_once, "{by}");
        assert_eq!(outcome.stalled, 0, "{by}");
        assert!(outcome.largest <= limits.hard_bytes(), "{by}");

        let together = run(Scenario {
            jitter: 0.0,
            ..scenario
        });
        let first = &together.first_rolls;
        let spread = first
            .iter()
            .max()
            .unwrap()
            .saturating_sub(*first.iter().min().unwrap());
        assert!(spread < age / 10, "{by} without jitter: {spread:?}");
        assert_eq!(
            together.running, at_once,
            "{by} without jitter: the others waited"
        );
        assert!(together.largest <= limits.hard_bytes(), "{by}");
    }
}
