//! What an opening finds, and when it refuses.

use openraft::EntryPayload;
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use sq_sim::{InMemoryFileSystem, Keep};

use super::support::{DIR, Opened, Stop, block_on, entries, entry, id};
use crate::command::Command;
use crate::raft::record::{Body, Piece, Record};
use crate::raft::{
    Entry, JournalError, Membership, Node, NodeConfig, OpenError, SnapshotMeta, StoredMembership,
    VoteFileError, read,
};

#[test]
fn what_was_purged_stays_purged() {
    // A log store did not write down up to where it was purged; after a compaction no restart was
    // possible any more.
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        node.vote(1).await.unwrap();
        node.append(entries(1, 0..101)).await.unwrap();
        node.snapshot(80).await.unwrap();
        node.log.purge(id(1, 80)).await.unwrap();
        fs.power_loss(Keep::None);
        let mut node = Opened::on(&fs, 2).await;
        let state = node.log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(id(1, 80)));
        assert_eq!(state.last_log_id, Some(id(1, 100)));
        let applied = node.store.applied_state().await.unwrap().0;
        assert_eq!(applied, Some(id(1, 80)));
        assert_eq!(node.machine.watch().borrow().next_producer_id(), 1_000_080);
    });
}

#[test]
fn a_truncation_that_was_answered_outlives_a_power_loss() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        node.append(entries(1, 1..11)).await.unwrap();
        node.vote(2).await.unwrap();
        node.log.truncate(id(1, 6)).await.unwrap();
        fs.power_loss(Keep::None);
        let found = Opened::on(&fs, 2).await.durable().await;
        assert_eq!(found.vote.unwrap().leader_id.term, 2);
        assert_eq!(found.entries, entries(1, 1..6));
    });
}

#[test]
fn a_log_may_go_on_behind_a_snapshot_that_is_ahead_of_it() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut leader = Opened::on(&InMemoryFileSystem::new(2), 1).await;
        leader.append(entries(2, 0..50)).await.unwrap();
        leader.snapshot(40).await.unwrap();
        let snapshot = leader.store.get_current_snapshot().await.unwrap().unwrap();
        let mut follower = Opened::on(&fs, 2).await;
        follower.vote(2).await.unwrap();
        follower.append(entries(1, 0..3)).await.unwrap();
        let bytes = snapshot.snapshot.clone();
        follower
            .store
            .install_snapshot(&snapshot.meta, bytes)
            .await
            .unwrap();
        follower.log.purge(id(2, 40)).await.unwrap();
        follower.append(entries(2, 41..43)).await.unwrap();
        fs.power_loss(Keep::None);
        let mut follower = Opened::on(&fs, 3).await;
        let found = follower.durable().await;
        assert_eq!(found.purged, Some(id(2, 40)));
        assert_eq!(found.entries, entries(2, 41..43));
        assert_eq!(
            follower.machine.watch().borrow().next_producer_id(),
            2_000_040
        );
    });
}

#[test]
fn the_committed_position_comes_with_the_next_record() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        node.vote(1).await.unwrap();
        node.append(entries(1, 0..5)).await.unwrap();
        node.log.save_committed(Some(id(1, 3))).await.unwrap();
        assert_eq!(node.log.read_committed().await.unwrap(), Some(id(1, 3)));
        node.append(vec![entry(1, 5)]).await.unwrap();
        node.log.save_committed(Some(id(1, 5))).await.unwrap();
        fs.power_loss(Keep::None);
        let mut node = Opened::on(&fs, 2).await;
        assert_eq!(node.log.read_committed().await.unwrap(), Some(id(1, 3)));
        node.log.save_committed(Some(id(1, 5))).await.unwrap();
        node.log.journal().retire().await.unwrap();
        let mut node = Opened::on(&fs, 3).await;
        assert_eq!(node.log.read_committed().await.unwrap(), Some(id(1, 5)));
    });
}

