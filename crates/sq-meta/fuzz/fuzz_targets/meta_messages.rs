//! Records of the journal, and what brokers send each other, from anything: what is read encodes to
//! what was read. The input goes through as it is.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sq_meta::check_any_bytes(&Bytes::copy_from_slice(input)));
