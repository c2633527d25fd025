//! Requests from anything. The walk must let nothing through that the decoder would stumble over:
//! where lengths are right, all that may still be wrong is text that is not UTF-8, or a tag out of
//! place. Run with a limit on single allocations, which is what a lying count would ask for.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sq_broker::protocol::{DecodeError, decode};

fuzz_target!(|input: &[u8]| {
    match decode(Bytes::copy_from_slice(input)) {
        Ok(request) => {
            assert!(request.api.served().contains(&request.version));
        }
        Err(DecodeError::Content { reason, .. }) => {
            assert!(
                reason.contains("utf-8") || reason.contains("Tag "),
                "{reason}"
            );
        }
        Err(error) => {
            if let Some(answer) = error.into_answer() {
                let bytes = answer.chunks().concat();
                assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
                assert_eq!(bytes[4..8], input[4..8], "the correlation id");
            }
        }
    }
});