#[test]
fn a_retired_journal_takes_no_record() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut old = Opened::on(&fs, 1).await;
        old.append(entries(1, 0..2)).await.unwrap();
        old.log.journal().retire().await.unwrap();
        assert!(old.append(entries(1, 2..3)).await.is_err());
        assert!(old.snapshot(1).await.is_err());
    });
}

fn refused(fs: &InMemoryFileSystem) -> OpenError {
    let before: Vec<_> = fs
        .files()
        .iter()
        .map(|p| fs.read_file(p).unwrap())
        .collect();
    let refused = block_on(Opened::try_on(fs, 9)).err().expect("it opened");
    let after: Vec<_> = fs
        .files()
        .iter()
        .map(|p| fs.read_file(p).unwrap())
        .collect();
    assert_eq!(before, after, "{refused}");
    refused
}

#[test]
fn a_vote_of_which_nothing_is_left_stops_the_start() {
    let vote = format!("{DIR}/vote");
    let lived = |fs: &InMemoryFileSystem| {
        block_on(async {
            let mut node = Opened::on(fs, 1).await;
            node.vote(4).await.unwrap();
            node.append(entries(4, 0..3)).await.unwrap();
        });
    };
    // One slot that rots leaves the other.
    for slot in [0, 4096] {
        let fs = InMemoryFileSystem::new(1);
        lived(&fs);
        fs.overwrite(&vote, slot + 10, &[0xff; 8]).unwrap();
        let found = block_on(async { Opened::on(&fs, 2).await.durable().await });
        assert_eq!(found.vote.unwrap().leader_id.term, 4);
    }
    let fs = InMemoryFileSystem::new(1);
    lived(&fs);
    fs.overwrite(&vote, 10, &[0xff; 8]).unwrap();
    fs.overwrite(&vote, 4106, &[0xff; 8]).unwrap();
    assert!(matches!(
        refused(&fs),
        OpenError::Vote(VoteFileError::Damaged(_))
    ));

    let fs = InMemoryFileSystem::new(1);
    lived(&fs);
    fs.delete_file(&vote).unwrap();
    let lost = refused(&fs);
    assert!(
        matches!(
            lost,
            OpenError::VoteLost {
                vote: 0,
                log: 4,
                ..
            }
        ),
        "{lost}"
    );
}

/// Several files of entries, a snapshot and a purge.
fn lived(seed: u64) -> InMemoryFileSystem {
    let fs = InMemoryFileSystem::new(seed);
    block_on(async {
        let mut node = Opened::on(&fs, seed).await;
        node.append(entries(1, 0..10)).await.unwrap();
        node.vote(1).await.unwrap();
        node.snapshot(8).await.unwrap();
        node.log.purge(id(1, 5)).await.unwrap();
        node.append(entries(1, 10..40)).await.unwrap();
    });
    fs
}

#[test]
fn a_damaged_journal_stops_the_start() {
    // A node whose metadata snapshot was damaged took its data directories for orphans and deleted
    // them.
    let fs = lived(1);
    let is_journal = |p: &std::path::PathBuf| p.extension().is_some_and(|e| e == "wal");
    let files: Vec<_> = fs.files().into_iter().filter(is_journal).collect();
    assert!(files.len() > 1);
    let len = fs.read_file(&files[0]).unwrap().len();
    let mut damaged = 0;
    for at in (40..len).step_by(97) {
        let fs = lived(1);
        let before = block_on(async { Opened::on(&fs, 2).await.durable().await });
        fs.flip_bit(&files[0], at as u64, 3).unwrap();
        match block_on(Opened::try_on(&fs, 3)) {
            Err(OpenError::Journal(_)) => damaged += 1,
            Err(other) => panic!("byte {at}: {other}"),
            // A bit of padding.
            Ok(mut node) => assert_eq!(block_on(node.durable()), before, "byte {at}"),
        }
    }
    assert!(damaged > 5);
}

