//! Where segments go.

use std::collections::BTreeSet;

use sq_meta::placement::{Placer, ReplicaCount, Unplaceable};
use sq_meta::{Broker, BrokerId, Command, MetaState, NewPartition, NewSegment, SegmentId};

use crate::support::{broker, new_topic, segment};

const THREE: ReplicaCount = ReplicaCount {
    wanted: 3,
    least: 2,
};

fn cluster(brokers: u32, racks: u32) -> MetaState {
    let mut meta = MetaState::default();
    for id in 0..brokers {
        let rack = (racks > 0).then(|| format!("rack-{}", id % racks.max(1)));
        let broker = Broker { rack, ..broker(id) };
        meta.apply(&Command::RegisterBroker(broker)).unwrap();
    }
    meta
}

fn failing(ids: &[u32]) -> BTreeSet<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

#[test]
fn the_same_state_gives_the_same_places() {
    let meta = cluster(7, 0);
    let place = || {
        let mut placer = Placer::new(&meta, &failing(&[]));
        (0..50)
            .map(|n| placer.place(SegmentId(n), BrokerId(1), THREE).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(place(), place());
}

#[test]
fn segments_and_leaders_are_spread_evenly() {
    let mut meta = cluster(5, 0);
    let mut placer = Placer::new(&meta, &failing(&[]));
    let partitions = (0..100).map(|n| {
        let id = SegmentId(n * 7919);
        let leader = placer.choose_leader(id, |_| true).unwrap();
        let replicas = placer.place(id, leader, THREE).unwrap();
        NewPartition::empty(leader, NewSegment { id, replicas })
    });
    let partitions = partitions.collect();
    meta.apply(&Command::CreateTopic(new_topic(1, "orders", partitions)))
        .unwrap();
    for id in 0..5 {
        let load = meta.load(BrokerId(id));
        assert_eq!(load.leaderships, 20);
        assert!((58..=62).contains(&load.open_segments), "{load:?}");
    }
}

#[test]
fn an_idle_broker_comes_first() {
    let mut meta = cluster(3, 0);
    let busy = vec![NewPartition::empty(BrokerId(0), segment(1, &[0, 1]))];
    meta.apply(&Command::CreateTopic(new_topic(1, "orders", busy)))
        .unwrap();
    let two = ReplicaCount {
        wanted: 2,
        least: 1,
    };
    for n in 10..30 {
        let mut placer = Placer::new(&meta, &failing(&[]));
        let set = placer.place(SegmentId(n), BrokerId(0), two).unwrap();
        assert!(set.contains(BrokerId(2)));
    }
}

#[test]
fn failing_brokers_get_nothing_and_a_smaller_set_is_taken() {
    let meta = cluster(4, 0);
    let id = SegmentId(1);
    let leader = BrokerId(0);
    for broken in 1..4 {
        let mut placer = Placer::new(&meta, &failing(&[broken]));
        let set = placer.place(id, leader, THREE).unwrap();
        assert_eq!(set.len(), 3);
        assert!(!set.contains(BrokerId(broken)));
        assert_ne!(
            placer.choose_leader(id, |b| b.0 > 0 && b.0 < 4),
            Some(BrokerId(broken))
        );
    }
    let mut placer = Placer::new(&meta, &failing(&[1, 2]));
    assert_eq!(placer.place(id, leader, THREE).unwrap().len(), 2);
    let mut placer = Placer::new(&meta, &failing(&[1, 2, 3]));
    let too_few = Unplaceable::TooFew { well: 1, needed: 2 };
    assert_eq!(placer.place(id, leader, THREE), Err(too_few));
    let unknown = Unplaceable::UnknownLeader(BrokerId(9));
    assert_eq!(placer.place(id, BrokerId(9), THREE), Err(unknown));
    assert_eq!(
        Placer::new(&meta, &failing(&[0, 1, 2, 3])).choose_leader(id, |_| true),
        None
    );
}

#[test]
fn replicas_are_in_as_many_racks_as_there_are() {
    let meta = cluster(6, 3);
    let mut placer = Placer::new(&meta, &failing(&[]));
    for n in 0..40 {
        let set = placer
            .place(SegmentId(n), BrokerId(u32::try_from(n).unwrap() % 6), THREE)
            .unwrap();
        let racks: BTreeSet<_> = set.iter().map(|b| b.0 % 3).collect();
        assert_eq!(racks.len(), 3, "{set:?}");
    }
}
