//! Topics, brokers and producer ids.

use std::collections::BTreeSet;

use sq_meta::{
    Applied, Broker, BrokerId, Command, MAX_PARTITIONS_PER_TOPIC, NewPartition, Refusal,
    SealedBefore, SegmentId,
};
use sq_storage::TopicName;

use crate::support::{Cluster, broker, new_topic, segment, topic_id};

fn one_partition(id: u64) -> Vec<NewPartition> {
    vec![NewPartition::empty(BrokerId(0), segment(id, &[0]))]
}

#[test]
fn a_topic_is_there_by_name_and_by_id_until_it_is_deleted() {
    let mut cluster = Cluster::new();
    let name = TopicName::new("orders").unwrap();
    let topic = cluster.meta.topic_named(&name).unwrap();
    assert_eq!(topic.id, topic_id(1));
    assert_eq!(topic.configs["segment.bytes"], "1048576");
    let again = Command::CreateTopic(new_topic(1, "orders", one_partition(1)));
    assert_eq!(
        cluster.must(&again),
        Applied::TopicCreated { repeated: true }
    );
    let other = Command::CreateTopic(new_topic(2, "orders", one_partition(7)));
    let exists = Refusal::TopicExists {
        name: name.clone(),
        id: topic_id(1),
    };
    assert_eq!(cluster.apply(&other), Err(exists));
    let delete = Command::DeleteTopic { topic: topic_id(1) };
    let holders: BTreeSet<_> = (0..4).map(BrokerId).collect();
    let deleted = Applied::TopicDeleted { holders };
    assert_eq!(cluster.must(&delete), deleted);
    assert_eq!(cluster.must(&delete), deleted, "a repeat");
    assert_eq!(cluster.meta.topic_named(&name), None);
    assert_eq!(cluster.meta.load(BrokerId(0)).open_segments, 0);
    assert_eq!(cluster.apply(&other), Err(Refusal::BeingDeleted(name)));
}

#[test]
fn a_name_is_free_once_every_broker_has_forgotten_the_topic() {
    let mut cluster = Cluster::new();
    cluster.must(&Command::DeleteTopic { topic: topic_id(1) });
    for id in 0..4 {
        let forget = Command::ForgetDeleted {
            topic: topic_id(1),
            broker: BrokerId(id),
        };
        let name_is_free = id == 3;
        assert_eq!(
            cluster.must(&forget),
            Applied::DeletedForgotten { name_is_free }
        );
        let again = cluster.must(&forget);
        assert_eq!(
            again,
            Applied::DeletedForgotten { name_is_free },
            "a repeat"
        );
    }
    cluster.must(&Command::CreateTopic(new_topic(
        2,
        "orders",
        one_partition(7),
    )));
}

#[test]
fn a_topic_that_makes_no_sense_is_refused() {
    let mut cluster = Cluster::new();
    let create = |n, name: &str, partitions| Command::CreateTopic(new_topic(n, name, partitions));
    assert_eq!(
        cluster.apply(&create(2, "none", vec![])),
        Err(Refusal::Partitions(0))
    );
    let many = vec![one_partition(9).remove(0); MAX_PARTITIONS_PER_TOPIC + 1];
    let too_many = Err(Refusal::Partitions(MAX_PARTITIONS_PER_TOPIC + 1));
    assert_eq!(cluster.apply(&create(2, "many", many)), too_many);
    let taken = Err(Refusal::TopicIdTaken(topic_id(1)));
    assert_eq!(cluster.apply(&create(1, "other", one_partition(9))), taken);
    let elsewhere = vec![NewPartition::empty(BrokerId(3), segment(9, &[0, 1]))];
    assert!(matches!(
        cluster.apply(&create(2, "elsewhere", elsewhere)),
        Err(Refusal::LeaderNotReplica { .. })
    ));
    let mut long = new_topic(2, "long", one_partition(9));
    long.configs.insert("x".repeat(256), String::new());
    let refusal = cluster.apply(&Command::CreateTopic(long));
    assert!(matches!(refusal, Err(Refusal::SettingTooLong { .. })));
}