#[test]
fn a_log_without_the_snapshot_of_what_was_purged_stops_the_start() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let mut node = Opened::on(&fs, 1).await;
        node.append(entries(0, 0..10)).await.unwrap();
        node.log.purge(id(0, 5)).await.unwrap();
    });
    let lost = refused(&fs);
    assert!(matches!(
        lost,
        OpenError::Journal(JournalError::SnapshotLost { purged: 5, .. })
    ));
}

fn records() -> Vec<Record> {
    let nodes = [
        (1, openraft::BasicNode::new("a:1")),
        (2, openraft::BasicNode::new("b:2")),
    ];
    let membership = Membership::new(
        vec![[1].into(), [1, 2].into()],
        std::collections::BTreeMap::from(nodes),
    );
    let meta = SnapshotMeta {
        last_log_id: Some(id(3, 9)),
        last_membership: StoredMembership::new(Some(id(2, 4)), membership.clone()),
        snapshot_id: "T3-N1-9".to_owned(),
    };
    let piece = |number, meta| {
        Body::Snapshot(Piece {
            first: 17,
            number,
            of: 2,
            meta,
            bytes: ::bytes::Bytes::from_static(b"some"),
        })
    };
    let payload = |payload| {
        Body::Entry(Entry {
            log_id: id(3, 10),
            payload,
        })
    };
    let bodies = [
        payload(EntryPayload::Blank),
        payload(EntryPayload::Membership(membership)),
        payload(EntryPayload::Normal(Command::AllocateProducerIds {
            count: 3,
        })),
        Body::Truncated { since: 8 },
        Body::Purged { upto: id(3, 7) },
        Body::Committed,
        piece(0, Some(meta)),
        piece(1, None),
    ];
    let committed = [None, Some(id(3, 6))];
    let record = |body: Body| {
        committed.map(|committed| Record {
            committed,
            body: body.clone(),
        })
    };
    bodies.into_iter().flat_map(record).collect()
}

#[test]
fn every_record_comes_back_and_no_cut_one_does() {
    for record in records() {
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Ok(record.clone()));
        for len in 0..bytes.len() {
            assert!(
                Record::decode(&bytes.slice(..len)).is_err(),
                "{record:?} cut at {len}"
            );
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Record::decode(&longer.into()).is_err());
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0xff;
            let _ = Record::decode(&bad.into());
        }
    }
}

#[test]
fn a_snapshot_that_can_not_be_read_takes_no_others_place() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        node.append(entries(0, 0..10)).await.unwrap();
        node.snapshot(4).await.unwrap();
        let held = node.store.get_current_snapshot().await.unwrap().unwrap();
        let mut bad = held.snapshot.to_vec();
        bad[20] ^= 1;
        let meta = SnapshotMeta {
            last_log_id: Some(id(0, 9)),
            ..held.meta.clone()
        };
        let bad = Box::new(bad.into());
        assert!(node.store.install_snapshot(&meta, bad).await.is_err());
        let still = node.store.get_current_snapshot().await.unwrap().unwrap();
        assert_eq!(still.meta, held.meta);
        let found = Opened::on(&fs, 2).await.durable().await;
        assert_eq!(found.snapshot, Some(id(0, 4)));
    });
}

#[test]
fn what_nothing_needs_any_more_is_removed() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        let is_journal = |p: &std::path::PathBuf| p.extension().is_some_and(|e| e == "wal");
        let mut most = 0;
        for round in 0..40 {
            let from = round * 30;
            node.append(entries(0, from..from + 30)).await.unwrap();
            node.snapshot(from + 25).await.unwrap();
            node.log.purge(id(0, from + 20)).await.unwrap();
            most = most.max(fs.files().iter().filter(|p| is_journal(p)).count());
        }
        // Each round fills more than two.
        assert!(most <= 6, "{most} files");
        // All is purged and snapshotted anew, so that only two records still count.
        node.snapshot(1199).await.unwrap();
        node.log.purge(id(0, 1199)).await.unwrap();
        for _ in 0..40 {
            node.snapshot(1199).await.unwrap();
        }
        let before = node.durable().await;
        fs.power_loss(Keep::None);
        assert_eq!(Opened::on(&fs, 2).await.durable().await, before);
    });
}

