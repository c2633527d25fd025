//! Terms begin and end.

use sq_meta::{Applied, BrokerId, Command, Refusal, SegmentId};

use crate::support::{Cluster, ends, ends_with};

#[test]
fn a_failover_returns_what_is_open_and_begins_the_next_epoch() {
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    let Applied::FailoverBegun {
        epoch,
        active,
        successor,
    } = cluster.must(&cluster.begin())
    else {
        panic!("not begun")
    };
    assert_eq!(epoch, 1);
    assert_eq!((active.segment.id, active.base), (SegmentId(1), 0));
    assert_eq!(successor.unwrap().id, SegmentId(2));
    assert!(!cluster.state().elected);
    // Another one gave up on the first.
    let Applied::FailoverBegun { epoch, .. } = cluster.must(&cluster.begin()) else {
        panic!("not begun")
    };
    assert_eq!(epoch, 2);
}

#[test]
fn an_epoch_has_one_leader() {
    let mut cluster = Cluster::new();
    let unbegun = cluster.elect(1, ends(0), 8, &[1, 2]);
    let elected = Refusal::AlreadyElected {
        epoch: 0,
        leader: BrokerId(0),
        segment: SegmentId(1),
    };
    assert_eq!(cluster.apply(&unbegun), Err(elected));
    cluster.must(&cluster.begin());
    let first = cluster.elect(1, ends(6), 8, &[1, 2]);
    let second = cluster.elect(2, ends(6), 9, &[2, 3]);
    cluster.must(&cluster.begin());
    for late in [&first, &second] {
        let over = Refusal::Epoch {
            given: 1,
            current: 2,
        };
        assert_eq!(cluster.apply(late), Err(over));
    }
    cluster.must(&cluster.elect(2, ends(6), 9, &[2, 3]));
    let third = cluster.elect(1, ends(6), 8, &[1, 2]);
    let elected = Refusal::AlreadyElected {
        epoch: 2,
        leader: BrokerId(2),
        segment: SegmentId(9),
    };
    assert_eq!(cluster.apply(&third), Err(elected));
    assert_eq!(cluster.state().leader, BrokerId(2));
}

#[test]
fn the_chain_ends_where_the_failover_says() {
    for (ends, chain) in [
        (ends(6), vec![(1, 0, Some(6)), (9, 6, None)]),
        (ends(0), vec![(9, 0, None)]),
        (
            ends_with(6, 8),
            vec![(1, 0, Some(6)), (2, 6, Some(8)), (9, 8, None)],
        ),
        (ends_with(6, 6), vec![(1, 0, Some(6)), (9, 6, None)]),
        (ends_with(0, 3), vec![(2, 0, Some(3)), (9, 3, None)]),
    ] {
        let mut cluster = Cluster::new();
        cluster.must(&cluster.prepare(2, &[0, 2]));
        cluster.must(&cluster.begin());
        let base = ends.end();
        let elected = cluster.must(&cluster.elect(3, ends, 9, &[1, 3]));
        assert_eq!(elected, Applied::Elected { base });
        assert_eq!(cluster.chain(), chain);
        let state = cluster.state();
        assert_eq!((state.epoch, state.elected), (1, true));
        assert_eq!(state.prepared, None);
        assert_eq!(state.active.segment.writer_epoch, 1);
        let names_last = chain.iter().rev().nth(1).map(|link| SegmentId(link.0));
        assert_eq!(state.active.segment.predecessor, names_last);
    }
}

#[test]
fn ends_that_do_not_continue_the_chain_are_refused() {
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    cluster.must(&cluster.seal(5, 2));
    cluster.must(&cluster.begin());
    for (bad, base, end) in [(ends(4), 5, 4), (ends_with(6, 7), 6, 7)] {
        let refusal = cluster.apply(&cluster.elect(3, bad, 9, &[3]));
        assert_eq!(refusal, Err(Refusal::Offsets { base, end }), "no successor");
    }
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    cluster.must(&cluster.begin());
    let mut gap = ends_with(6, 7);
    gap.active_end = 5;
    let refusal = cluster.apply(&cluster.elect(3, gap, 9, &[3]));
    assert_eq!(refusal, Err(Refusal::Offsets { base: 6, end: 7 }));
    let refusal = cluster.apply(&cluster.elect(3, ends_with(6, 5), 9, &[3]));
    assert_eq!(refusal, Err(Refusal::Offsets { base: 6, end: 5 }));
    let refusal = cluster.apply(&cluster.elect(3, ends(u64::MAX), 9, &[3]));
    assert!(matches!(refusal, Err(Refusal::Offsets { .. })));
    let refusal = cluster.apply(&cluster.elect(3, ends(5), 9, &[1, 2]));
    assert!(matches!(refusal, Err(Refusal::LeaderNotReplica { .. })));
    let refusal = cluster.apply(&cluster.elect(3, ends(5), 2, &[3]));
    assert_eq!(refusal, Err(Refusal::SegmentIdTaken(SegmentId(2))));
}

#[test]
fn nothing_of_the_partition_changes_between_begin_and_elect() {
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    cluster.must(&cluster.begin());
    let begun = cluster.state().clone();
    let (partition, segment) = (cluster.partition, SegmentId(2));
    for epoch in 0..3 {
        for command in [
            cluster.prepare(7, &[0]),
            Command::AbandonSegment {
                partition,
                epoch,
                segment,
            },
            Command::SealSegment {
                partition,
                epoch,
                segment: SegmentId(1),
                end: 3,
                successor: segment,
            },
            Command::AdvanceLogStart {
                partition,
                epoch,
                log_start: 0,
            },
        ] {
            assert!(cluster.apply(&command).is_err(), "{command:?}");
        }
    }
    assert_eq!(*cluster.state(), begun);
}
