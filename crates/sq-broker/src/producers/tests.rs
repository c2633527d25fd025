use std::time::Duration;

use proptest::prelude::*;

use super::{Admission, ProducerLimits, ProducerStamp, ProducerTable, SnapshotDamage, Verdict};

fn stamp(producer_id: i64, epoch: i16, first_sequence: i32, record_count: u32) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        epoch,
        first_sequence,
        record_count,
    }
}

fn table() -> ProducerTable {
    ProducerTable::new(ProducerLimits::default())
}

/// What a table alone says about a batch.
fn admit(table: &ProducerTable, batch: ProducerStamp, next_offset: u64, now_ms: u64) -> Verdict {
    let mut admission = Admission::default();
    admission.begin(now_ms);
    admission.admit(table, &batch, next_offset)
}

#[test]
fn a_retry_of_a_stored_batch_is_answered_with_its_offset() {
    // A broker answered OUT_OF_ORDER to the retry of a batch it had stored; the client raised its
    // epoch and sent the records again, and they were stored twice.
    let mut table = table();
    table.record(&stamp(9, 0, 0, 5), 0, 1);
    assert_eq!(
        admit(&table, stamp(9, 0, 0, 5), 5, 2),
        Verdict::Duplicate { base_offset: 0 }
    );
    assert_eq!(
        admit(&table, stamp(9, 0, 10, 1), 5, 2),
        Verdict::OutOfOrder { expected: 5 }
    );
    assert_eq!(admit(&table, stamp(9, 0, 5, 1), 5, 2), Verdict::Append);
}

#[test]
fn the_last_five_batches_are_remembered_and_no_more() {
    let mut table = table();
    for n in 0..6_u32 {
        table.record(&stamp(1, 0, n.cast_signed(), 1), u64::from(n), 1);
    }
    assert_eq!(
        admit(&table, stamp(1, 0, 0, 1), 6, 1),
        Verdict::OutOfOrder { expected: 6 }
    );
    for n in 1..6_u32 {
        let verdict = admit(&table, stamp(1, 0, n.cast_signed(), 1), 6, 1);
        assert_eq!(
            verdict,
            Verdict::Duplicate {
                base_offset: n.into()
            }
        );
    }
}

#[test]
fn a_batch_that_only_overlaps_a_stored_one_is_out_of_order() {
    let mut table = table();
    table.record(&stamp(1, 0, 0, 5), 0, 1);
    assert_eq!(
        admit(&table, stamp(1, 0, 0, 4), 5, 1),
        Verdict::OutOfOrder { expected: 5 }
    );
    assert_eq!(
        admit(&table, stamp(1, 0, 3, 5), 5, 1),
        Verdict::OutOfOrder { expected: 5 }
    );
}

#[test]
fn a_new_epoch_begins_at_zero_and_shuts_out_the_old_one() {
    let mut table = table();
    table.record(&stamp(1, 3, 0, 5), 0, 1);
    assert_eq!(
        admit(&table, stamp(1, 4, 5, 1), 5, 1),
        Verdict::OutOfOrder { expected: 0 }
    );
    assert_eq!(admit(&table, stamp(1, 4, 0, 1), 5, 1), Verdict::Append);
    table.record(&stamp(1, 4, 0, 1), 5, 1);
    assert_eq!(
        admit(&table, stamp(1, 3, 5, 1), 6, 1),
        Verdict::StaleEpoch { current: 4 }
    );
    // Nor does a batch of the old epoch count as a duplicate in the new one.
    assert_eq!(
        admit(&table, stamp(1, 4, 0, 5), 6, 1),
        Verdict::OutOfOrder { expected: 1 }
    );
}

#[test]
fn sequences_go_on_at_zero_behind_the_greatest() {
    let mut table = table();
    table.record(&stamp(1, 0, i32::MAX - 1, 3), 0, 1);
    assert_eq!(admit(&table, stamp(1, 0, 1, 1), 3, 1), Verdict::Append);
    assert_eq!(
        admit(&table, stamp(1, 0, i32::MAX - 1, 3), 3, 1),
        Verdict::Duplicate { base_offset: 0 }
    );
}

#[test]
fn a_producer_that_was_forgotten_goes_on_where_it_was() {
    // A producer idle for longer than the expiry was refused with its next batch, at sequence 7,
    // and its application was stuck. Nothing is known of it any more, so any sequence will do.
    let limits = ProducerLimits {
        expiry: Duration::from_mins(10),
        ..ProducerLimits::default()
    };
    let mut table = ProducerTable::new(limits);
    table.record(&stamp(1, 0, 0, 7), 0, 1_000);
    assert_eq!(
        admit(&table, stamp(1, 0, 9, 1), 7, 600_999),
        Verdict::OutOfOrder { expected: 7 }
    );
    assert_eq!(
        admit(&table, stamp(1, 0, 7, 8), 7, 601_001),
        Verdict::Append
    );
    table.expire(601_001);
    assert!(table.is_empty());
}

#[test]
fn a_clock_that_is_set_back_forgets_nobody() {
    let mut table = table();
    table.record(&stamp(1, 0, 0, 1), 0, 1_000_000);
    table.expire(0);
    assert_eq!(table.len(), 1);
    assert_eq!(
        admit(&table, stamp(1, 0, 0, 1), 1, 0),
        Verdict::Duplicate { base_offset: 0 }
    );
}

