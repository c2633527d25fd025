//! Produce 0 to 2: advertised, never served, and refused in their own layout.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Api;
use super::chunks::Chunks;
use super::frame::LENGTH_PREFIX;
use super::response::{self, Encoded};
use super::schema;

/// An error for every partition of a produce request of version 0, 1 or 2.
///
/// `None` if the request is malformed, or wants no response (acks=0): then all that is left to say
/// no is to close the connection.
pub(super) fn refuse_produce(
    frame: &Bytes,
    version: i16,
    correlation_id: i32,
    error_code: i16,
) -> Option<Encoded> {
    schema::check_request(frame, Api::Produce, version).ok()?;
    let mut request = frame.clone();
    request.advance(8);
    text(&mut request)?; // the client id
    let acks = request.try_get_i16().ok()?;
    let _timeout_ms = request.try_get_i32().ok()?;
    if acks == 0 {
        return None;
    }
    let mut out = BytesMut::with_capacity(LENGTH_PREFIX + 4 + frame.len());
    out.put_i32(0);
    out.put_i32(correlation_id);
    let topics = count(&mut request, &mut out)?;
    for _ in 0..topics {
        let name = text(&mut request)?;
        out.put_i16(i16::try_from(name.len()).ok()?);
        out.put_slice(&name);
        let partitions = count(&mut request, &mut out)?;
        for _ in 0..partitions {
            out.put_i32(request.try_get_i32().ok()?);
            skip_records(&mut request)?;
            out.put_i16(error_code);
            out.put_i64(-1); // the base offset
            if version >= 2 {
                out.put_i64(-1); // the append time
            }
        }
    }
    if version >= 1 {
        out.put_i32(0); // the throttle time
    }
    response::finish(Chunks::new(out)).ok()
}

/// An array's count, repeated in the response.
fn count(request: &mut Bytes, out: &mut BytesMut) -> Option<i32> {
    let count = request.try_get_i32().ok()?;
    out.put_i32(count);
    Some(count)
}

/// A string; null counts as empty.
fn text(request: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(request.try_get_i16().ok()?).unwrap_or(0);
    (length <= request.len()).then(|| request.split_to(length))
}

fn skip_records(request: &mut Bytes) -> Option<()> {
    let length = usize::try_from(request.try_get_i32().ok()?).unwrap_or(0);
    (length <= request.len()).then(|| request.advance(length))
}
