//! The lookup by timestamp, within one batch, under every codec.

use bytes::Bytes;
use kafka_protocol::records::Compression as Codec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};
use sq_broker::batch::{Compression, LookupError, assign, lookup_timestamp, validate_produced};

use crate::alloc::measure;
use crate::batches::{CODECS, MAX, NOW, batch_of, encode, record, with};

/// Offsets 10 to 13 at 2, 4, 6 and 8 ms: a lookup between two of them finds the later one, with its
/// own timestamp and not the one asked for, and a lookup behind them finds nothing.
#[test]
fn a_lookup_finds_the_first_record_at_or_after_a_time() {
    for (codec, _) in CODECS {
        let stored = Bytes::from(assign(&batch_of(&[2, 4, 6, 8], codec), 10, 0).concat());
        for (timestamp, found) in [
            (i64::MIN, Some((10, 2))),
            (2, Some((10, 2))),
            (3, Some((11, 4))),
            (8, Some((13, 8))),
            (9, None),
            (i64::MAX, None),
        ] {
            let result = lookup_timestamp(&stored, timestamp, 0, MAX).unwrap();
            assert_eq!(result, found, "{codec:?} at {timestamp}");
        }
    }
}

fn timestamps() -> impl Strategy<Value = Vec<i64>> {
    proptest::collection::vec(-5_i64..1_000_000, 1..40)
}

proptest! {
    // Debug builds compress slowly, and each case does so five times.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_lookup_is_a_search_through_the_records(
        timestamps in timestamps(),
        asked in -10_i64..1_000_010,
        base in 0_i64..1 << 50,
        size in 0_usize..1000,
    ) {
        let value = Bytes::from(vec![b'x'; size]);
        let records: Vec<_> =
            timestamps.iter().enumerate().map(|(i, t)| record(i, *t, value.clone())).collect();
        let first = timestamps.iter().enumerate().find(|(_, t)| **t >= asked);
        let wanted = first.map(|(index, t)| (base + index as i64, *t));
        for (codec, _) in CODECS {
            let stored = Bytes::from(assign(&encode(&records, codec), base, 0).concat());
            prop_assert_eq!(lookup_timestamp(&stored, asked, 0, MAX).unwrap(), wanted, "{:?}", codec);
        }
    }

    #[test]
    fn noise_in_the_records_is_an_error_or_an_answer_and_takes_little_memory(
        timestamps in timestamps(),
        flips in proptest::collection::vec(any::<u16>(), 1..6),
        cut in any::<u16>(),
    ) {
        for (codec, _) in CODECS {
            let mut noisy = batch_of(&timestamps, codec).to_vec();
            for flip in &flips {
                let at = 23 + usize::from(*flip) % (noisy.len() - 23);
                noisy[at] ^= 1 << (flip % 8);
            }
            let keep = if cut % 2 == 0 { noisy.len() } else { usize::from(cut) % noisy.len() };
            noisy.truncate(keep);
            let noisy = Bytes::from(noisy);
            let (_, asked) = measure(|| lookup_timestamp(&noisy, 500_000, 0, 1 << 16));
            // The codecs' own tables and windows, and nothing that the bytes could ask for.
            prop_assert!(asked.peak < 9 << 20, "{codec:?}: {asked:?}");
        }
    }
}

/// Of a batch that a log begins within, the records before that were found, and reading there was out of
/// range.
#[test]
fn a_lookup_finds_nothing_below_where_it_is_to_begin() {
    for (codec, _) in CODECS {
        let stored = Bytes::from(assign(&batch_of(&[2, 8, 6, 4], codec), 10, 0).concat());
        for (from, timestamp, found) in [
            (10, 3, Some((11, 8))),
            (11, 0, Some((11, 8))),
            (12, 0, Some((12, 6))),
            (12, 7, None),
            (13, 3, Some((13, 4))),
            (14, 0, None),
        ] {
            let result = lookup_timestamp(&stored, timestamp, from, MAX).unwrap();
            assert_eq!(result, found, "{codec:?} from {from} at {timestamp}");
        }
    }
    let appended = with(&batch_of(&[2, 4, 6, 8], Codec::None), 21, &[0, 8]);
    let stored = Bytes::from(assign(&appended, 10, 0).concat());
    for (from, found) in [(9, Some((10, 8))), (13, Some((13, 8))), (14, None)] {
        assert_eq!(lookup_timestamp(&stored, 7, from, MAX).unwrap(), found);
    }
}