#[test]
fn the_producer_that_wrote_longest_ago_makes_room() {
    let limits = ProducerLimits {
        max_producers: 2,
        ..ProducerLimits::default()
    };
    let mut table = ProducerTable::new(limits);
    table.record(&stamp(1, 0, 0, 1), 0, 1);
    table.record(&stamp(2, 0, 0, 1), 1, 1);
    table.record(&stamp(1, 0, 1, 1), 2, 1);
    table.record(&stamp(3, 0, 0, 1), 3, 1);
    assert_eq!(table.len(), 2);
    assert_eq!(
        admit(&table, stamp(1, 0, 0, 1), 4, 1),
        Verdict::Duplicate { base_offset: 0 }
    );
    assert_eq!(
        admit(&table, stamp(2, 0, 0, 1), 4, 1),
        Verdict::Append,
        "forgotten"
    );
}

#[test]
fn a_group_sees_its_own_batches_before_they_are_durable() {
    // A retry that arrives together with its original, as after a client's time-out, must not be
    // stored because the original is not yet in the log.
    let mut table = table();
    table.record(&stamp(1, 0, 0, 2), 0, 1);
    let mut group = Admission::default();
    group.begin(1);
    assert_eq!(group.admit(&table, &stamp(1, 0, 2, 2), 2), Verdict::Append);
    assert_eq!(
        group.admit(&table, &stamp(1, 0, 0, 2), 4),
        Verdict::Duplicate { base_offset: 0 }
    );
    assert_eq!(
        group.admit(&table, &stamp(1, 0, 2, 2), 4),
        Verdict::DuplicateInGroup { base_offset: 2 }
    );
    assert_eq!(group.admit(&table, &stamp(1, 0, 4, 1), 4), Verdict::Append);
    assert_eq!(
        group.admit(&table, &stamp(1, 0, 4, 1), 5),
        Verdict::DuplicateInGroup { base_offset: 4 }
    );
    assert_eq!(
        group.admit(&table, &stamp(1, 0, 6, 1), 5),
        Verdict::OutOfOrder { expected: 5 }
    );
    assert_eq!(group.admit(&table, &stamp(2, 0, 40, 1), 5), Verdict::Append);
    assert_eq!(
        group.admit(&table, &stamp(2, 0, 40, 1), 6),
        Verdict::DuplicateInGroup { base_offset: 5 }
    );
    // And nothing of it is left if the group fails.
    assert_eq!(admit(&table, stamp(1, 0, 2, 2), 2, 1), Verdict::Append);
}

#[test]
fn a_pipeline_does_not_skip_the_batch_that_failed() {
    // Of two batches in flight the first fails on a full disk and the second comes in after that.
    // The producer is unknown, so any first sequence would be taken: the second, and then the
    // retry of the first would be refused for good.
    let mut table = table();
    table.record_failure(&stamp(1, 0, 0, 5), 1);
    assert_eq!(
        admit(&table, stamp(1, 0, 5, 5), 0, 1),
        Verdict::OutOfOrder { expected: 0 }
    );
    assert_eq!(admit(&table, stamp(1, 0, 0, 5), 0, 1), Verdict::Append);
    table.record(&stamp(1, 0, 0, 5), 0, 1);
    assert_eq!(admit(&table, stamp(1, 0, 5, 5), 5, 1), Verdict::Append);
    // One that is known keeps what is known of it.
    table.record_failure(&stamp(1, 0, 5, 5), 1);
    assert_eq!(
        admit(&table, stamp(1, 0, 0, 5), 5, 1),
        Verdict::Duplicate { base_offset: 0 }
    );
}

fn filled_table() -> ProducerTable {
    let mut table = table();
    for n in 0..40_i64 {
        let first = i32::try_from(n / 8).unwrap() * 3;
        table.record(
            &stamp(n % 8, 2, first, 3),
            n.cast_unsigned() * 3,
            500 + n.cast_unsigned(),
        );
    }
    table
}

#[test]
fn a_snapshot_comes_back_as_it_was() {
    let mut table = filled_table();
    table.record_failure(&stamp(99, 0, 0, 1), 900);
    let bytes = table.encode_snapshot(120);
    let (back, offset) = ProducerTable::decode_snapshot(&bytes, ProducerLimits::default()).unwrap();
    assert_eq!(offset, 120);
    assert_eq!(
        back.len(),
        8,
        "what is not in the log is not in its snapshot"
    );
    assert_eq!(back.encode_snapshot(120), bytes);
    for id in 0..8 {
        let retry = stamp(id, 2, 12, 3);
        assert_eq!(
            admit(&back, retry, 120, 900),
            admit(&table, retry, 120, 900)
        );
    }
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_snapshot_is_noticed() {
    let bytes = filled_table().encode_snapshot(120);
    let decode = |bytes: &[u8]| ProducerTable::decode_snapshot(bytes, ProducerLimits::default());
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert_eq!(decode(&longer).unwrap_err(), SnapshotDamage::Checksum);
}

proptest! {
    /// Whatever a producer sends, each of its records is in the log once and in order: a batch is
    /// stored only right behind the one before it.
    #[test]
    fn a_log_never_holds_a_sequence_twice_or_out_of_order(
        sends in proptest::collection::vec((0..30_i32, 1..4_u32), 1..60),
        group_size in 1..6_usize,
    ) {
        let mut table = table();
        let mut log: Vec<(i32, u32)> = Vec::new();
        let mut end = 0_u64;
        let mut admission = Admission::default();
        for group in sends.chunks(group_size) {
            let mut stored = Vec::new();
            admission.begin(1);
            for (first, count) in group {
                let batch = stamp(1, 0, *first, *count);
                if admission.admit(&table, &batch, end) == Verdict::Append {
                    stored.push((batch, end));
                    end += u64::from(*count);
                }
            }
            for (batch, offset) in stored {
                table.record(&batch, offset, 1);
                log.push((batch.first_sequence, batch.record_count));
            }
        }
        for pair in log.windows(2) {
            prop_assert_eq!(pair[1].0, pair[0].0 + pair[0].1.cast_signed());
        }
    }
}