#[test]
fn a_log_that_is_older_than_its_metadata_is_taken_over() {
    let before = |id, base, end| SealedBefore {
        segment: segment(id, &[0]),
        base,
        end,
    };
    let old = NewPartition {
        leader: BrokerId(0),
        log_start: 12,
        sealed: vec![before(3, 10, 20), before(4, 20, 30)],
        active: segment(5, &[0]),
        active_base: 30,
    };
    let mut cluster = Cluster::without_topic();
    cluster.must(&Command::CreateTopic(new_topic(
        1,
        "orders",
        vec![old.clone()],
    )));
    assert_eq!(
        cluster.chain(),
        [(3, 10, Some(20)), (4, 20, Some(30)), (5, 30, None)]
    );
    assert_eq!(cluster.state().log_start, 12);
    assert!(cluster.state().resumable_by(BrokerId(0)));

    let mut cluster = Cluster::without_topic();
    let gap = NewPartition {
        active_base: 31,
        ..old.clone()
    };
    let overlap = NewPartition {
        sealed: vec![before(3, 10, 21), before(4, 20, 30)],
        ..old.clone()
    };
    let backwards = NewPartition {
        sealed: vec![before(3, 40, 30)],
        ..old.clone()
    };
    let too_low = NewPartition {
        log_start: 9,
        ..old.clone()
    };
    let too_high = NewPartition {
        log_start: 31,
        sealed: vec![],
        ..old.clone()
    };
    let gone = NewPartition {
        log_start: 25,
        ..old.clone()
    };
    let twice = NewPartition {
        sealed: vec![before(5, 10, 20), before(4, 20, 30)],
        ..old
    };
    for bad in [gap, overlap, backwards, too_low, too_high, gone, twice] {
        let create = Command::CreateTopic(new_topic(1, "orders", vec![bad.clone()]));
        assert!(cluster.apply(&create).is_err(), "{bad:?}");
    }
}

#[test]
fn a_broker_says_where_it_is() {
    let mut cluster = Cluster::without_topic();
    let revision = cluster.meta.revision();
    cluster.must(&Command::RegisterBroker(broker(2)));
    assert_eq!(cluster.meta.revision(), revision, "a repeat");
    let moved = Broker {
        incarnation: 7,
        host: "elsewhere".to_owned(),
        ..broker(2)
    };
    cluster.must(&Command::RegisterBroker(moved.clone()));
    assert_eq!(**cluster.meta.broker(BrokerId(2)).unwrap(), moved);
    let refused = |broker: Broker| cluster.meta.clone().apply(&Command::RegisterBroker(broker));
    assert_eq!(refused(broker(1 << 31)), Err(Refusal::BrokerId(1 << 31)));
    for host in [String::new(), "x".repeat(256)] {
        let bad = Broker { host, ..broker(1) };
        assert_eq!(refused(bad), Err(Refusal::BrokerAddress("host")));
    }
    let bad = Broker {
        rack: Some(String::new()),
        ..broker(1)
    };
    assert_eq!(refused(bad), Err(Refusal::BrokerAddress("rack")));
}

#[test]
fn no_producer_id_is_given_twice() {
    let mut cluster = Cluster::without_topic();
    let mut allocate = |count| cluster.apply(&Command::AllocateProducerIds { count });
    assert_eq!(allocate(1000), Ok(Applied::ProducerIds(0..1000)));
    assert_eq!(allocate(5), Ok(Applied::ProducerIds(1000..1005)));
    cluster.must(&Command::SkipProducerIds { below: 10 });
    assert_eq!(cluster.meta.next_producer_id(), 1005, "it never goes back");
    cluster.must(&Command::SkipProducerIds {
        below: i64::MAX - 3,
    });
    let mut allocate = |count| cluster.apply(&Command::AllocateProducerIds { count });
    assert_eq!(allocate(4), Err(Refusal::ProducerIdsExhausted));
    assert_eq!(
        allocate(3),
        Ok(Applied::ProducerIds(i64::MAX - 3..i64::MAX))
    );
}

#[test]
fn a_partition_that_is_not_there_is_named() {
    let mut cluster = Cluster::new();
    cluster.partition.partition = 1;
    let unknown = Err(Refusal::UnknownPartition(cluster.partition));
    assert_eq!(cluster.apply(&cluster.begin()), unknown);
    let seal = Command::SealSegment {
        partition: cluster.partition,
        epoch: 0,
        segment: SegmentId(1),
        end: 1,
        successor: SegmentId(2),
    };
    assert_eq!(cluster.apply(&seal), unknown);
}
