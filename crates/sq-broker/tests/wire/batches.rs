//! Record batches: what a producer may send, and what the broker writes into it.

use std::io::Write;

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::records::{
    Compression as Codec, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions,
    TimestampType,
};
use sq_broker::batch::{BatchError, BatchHeader, Compression, assign, validate_produced};
use sq_broker::protocol::ResponseError;

pub(crate) const CODECS: [(Codec, Compression); 5] = [
    (Codec::None, Compression::None),
    (Codec::Gzip, Compression::Gzip),
    (Codec::Snappy, Compression::Snappy),
    (Codec::Lz4, Compression::Lz4),
    (Codec::Zstd, Compression::Zstd),
];

/// What topics take here, in bytes.
pub(crate) const MAX: usize = 1 << 20;

/// The Produce version that current clients use.
pub(crate) const NOW: i16 = 12;

pub(crate) fn record(index: usize, timestamp: i64, value: Bytes) -> Record {
    Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: 4711,
        producer_epoch: 3,
        timestamp_type: TimestampType::Creation,
        offset: index as i64,
        sequence: 100 + index as i32,
        timestamp,
        key: index.is_multiple_of(2).then(|| Bytes::from_static(b"key")),
        value: Some(value),
        headers: IndexMap::new(),
    }
}

pub(crate) fn encode(records: &[Record], codec: Codec) -> Bytes {
    let mut out = BytesMut::new();
    let options = RecordEncodeOptions {
        version: 2,
        compression: codec,
    };
    let compressor = Some(compress);
    RecordBatchEncoder::encode_with_custom_compression(&mut out, records, &options, compressor)
        .unwrap();
    out.freeze()
}

fn compress(plain: &mut BytesMut, out: &mut BytesMut, codec: Codec) -> anyhow::Result<()> {
    let compressed = match codec {
        Codec::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(plain)?;
            gzip.finish()?
        }
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(plain)?,
        Codec::Lz4 => {
            let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
            lz4.write_all(plain)?;
            lz4.finish()?
        }
        Codec::Zstd => zstd::encode_all(&plain[..], 3)?,
        Codec::None => plain.to_vec(),
    };
    out.extend_from_slice(&compressed);
    Ok(())
}

/// A batch of one record for each timestamp.
pub(crate) fn batch_of(timestamps: &[i64], codec: Codec) -> Bytes {
    let value = Bytes::from_static(b"a value, a value, a value");
    let one = |(index, timestamp): (usize, &i64)| record(index, *timestamp, value.clone());
    encode(
        &timestamps.iter().enumerate().map(one).collect::<Vec<_>>(),
        codec,
    )
}

/// A batch with some of its bytes overwritten, and its checksum made right again.
pub(crate) fn with(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut changed = batch.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    if changed.len() > 21 {
        let crc = crc32c::crc32c(&changed[21..]);
        changed[17..21].copy_from_slice(&crc.to_be_bytes());
    }
    changed.into()
}

