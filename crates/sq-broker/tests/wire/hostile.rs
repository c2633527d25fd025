//! Requests that lie about lengths and counts.

use bytes::Bytes;
use kafka_protocol::messages::MetadataRequest;
use kafka_protocol::protocol::Decodable;
use proptest::prelude::{ProptestConfig, any, proptest};
use sq_broker::protocol::schema::MAX_ITEMS;
use sq_broker::protocol::{Api, DecodeError, decode};

use crate::alloc::{Asked, measure};
use crate::make::{every_version, raw, request};

/// What a decoder may ask for, for each byte of a frame: the largest structure that the fewest
/// bytes can stand for, and the doubling of what holds it.
const GROWTH: usize = 300;

fn assert_modest(frame: &Bytes, asked: Asked) {
    let most = 4096 + GROWTH * frame.len();
    assert!(
        asked.peak <= most,
        "{asked:?} for {} bytes: {frame:?}",
        frame.len()
    );
}

/// Decodes, within bounds. Where the walk lets a frame through, `kafka-protocol` must agree about
/// where everything ends: the one thing it may still refuse is what text and tags say.
fn decode_modestly(frame: &Bytes) -> bool {
    let (result, asked) = measure(|| decode(frame.clone()));
    assert_modest(frame, asked);
    if let Err(DecodeError::Content { reason, .. }) = &result {
        let about = ["utf-8", "Tag "].iter().any(|word| reason.contains(word));
        assert!(
            about,
            "the walk and the decoder disagree: {reason}: {frame:?}"
        );
    }
    result.is_ok()
}

/// The bug in another's decoder that all of this is about: a frame of a few bytes that asks for as
/// many elements as an `i32` can say. Handed straight to it, the process would die.
#[test]
fn a_frame_of_a_few_bytes_gets_no_memory() {
    let lie = raw(3, 0, false, &i32::MAX.to_be_bytes());
    assert!(!decode_modestly(&lie));
    // Smaller, so that it can be shown: 2,000,000 elements from four bytes are 160 MB.
    let (result, asked) =
        measure(|| MetadataRequest::decode(&mut Bytes::from_static(&[0x00, 0x1e, 0x84, 0x80]), 0));
    assert!(result.is_err());
    assert!(
        asked.largest > 100_000_000,
        "the decoder has learned to count: {asked:?}"
    );
}

#[test]
fn every_prefix_of_every_request_is_refused() {
    for seed in 0..4 {
        for (api, version) in every_version() {
            let (_, frame) = request(seed, api, version);
            for end in 0..frame.len() {
                assert!(
                    !decode_modestly(&frame.slice(..end)),
                    "{api} {version}, {end} bytes"
                );
            }
        }
    }
}

/// At every place where a length or a count could be, each of the lies that they could tell.
#[test]
fn a_lie_at_any_place_of_any_request_gets_no_memory() {
    let lies: [&[u8]; 8] = [
        &[0x7f, 0xff, 0xff, 0xff],
        &[0x80, 0x00, 0x00, 0x00],
        &[0xff, 0xff, 0xff, 0xfe],
        &[0x00, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x7f, 0xff],
        &[0x80, 0x00],
    ];
    let (mut refused, mut accepted) = (0, 0);
    for (api, version) in every_version() {
        let (_, frame) = request(1, api, version);
        for at in 8..frame.len() {
            for lie in lies.iter().filter(|lie| at + lie.len() <= frame.len()) {
                let mut lying = frame.to_vec();
                lying[at..at + lie.len()].copy_from_slice(lie);
                let accepts = decode_modestly(&lying.into());
                refused += usize::from(!accepts);
                accepted += usize::from(accepts);
            }
        }
    }
    // Both happen: in most places a request holds a plain number, of which any value is good.
    assert!(
        refused > 2_000 && accepted > 2_000,
        "{refused} refused, {accepted} accepted"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn noise_of_any_kind_is_decoded_within_bounds(seed in any::<u64>(), flips in any::<[u16; 3]>()) {
        for (api, version) in every_version() {
            let (_, frame) = request(seed, api, version);
            let mut noisy = frame.to_vec();
            for flip in flips {
                let bit = usize::from(flip) % (8 * (noisy.len() - 4)) + 32;
                noisy[bit / 8] ^= 1 << (bit % 8);
            }
            decode_modestly(&noisy.into());
        }
    }

    #[test]
    fn a_header_with_anything_behind_it_is_decoded_within_bounds(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        for (api, version) in every_version() {
            decode_modestly(&raw(api.key(), version, api.flexible_request_header(version), &bytes));
        }
    }
}

/// Three bytes can stand for a structure of a hundred, so a large frame of honest counts could grow
/// thirtyfold. The number of elements is bounded, whatever they are.
#[test]
fn honest_counts_are_bounded_all_the_same() {
    let topics = |count: usize| {
        let mut body = vec![0_u8; 1 + 2 + 4]; // no transactional id, acks, timeout
        let mut announced = u32::try_from(count + 1).unwrap();
        while announced >= 0x80 {
            body.push(announced.to_le_bytes()[0] | 0x80);
            announced >>= 7;
        }
        body.push(announced.to_le_bytes()[0]);
        body.extend([1, 1, 0].repeat(count)); // an empty name, no partitions, no tags
        body.push(0);
        raw(Api::Produce.key(), 11, true, &body)
    };
    assert!(decode(topics(MAX_ITEMS)).is_ok());
    let (result, asked) = measure(|| decode(topics(MAX_ITEMS + 1)));
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("more than 250000 elements")
    );
    assert!(asked.peak < 4_000_000, "{asked:?}");
}
