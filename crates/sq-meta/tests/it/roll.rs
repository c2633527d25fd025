//! Prepare, seal, abandon, and what may come late or twice of them.

use sq_meta::{Applied, BrokerId, Command, Refusal, SegmentId};

use crate::support::{Cluster, ends, segment};

#[test]
fn a_roll_goes_on_where_the_segment_ended() {
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    let seal = cluster.seal(10, 2);
    assert_eq!(cluster.must(&seal), Applied::Sealed { repeated: false });
    assert_eq!(cluster.chain(), [(1, 0, Some(10)), (2, 10, None)]);
    let after = cluster.meta.clone();
    assert_eq!(cluster.must(&seal), Applied::Sealed { repeated: true });
    assert_eq!(cluster.meta, after);
    let Command::SealSegment {
        partition,
        epoch,
        segment,
        successor,
        ..
    } = seal
    else {
        panic!("not a seal")
    };
    let otherwise = Command::SealSegment {
        partition,
        epoch,
        segment,
        end: 11,
        successor,
    };
    let sealed = Refusal::SealedOtherwise { segment, end: 10 };
    assert_eq!(cluster.apply(&otherwise), Err(sealed));
}

#[test]
fn a_second_successor_is_answered_with_the_first() {
    let mut cluster = Cluster::new();
    let Applied::Prepared { successor, .. } = cluster.must(&cluster.prepare(2, &[0, 2])) else {
        panic!("not prepared")
    };
    for id in [2, 3] {
        let again = cluster.must(&cluster.prepare(id, &[0, 3]));
        let repeated = Applied::Prepared {
            successor: successor.clone(),
            repeated: true,
        };
        assert_eq!(again, repeated, "asked for {id}");
    }
}

#[test]
fn a_prepare_that_comes_late_brings_no_abandoned_segment_back() {
    // A leader asked twice, as the first answer did not come. The first request was applied and its
    // segment written to and abandoned, as a replica had failed; then the second arrived. The segment
    // stood in the metadata again, and a failover would have counted what its replicas still held.
    let mut cluster = Cluster::new();
    let prepare = cluster.prepare(2, &[0, 2]);
    cluster.must(&prepare);
    let abandon = cluster.abandon(2);
    assert_eq!(cluster.must(&abandon), Applied::Abandoned);
    let late = Refusal::Attempt {
        given: 0,
        current: 1,
    };
    assert_eq!(cluster.apply(&prepare), Err(late));
    let not_prepared = Err(Refusal::NotPrepared(SegmentId(2)));
    assert_eq!(cluster.apply(&abandon), not_prepared);
    cluster.must(&cluster.prepare(3, &[0, 3]));
    assert_eq!(cluster.apply(&abandon), not_prepared, "it names another");
    cluster.must(&cluster.seal(5, 3));
    assert_eq!(cluster.state().attempt, 0);
}

#[test]
fn a_seal_names_its_successor() {
    let mut cluster = Cluster::new();
    let early = cluster.seal(5, 2);
    assert_eq!(
        cluster.apply(&early),
        Err(Refusal::NotPrepared(SegmentId(2)))
    );
    cluster.must(&cluster.prepare(3, &[0, 2]));
    assert_eq!(
        cluster.apply(&early),
        Err(Refusal::NotPrepared(SegmentId(2)))
    );
}

#[test]
fn a_seal_whose_answer_was_lost_can_be_repeated_although_retention_took_the_segment() {
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    let seal = cluster.seal(10, 2);
    cluster.must(&seal);
    let Applied::LogStart { dropped, .. } = cluster.must(&cluster.advance(10)) else {
        panic!("not advanced")
    };
    assert_eq!(dropped[0].segment.id, SegmentId(1));
    assert_eq!(cluster.must(&seal), Applied::Sealed { repeated: true });
}