#[test]
fn what_producers_send_is_taken_and_its_header_read() {
    for (codec, compression) in CODECS {
        let batch = batch_of(&[50, 70, 60], codec);
        let header = validate_produced(&batch, MAX, NOW).unwrap();
        let theirs = RecordBatchDecoder::decode_batch_info(&mut batch.clone())
            .unwrap()
            .remove(0);
        assert_eq!(header.size(), Some(batch.len()));
        assert_eq!(header.base_offset, 0);
        assert_eq!(header.leader_epoch, theirs.partition_leader_epoch);
        assert_eq!(header.magic, theirs.version);
        assert_eq!(header.attributes.compression(), Some(compression));
        assert_eq!(header.last_offset_delta, 2);
        assert_eq!(
            (header.base_timestamp, header.max_timestamp),
            (theirs.min_timestamp, 70)
        );
        assert_eq!(header.producer_id, theirs.producer_id);
        assert_eq!(header.producer_epoch, theirs.producer_epoch);
        assert_eq!(header.base_sequence, theirs.base_sequence);
        assert_eq!(header.record_count, theirs.record_count);
        assert_eq!((header.last_sequence(), header.last_offset()), (102, 2));
        assert!(header.is_idempotent());
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    let batch = with(
        &batch_of(&[1, 2, 3], Codec::None),
        53,
        &(i32::MAX - 1).to_be_bytes(),
    );
    assert_eq!(
        validate_produced(&batch, MAX, NOW).unwrap().last_sequence(),
        0
    );
    let batch = with(&batch, 53, &(i32::MAX - 2).to_be_bytes());
    assert_eq!(
        validate_produced(&batch, MAX, NOW).unwrap().last_sequence(),
        i32::MAX
    );
}

/// Each of these, put at that place of a good batch of three records, is refused with that error.
fn assert_refused<const N: usize>(cases: &[(&str, usize, [u8; N])], error: ResponseError) {
    let good = batch_of(&[1, 2, 3], Codec::None);
    for (what, at, bytes) in cases {
        let refused = validate_produced(&with(&good, *at, bytes), MAX, NOW);
        assert_eq!(refused.map_err(|e| e.response()), Err(error), "{what}");
    }
}

/// Batches whose checksum is right and whose header is not were once appended, and the offsets of
/// everything behind them were wrong for good.
#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let (offset_delta, count) = (23, 57);
    assert_refused(
        &[
            (
                "offset delta 5 of 3 records",
                offset_delta,
                5_i32.to_be_bytes(),
            ),
            (
                "offset delta 1 of 3 records",
                offset_delta,
                1_i32.to_be_bytes(),
            ),
            ("offset delta -1", offset_delta, (-1_i32).to_be_bytes()),
            (
                "the least offset delta",
                offset_delta,
                i32::MIN.to_be_bytes(),
            ),
            ("count 0", count, 0_i32.to_be_bytes()),
            ("count -1", count, (-1_i32).to_be_bytes()),
            ("the least count", count, i32::MIN.to_be_bytes()),
            ("the greatest count", count, i32::MAX.to_be_bytes()),
            ("a producer without a sequence", 53, (-1_i32).to_be_bytes()),
        ],
        ResponseError::InvalidRecord,
    );
    assert_refused(
        &[("an offset", 0, 1_i64.to_be_bytes())],
        ResponseError::InvalidRecord,
    );
    assert_refused(
        &[("a producer without an epoch", 51, (-1_i16).to_be_bytes())],
        ResponseError::InvalidRecord,
    );
}

#[test]
fn a_batch_of_another_length_or_format_is_refused() {
    let length = batch_of(&[1, 2, 3], Codec::None).len() as i32 - 12;
    assert_refused(
        &[
            ("one too long", 8, (length + 1).to_be_bytes()),
            ("the longest", 8, i32::MAX.to_be_bytes()),
            ("shorter than a header", 8, 48_i32.to_be_bytes()),
            ("empty", 8, 0_i32.to_be_bytes()),
            ("negative", 8, (-1_i32).to_be_bytes()),
            ("the least", 8, i32::MIN.to_be_bytes()),
        ],
        ResponseError::CorruptMessage,
    );
    let invalid = ResponseError::InvalidRecord;
    assert_refused(&[("one too short", 8, (length - 1).to_be_bytes())], invalid);
    let formats = [
        ("0", 16, [0]),
        ("1", 16, [1]),
        ("3", 16, [3]),
        ("-1", 16, [0xff]),
    ];
    assert_refused(&formats, invalid);
}

#[test]
fn what_only_a_broker_may_write_is_refused() {
    let attributes = 21;
    assert_refused(
        &[("control", attributes, [0, 0x20])],
        ResponseError::InvalidRecord,
    );
    assert_refused(
        &[("transactional", attributes, [0, 0x10])],
        ResponseError::InvalidTxnState,
    );
    assert_refused(
        &[("append time", attributes, [0, 0x08])],
        ResponseError::InvalidTimestamp,
    );
    let codecs = [
        ("5", attributes, [0, 5]),
        ("6", attributes, [0, 6]),
        ("7", attributes, [0, 7]),
    ];
    assert_refused(&codecs, ResponseError::UnsupportedCompressionType);
}