#[test]
fn a_journal_may_begin_with_entries_that_were_truncated_and_whose_predecessors_are_gone() {
    // Entries 6 to 30 lay before the record that purged 0 to 5, entry 31 behind it. Then 6 to 31 were
    // truncated, another 6 came, and with a snapshot of it all before the purge's record went. The next
    // opening read first that 0 to 5 are purged, then entry 31, took that for damage and refused to
    // start, although the records behind it say that 31 is gone.
    block_on(async {
        for last in 31..50 {
            let fs = InMemoryFileSystem::new(1);
            let mut node = Opened::on(&fs, 1).await;
            node.vote(1).await.unwrap();
            node.append(entries(0, 0..last)).await.unwrap();
            node.snapshot(5).await.unwrap();
            node.log.purge(id(0, 5)).await.unwrap();
            node.append(entries(0, last..last + 6)).await.unwrap();
            node.log.truncate(id(0, 6)).await.unwrap();
            node.append(entries(1, 6..7)).await.unwrap();
            node.snapshot(6).await.unwrap();
            assert!(journal_begins_at(&fs) > 0, "nothing is removed");
            let before = node.durable().await;
            for stop in Stop::ALL {
                stop.strike(&fs);
                let found = Opened::on(&fs, 2).await.durable().await;
                assert_eq!(found, before, "{last} entries, {stop:?}");
            }
        }
    });
}

/// The journal's offset of the first record that has a file.
fn journal_begins_at(fs: &InMemoryFileSystem) -> u64 {
    let files = fs.files().into_iter();
    let names = files.filter_map(|p| p.file_name()?.to_str()?.strip_suffix(".wal")?.parse().ok());
    names.min().unwrap()
}

#[test]
fn the_membership_is_in_the_snapshot() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        let membership = Membership::new(vec![[1, 2].into()], ());
        let joined = Entry {
            log_id: id(0, 0),
            payload: EntryPayload::Membership(membership.clone()),
        };
        node.append(vec![joined]).await.unwrap();
        node.append(entries(0, 1..5)).await.unwrap();
        node.snapshot(3).await.unwrap();
        let mut node = Opened::on(&fs, 2).await;
        let stored = StoredMembership::new(Some(id(0, 0)), membership);
        assert_eq!(node.membership().await, stored);
    });
}

#[test]
fn a_leader_that_has_no_entry_of_its_term_yet_still_begins_with_all_that_was_committed() {
    // "Elected" was taken for "all of my log is committed": reads showed what was rolled back later.
    // The other way round, who is elected and stops before the first entry of its term knows of no
    // commit at all, and a start that does not wait for one shows an empty state.
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let mut node = Opened::on(&fs, 1).await;
        let me = std::collections::BTreeMap::from([(1, openraft::BasicNode::default())]);
        let first = Entry {
            log_id: id(0, 0),
            payload: EntryPayload::Membership(Membership::new(vec![[1].into()], me)),
        };
        node.append(vec![first]).await.unwrap();
        node.append(entries(1, 1..10)).await.unwrap();
        let mut vote = crate::raft::Vote::new(2, 1);
        vote.committed = true;
        node.log.save_vote(&vote).await.unwrap();
        let machine = node.machine.clone();
        fs.power_loss(Keep::None);
        let config = NodeConfig {
            id: 1,
            snapshot_every: 100,
            peers: None,
        };
        let fs = std::sync::Arc::new(fs.for_this_process());
        let store = read(fs, &super::support::config(2), &machine)
            .await
            .unwrap();
        let node = Node::start(store, &config, &machine).await.unwrap();
        assert_eq!(machine.watch().borrow().next_producer_id(), 1_000_009);
        node.stop().await;
    });
}
