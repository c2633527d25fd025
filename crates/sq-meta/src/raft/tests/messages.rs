//! What nodes say to each other.

use ::bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use proptest::prelude::*;

use super::support::{entries, id};
use crate::codec::Damage;
use crate::raft::rpc::{Answer, Request};
use crate::raft::{Membership, SnapshotMeta, StoredMembership, Vote};

fn vote() -> Vote {
    let mut vote = Vote::new(7, 2);
    vote.committed = true;
    vote
}

fn requests() -> Vec<Bytes> {
    let meta = SnapshotMeta {
        last_log_id: Some(id(3, 9)),
        last_membership: StoredMembership::new(
            Some(id(2, 4)),
            Membership::new(vec![[1].into()], ()),
        ),
        snapshot_id: "T3-N1-9".to_owned(),
    };
    let requests = [
        Request::Append(AppendEntriesRequest {
            vote: vote(),
            prev_log_id: Some(id(3, 9)),
            entries: entries(4, 10..13),
            leader_commit: Some(id(3, 8)),
        }),
        Request::Append(AppendEntriesRequest {
            vote: vote(),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        }),
        Request::Vote(VoteRequest::new(vote(), Some(id(1, 2)))),
        Request::Snapshot(vote(), meta, Bytes::from_static(b"a snapshot")),
    ];
    requests.iter().map(Request::encode).collect()
}

fn answers() -> Vec<Bytes> {
    let answers = [
        Answer::Append(AppendEntriesResponse::Success),
        Answer::Append(AppendEntriesResponse::PartialSuccess(Some(id(2, 3)))),
        Answer::Append(AppendEntriesResponse::Conflict),
        Answer::Append(AppendEntriesResponse::HigherVote(vote())),
        Answer::Vote(VoteResponse::new(vote(), Some(id(1, 2)), true)),
        Answer::Snapshot(SnapshotResponse::new(vote())),
    ];
    answers.iter().map(Answer::encode).collect()
}

/// Whatever is decoded encodes to the same bytes.
fn check(bytes: &Bytes) -> (bool, bool) {
    let request = Request::decode(bytes).map(|r| assert_eq!(r.encode(), bytes));
    let answer = Answer::decode(bytes).map(|a| assert_eq!(a.encode(), bytes));
    (request.is_ok(), answer.is_ok())
}

#[test]
fn every_message_comes_back_and_no_cut_one_does() {
    let requests = requests().into_iter().map(|bytes| (bytes, (true, false)));
    let answers = answers().into_iter().map(|bytes| (bytes, (false, true)));
    for (bytes, is) in requests.chain(answers) {
        assert_eq!(check(&bytes), is, "{bytes:?}");
        for len in 0..bytes.len() {
            assert_eq!(
                check(&bytes.slice(..len)),
                (false, false),
                "{bytes:?} cut at {len}"
            );
        }
        let longer = [&bytes[..], &[0]].concat().into();
        assert_eq!(check(&longer), (false, false));
        let mut later = bytes.to_vec();
        later[0] = 2;
        let later = Request::decode(&later.into()).err();
        assert_eq!(later, Some(Damage::Version(2)));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoders_panic(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let all = [requests(), answers()].concat();
        let mut bytes = which.get(&all).to_vec();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        bytes.extend(tail);
        check(&bytes.into());
    }
}