#[test]
fn a_deposed_leader_can_neither_prepare_seal_abandon_nor_drop() {
    // A deposed writer entered its rolling path, took the next segment and went on writing.
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    let stale = [
        cluster.prepare(9, &[0, 1]),
        cluster.seal(10, 2),
        cluster.abandon(2),
        cluster.advance(0),
    ];
    cluster.must(&cluster.begin());
    for command in &stale {
        let refusal = cluster.apply(command).unwrap_err();
        let deposed = Refusal::Epoch {
            given: 0,
            current: 1,
        };
        assert_eq!(refusal, deposed, "{command:?}");
    }
    let early = [
        cluster.prepare(9, &[0, 1]),
        cluster.seal(10, 2),
        cluster.abandon(2),
    ];
    for command in &early {
        let refusal = cluster.apply(command).unwrap_err();
        assert_eq!(refusal, Refusal::NotElected(1), "{command:?}");
    }
    cluster.must(&cluster.elect(1, ends(4), 5, &[1, 3]));
    for command in &stale {
        assert!(matches!(cluster.apply(command), Err(Refusal::Epoch { .. })));
    }
    assert_eq!(cluster.chain(), [(1, 0, Some(4)), (5, 4, None)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut cluster = Cluster::new();
    let refusals = [
        (
            cluster.prepare(1, &[0, 1]),
            Refusal::SegmentIdTaken(SegmentId(1)),
        ),
        (
            cluster.prepare(2, &[1, 2]),
            Refusal::LeaderNotReplica {
                leader: BrokerId(0),
                segment: SegmentId(2),
            },
        ),
        (
            cluster.prepare(2, &[0, 7]),
            Refusal::UnknownBroker(BrokerId(7)),
        ),
        (
            Command::PrepareSegment {
                partition: cluster.partition,
                epoch: 0,
                predecessor: SegmentId(8),
                attempt: 0,
                successor: segment(2, &[0]),
            },
            Refusal::NotActive {
                segment: SegmentId(8),
                active: SegmentId(1),
            },
        ),
        (
            cluster.advance(1),
            Refusal::LogStart {
                log_start: 1,
                active_base: 0,
            },
        ),
    ];
    for (command, refusal) in refusals {
        assert_eq!(cluster.apply(&command), Err(refusal));
    }
    cluster.must(&cluster.prepare(2, &[0]));
    cluster.must(&cluster.seal(10, 2));
    cluster.must(&cluster.prepare(3, &[0]));
    let refusal = cluster.apply(&cluster.seal(9, 3)).unwrap_err();
    assert_eq!(refusal, Refusal::Offsets { base: 10, end: 9 });
}

#[test]
fn a_segment_that_holds_nothing_may_end() {
    // A replica failed before the first record was committed.
    let mut cluster = Cluster::new();
    cluster.must(&cluster.prepare(2, &[0, 2]));
    cluster.must(&cluster.seal(0, 2));
    cluster.must(&cluster.prepare(3, &[0, 2]));
    cluster.must(&cluster.seal(7, 3));
    let chain = [(1, 0, Some(0)), (2, 0, Some(7)), (3, 7, None)];
    assert_eq!(cluster.chain(), chain);
    let holder = |offset| cluster.state().sealed_with(offset).map(|s| s.segment.id.0);
    assert_eq!([0, 6, 7].map(holder), [Some(2), Some(2), None]);
}

#[test]
fn retention_drops_whole_sealed_segments() {
    let mut cluster = Cluster::new();
    for (id, end) in [(2, 10), (3, 20), (4, 30)] {
        cluster.must(&cluster.prepare(id, &[0, 2]));
        cluster.must(&cluster.seal(end, id));
    }
    let mut dropped_by = |log_start| {
        let Applied::LogStart { log_start, dropped } = cluster.must(&cluster.advance(log_start))
        else {
            panic!("not advanced")
        };
        let ids: Vec<_> = dropped.iter().map(|s| s.segment.id.0).collect();
        (log_start, ids)
    };
    assert_eq!(dropped_by(9), (9, vec![]));
    assert_eq!(dropped_by(20), (20, vec![1, 2]));
    assert_eq!(dropped_by(15), (20, vec![]), "an old request");
    assert_eq!(dropped_by(30), (30, vec![3]));
    assert_eq!(cluster.chain(), [(4, 30, None)]);
}

#[test]
fn one_broker_alone_resumes_its_segments_and_no_other_does() {
    let mut cluster = Cluster::new();
    assert!(
        !cluster.state().resumable_by(BrokerId(0)),
        "broker 1 has a copy"
    );
    cluster.must(&cluster.prepare(2, &[0]));
    cluster.must(&cluster.seal(3, 2));
    assert!(cluster.state().resumable_by(BrokerId(0)));
    assert!(!cluster.state().resumable_by(BrokerId(1)));
    cluster.must(&cluster.prepare(3, &[0, 1]));
    assert!(
        !cluster.state().resumable_by(BrokerId(0)),
        "the successor's copy"
    );
    cluster.must(&cluster.abandon(3));
    cluster.must(&cluster.prepare(4, &[0]));
    assert!(cluster.state().resumable_by(BrokerId(0)));
    cluster.must(&cluster.begin());
    assert!(!cluster.state().resumable_by(BrokerId(0)));
}