/// A producer without an id says nothing by the two fields behind it, and clients differ in what
/// they put there.
#[test]
fn without_a_producer_id_epoch_and_sequence_mean_nothing() {
    for id in [-1_i64, i64::MIN] {
        for epoch in [-1_i16, 0, 7] {
            for sequence in [-1_i32, 0, 7] {
                let batch = with(&batch_of(&[1], Codec::None), 43, &id.to_be_bytes());
                let batch = with(&batch, 51, &epoch.to_be_bytes());
                let batch = with(&batch, 53, &sequence.to_be_bytes());
                assert!(!validate_produced(&batch, MAX, NOW).unwrap().is_idempotent());
            }
        }
    }
}

#[test]
fn a_partition_is_sent_exactly_one_batch() {
    let batch = batch_of(&[1, 2], Codec::None);
    let error =
        |bytes: &[u8]| validate_produced(&Bytes::copy_from_slice(bytes), MAX, NOW).unwrap_err();
    assert_eq!(error(&[]), BatchError::Missing);
    let two = [&batch[..], &batch[..]].concat();
    assert_eq!(error(&two), BatchError::Trailing { left: batch.len() });
    assert_eq!(
        error(&two[..=batch.len()]),
        BatchError::Trailing { left: 1 }
    );
    for end in 1..batch.len() {
        let error = error(&batch[..end]);
        let cut = matches!(
            error,
            BatchError::NoHeader { .. } | BatchError::Length { .. }
        );
        assert!(
            cut && error.response() == ResponseError::CorruptMessage,
            "{end}: {error}"
        );
    }
}

#[test]
fn a_batch_as_large_as_the_topic_allows_is_taken_and_a_larger_one_is_not() {
    let batch = batch_of(&[1, 2], Codec::None);
    assert!(validate_produced(&batch, batch.len(), NOW).is_ok());
    let error = validate_produced(&batch, batch.len() - 1, NOW).unwrap_err();
    assert_eq!(
        error,
        BatchError::TooLarge {
            length: batch.len(),
            max: batch.len() - 1
        }
    );
    assert_eq!(error.response(), ResponseError::MessageTooLarge);
}

#[test]
fn zstd_needs_a_request_that_knows_it() {
    let batch = batch_of(&[1, 2], Codec::Zstd);
    assert!(validate_produced(&batch, MAX, 7).is_ok());
    let error = validate_produced(&batch, MAX, 6).unwrap_err();
    assert_eq!(error, BatchError::ZstdTooEarly { version: 6 });
    assert_eq!(error.response(), ResponseError::UnsupportedCompressionType);
    assert!(validate_produced(&batch_of(&[1, 2], Codec::Lz4), MAX, 3).is_ok());
}

/// The leader epoch is the one field that the checksum leaves out and nothing else pins down: it is
/// the broker's to write, and clients put various things there.
#[test]
fn every_flipped_bit_is_found_but_in_the_field_the_broker_overwrites() {
    for (codec, _) in CODECS {
        let batch = batch_of(&[1, 2, 3], codec);
        for bit in 0..8 * batch.len() {
            let mut flipped = batch.to_vec();
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            let result = validate_produced(&flipped.into(), MAX, NOW);
            assert_eq!(
                result.is_ok(),
                (12..16).contains(&(bit / 8)),
                "{codec:?}, bit {bit}"
            );
        }
    }
}

#[test]
fn an_assigned_batch_has_its_offsets_and_is_otherwise_the_producers_own() {
    for (codec, _) in CODECS {
        let batch = batch_of(&[1, 2, 3], codec);
        let [front, rest] = assign(&batch, 1 << 40, 9);
        assert_eq!(
            (front.len(), rest.as_ptr()),
            (16, batch[16..].as_ptr()),
            "copied"
        );
        let stored = Bytes::from([front, rest].concat());
        assert_eq!(stored[8..12], batch[8..12]);
        assert_eq!(stored[16..], batch[16..]);
        // Their decoder checks the checksum.
        let theirs = RecordBatchDecoder::decode_batch_info(&mut stored.clone())
            .unwrap()
            .remove(0);
        assert_eq!(
            (theirs.min_offset, theirs.partition_leader_epoch),
            (1 << 40, 9)
        );
        assert_eq!(
            BatchHeader::parse(&stored).unwrap().last_offset(),
            (1 << 40) + 2
        );
    }
    let short = Bytes::from_static(&[1; 15]);
    assert_eq!(assign(&short, 5, 5).concat(), short);
}