#[test]
fn with_log_append_time_every_record_has_the_time_of_the_batch() {
    let batch = with(&batch_of(&[2, 4, 6, 8], Codec::None), 21, &[0, 8]);
    let stored = Bytes::from(assign(&batch, 10, 0).concat());
    assert_eq!(lookup_timestamp(&stored, 7, 0, MAX).unwrap(), Some((10, 8)));
    assert_eq!(lookup_timestamp(&stored, 9, 0, MAX).unwrap(), None);
}

/// Ten million zeros fit into ten thousand bytes. A lookup behind them must neither hold them nor
/// read on past what is allowed.
#[test]
fn what_decompresses_into_too_much_is_given_up() {
    let zeros = Bytes::from(vec![0; 10_000_000]);
    let records = [record(0, 1, zeros.clone()), record(1, 2, zeros)];
    for (codec, compression) in CODECS {
        let batch = encode(&records, codec);
        assert_eq!(
            lookup_timestamp(&batch, 2, 0, 30_000_000).unwrap(),
            Some((1, 2)),
            "{codec:?}"
        );
        let (result, asked) = measure(|| lookup_timestamp(&batch, 2, 0, 1_000_000));
        match result {
            // A raw Snappy block has to be decompressed whole, so it is refused before.
            Err(LookupError::Corrupt(_)) if compression == Compression::Snappy => {}
            Err(LookupError::TooLarge { max: 1_000_000 }) => {}
            other => panic!("{codec:?}: {other:?}"),
        }
        // LZ4 has a window of twice its largest block.
        let most = if compression == Compression::Lz4 {
            9 << 20
        } else {
            1_000_000
        };
        assert!(asked.peak < most, "{codec:?}: {asked:?}");
    }
}

/// The framing of the Java library, in which its producers send Snappy.
#[test]
fn framed_snappy_is_read() {
    let plain = batch_of(&[2, 4, 6, 8], Codec::None).slice(61..);
    let framing = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
    let block = |plain: &[u8]| {
        let block = snap::raw::Encoder::new().compress_vec(plain).unwrap();
        [&(block.len() as u32).to_be_bytes()[..], &block].concat()
    };
    let blocks: Vec<u8> = plain.chunks(7).flat_map(block).collect();
    let framed = |blocks: &[u8]| {
        let header = batch_of(&[2, 4, 6, 8], Codec::None).slice(..61);
        let batch = Bytes::from([&header[..], &framing[..], blocks].concat());
        let batch = with(&batch, 8, &(batch.len() as u32 - 12).to_be_bytes());
        with(&batch, 21, &[0, 2])
    };
    assert!(validate_produced(&framed(&blocks), MAX, NOW).is_ok());
    assert_eq!(
        lookup_timestamp(&framed(&blocks), 5, 0, MAX).unwrap(),
        Some((2, 6))
    );

    // Two streams, one behind the other.
    let two: Vec<u8> = plain
        .chunks(plain.len() / 2 + 1)
        .flat_map(|half| [&framing[..], &block(half)].concat())
        .collect();
    assert_eq!(
        lookup_timestamp(&framed(&two[framing.len()..]), 8, 0, MAX).unwrap(),
        Some((3, 8))
    );

    for lie in [-1_i32, i32::MAX, 1000] {
        let lying = [&lie.to_be_bytes()[..], &blocks[4..]].concat();
        assert!(lookup_timestamp(&framed(&lying), 5, 0, MAX).is_err());
    }
    // A block that claims 4 GiB.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let lying = [&5_u32.to_be_bytes()[..], &claim].concat();
    let (result, asked) = measure(|| lookup_timestamp(&framed(&lying), 5, 0, usize::MAX));
    assert!(result.is_err() && asked.peak < 100_000, "{asked:?}");
}

#[test]
fn what_is_no_batch_is_no_answer() {
    let batch = batch_of(&[1, 2], Codec::None);
    for end in 0..61 {
        let result = lookup_timestamp(&batch.slice(..end), 1, 0, MAX);
        assert!(matches!(result, Err(LookupError::NoBatch)));
    }
    let old = with(&batch, 16, &[1]);
    assert!(matches!(
        lookup_timestamp(&old, 1, 0, MAX),
        Err(LookupError::NoBatch)
    ));
    let codec = with(&batch, 21, &[0, 6]);
    assert!(matches!(
        lookup_timestamp(&codec, 1, 0, MAX),
        Err(LookupError::Codec)
    ));
    let more = with(&batch, 57, &i32::MAX.to_be_bytes());
    let late = with(&more, 35, &i64::MAX.to_be_bytes());
    assert!(matches!(
        lookup_timestamp(&late, 3, 0, MAX),
        Err(LookupError::Corrupt(_))
    ));
}
