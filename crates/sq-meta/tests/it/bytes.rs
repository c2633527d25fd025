//! Bytes that come back, and bytes that do not.

use proptest::prelude::*;
use sq_meta::codec::{Damage, command, snapshot};
use sq_meta::{Broker, BrokerId, Command, MetaState, NewPartition, SealedBefore};

use crate::support::{Cluster, broker, ends_with, new_topic, segment};

/// A state with everything in it.
fn state() -> MetaState {
    let mut cluster = Cluster::new();
    let racked = Broker {
        rack: Some("a".to_owned()),
        ..broker(3)
    };
    cluster.must(&Command::RegisterBroker(racked));
    let gone = vec![NewPartition::empty(BrokerId(2), segment(70, &[2]))];
    cluster.must(&Command::CreateTopic(new_topic(9, "gone", gone)));
    let topic = new_topic(9, "gone", vec![]).id;
    cluster.must(&Command::DeleteTopic { topic });
    cluster.must(&Command::AllocateProducerIds { count: 1000 });
    cluster.must(&cluster.prepare(2, &[0, 2]));
    cluster.must(&cluster.seal(10, 2));
    cluster.must(&cluster.prepare(3, &[0, 3]));
    cluster.must(&cluster.begin());
    cluster.must(&cluster.elect(3, ends_with(20, 25), 4, &[1, 2, 3]));
    cluster.must(&cluster.advance(5));
    cluster.must(&cluster.prepare(5, &[3]));
    cluster.meta
}

fn commands() -> Vec<Command> {
    let mut cluster = Cluster::new();
    let old = NewPartition {
        leader: BrokerId(1),
        log_start: 5,
        sealed: vec![SealedBefore {
            segment: segment(8, &[1]),
            base: 0,
            end: 10,
        }],
        active: segment(9, &[1, 2]),
        active_base: 10,
    };
    let topic = cluster.partition.topic;
    let mut commands = vec![
        Command::RegisterBroker(broker(1)),
        Command::CreateTopic(new_topic(4, "older", vec![old])),
        Command::DeleteTopic { topic },
        Command::ForgetDeleted {
            topic,
            broker: BrokerId(1),
        },
        Command::AllocateProducerIds { count: 7 },
        Command::SkipProducerIds { below: 9 },
        cluster.prepare(2, &[0, 1]),
        cluster.seal(3, 2),
        cluster.abandon(2),
        cluster.begin(),
        cluster.advance(3),
    ];
    cluster.must(&cluster.begin());
    commands.push(cluster.elect(2, ends_with(3, 5), 6, &[2]));
    commands
}

#[test]
fn every_flipped_bit_and_every_other_length_of_a_snapshot_is_refused() {
    let state = state();
    let bytes = snapshot::encode(&state);
    assert_eq!(snapshot::decode(&bytes), Ok(state));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(snapshot::decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(snapshot::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(snapshot::decode(&longer).is_err());
}

/// Puts the right checksum under a snapshot.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

#[test]
fn a_snapshot_of_another_version_is_named_and_one_of_an_impossible_state_refused() {
    let bytes = snapshot::encode(&state()).to_vec();
    let mut later = bytes.clone();
    later[5] = 2;
    assert_eq!(snapshot::decode(&sealed(later)), Err(Damage::Version(2)));
    // Whatever byte of it is another, with a right checksum: it decodes to a valid state or not at all.
    let mut refused = 0;
    for at in 8..bytes.len() - 4 {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            match snapshot::decode(&sealed(bad.clone())) {
                Ok(state) => {
                    state.validate().unwrap();
                    assert_eq!(snapshot::encode(&state), sealed(bad), "byte {at}");
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 100);
}

#[test]
fn every_command_comes_back_and_no_cut_one_does() {
    for given in commands() {
        let bytes = command::encode(&given);
        assert_eq!(command::decode(&bytes), Ok(given.clone()));
        for len in 0..bytes.len() {
            assert!(
                command::decode(&bytes[..len]).is_err(),
                "{given:?} cut at {len}"
            );
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(command::decode(&longer).is_err());
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0xff;
            if let Ok(other) = command::decode(&bad) {
                assert_eq!(command::encode(&other), bad, "{given:?}, byte {at}");
            }
        }
    }
    assert_eq!(command::decode(&[2, 1]), Err(Damage::Version(2)));
}

#[test]
fn a_count_that_the_bytes_can_not_fill_allocates_nothing() {
    // Twelve bytes once asked for 150 GB.
    let mut create = command::encode(&commands()[1]).to_vec();
    let at = create.len() - (4 + 8 + 4 + (8 + 1 + 4) + 16 + (8 + 1 + 8) + 8) - 4;
    assert_eq!(create[at..at + 4], 1_u32.to_be_bytes());
    create[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(command::decode(&create), Err(Damage::TooShort));
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoders_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0_u8..14,
    ) {
        let _ = command::decode(&bytes);
        let _ = snapshot::decode(&bytes);
        if bytes.len() >= 12 {
            bytes[..2].copy_from_slice(&[1, kind]);
            let _ = command::decode(&bytes);
            bytes[..8].copy_from_slice(b"SQMS\0\x01\0\0");
            let _ = snapshot::decode(&sealed(bytes));
        }
    }
}
