//! Records: a key, a value, headers; and how they are laid out in a frame of kind *record*.
//!
//! ```text
//! key:     i32 length (-1: null), bytes
//! value:   i32 length (-1: null), bytes
//! headers: u32 count, then for each
//!            u32 length, UTF-8 bytes      the name
//!            i32 length (-1: null), bytes the value
//! ```
//!
//! All integers are big-endian. Null and empty stay distinct. Nothing may follow the last header.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A header of a record: a name and a value that may be null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The name; it need not be unique within a record.
    pub key: String,
    /// The value; `None` is null, which is not the same as empty.
    pub value: Option<Bytes>,
}

impl Header {
    /// A header with a value.
    pub fn new(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            value: Some(value.into()),
        }
    }

    /// A header whose value is null.
    pub fn null(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: None,
        }
    }
}

/// A record as it is appended and read back. Its offset and timestamp stand in its frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The key; `None` is null, which is not the same as empty.
    pub key: Option<Bytes>,
    /// The value; `None` is null, which is not the same as empty.
    pub value: Option<Bytes>,
    /// The headers, in order.
    pub headers: Vec<Header>,
}

/// Why bytes are not a record, or a record has no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end before the field does.
    #[error("{field} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
        /// How many bytes it says it has.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A length below -1.
    #[error("{field} has the length {length}")]
    NegativeLength {
        /// The field that was being read.
        field: &'static str,
        /// Its length.
        length: i32,
    },
    /// More headers than the bytes that are left could hold.
    #[error("{count} headers can't be in {left} bytes")]
    HeaderCount {
        /// How many headers the record says it has.
        count: u32,
        /// How many bytes there are.
        left: usize,
    },
    /// A header's name is not UTF-8.
    #[error("the name of header {index} is not UTF-8")]
    HeaderName {
        /// Which header, counted from 0.
        index: u32,
    },
    /// Bytes behind the last header.
    #[error("{0} bytes follow the record")]
    Trailing(usize),
    /// A field too long for its length prefix.
    #[error("{field} has {length} bytes, at most 2147483647 fit")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length in bytes.
        length: usize,
    },
}

/// The fewest bytes a header takes: two lengths.
const MIN_HEADER_LEN: usize = 8;

/// The fewest bytes a record takes: two lengths and a count.
const MIN_RECORD_LEN: usize = 12;

/// Encodes a record from its parts, without an intermediate copy of them.
///
/// # Errors
/// [`RecordError::TooLong`] for a field of 2 GiB or more.
pub fn encode_record(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header],
) -> Result<Bytes, RecordError> {
    let mut out = BytesMut::with_capacity(record_len(key, value, headers));
    put_record(&mut out, key, value, headers)?;
    Ok(out.freeze())
}

/// The bytes that a record takes when it is encoded.
pub(crate) fn record_len(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> usize {
    let header = |h: &Header| MIN_HEADER_LEN + h.key.len() + h.value.as_ref().map_or(0, Bytes::len);
    MIN_RECORD_LEN
        + key.map_or(0, <[u8]>::len)
        + value.map_or(0, <[u8]>::len)
        + headers.iter().map(header).sum::<usize>()
}

/// Appends an encoded record to `out`; what is there of one that can't be encoded is of no use.
///
/// # Errors
/// As for [`encode_record`].
pub(crate) fn put_record(
    out: &mut BytesMut,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header],
) -> Result<(), RecordError> {
    put_nullable(out, "key", key)?;
    put_nullable(out, "value", value)?;
    let count = u32::try_from(headers.len()).map_err(|_| RecordError::TooLong {
        field: "headers",
        length: headers.len(),
    })?;
    out.put_u32(count);
    for header in headers {
        put_nullable(out, "header name", Some(header.key.as_bytes()))?;
        put_nullable(out, "header value", header.value.as_deref())?;
    }
    Ok(())
}

fn put_nullable(
    out: &mut BytesMut,
    field: &'static str,
    bytes: Option<&[u8]>,
) -> Result<(), RecordError> {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            let length = i32::try_from(bytes.len()).map_err(|_| RecordError::TooLong {
                field,
                length: bytes.len(),
            })?;
            out.put_i32(length);
            out.put_slice(bytes);
        }
    }
    Ok(())
}

impl Record {
    /// Encodes the record.
    ///
    /// # Errors
    /// [`RecordError::TooLong`] for a field of 2 GiB or more.
    pub fn encode(&self) -> Result<Bytes, RecordError> {
        encode_record(self.key.as_deref(), self.value.as_deref(), &self.headers)
    }

    /// Decodes a record that fills `bytes`. Fields are slices of it; the only allocation is the
    /// list of headers, bounded by what the bytes can hold.
    ///
    /// # Errors
    /// [`RecordError`] names the field that does not fit.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, RecordError> {
        let mut bytes = bytes.into();
        let key = take_nullable(&mut bytes, "key")?;
        let value = take_nullable(&mut bytes, "value")?;
        let count = take_u32(&mut bytes, "header count")?;
        let most = bytes.len() / MIN_HEADER_LEN;
        if usize::try_from(count).map_or(true, |c| c > most) {
            return Err(RecordError::HeaderCount {
                count,
                left: bytes.len(),
            });
        }
        let mut headers = Vec::with_capacity(most.min(count as usize));
        for index in 0..count {
            let name =
                take_nullable(&mut bytes, "header name")?.ok_or(RecordError::NegativeLength {
                    field: "header name",
                    length: -1,
                })?;
            let key =
                String::from_utf8(name.into()).map_err(|_| RecordError::HeaderName { index })?;
            let value = take_nullable(&mut bytes, "header value")?;
            headers.push(Header { key, value });
        }
        if !bytes.is_empty() {
            return Err(RecordError::Trailing(bytes.len()));
        }
        Ok(Self {
            key,
            value,
            headers,
        })
    }
}

fn take_u32(bytes: &mut Bytes, field: &'static str) -> Result<u32, RecordError> {
    let left = bytes.len();
    bytes.try_get_u32().map_err(|_| RecordError::Truncated {
        field,
        needed: 4,
        left,
    })
}

fn take_nullable(bytes: &mut Bytes, field: &'static str) -> Result<Option<Bytes>, RecordError> {
    let left = bytes.len();
    let length = bytes.try_get_i32().map_err(|_| RecordError::Truncated {
        field,
        needed: 4,
        left,
    })?;
    if length == -1 {
        return Ok(None);
    }
    let needed =
        usize::try_from(length).map_err(|_| RecordError::NegativeLength { field, length })?;
    if needed > bytes.len() {
        return Err(RecordError::Truncated {
            field,
            needed,
            left: bytes.len(),
        });
    }
    Ok(Some(bytes.split_to(needed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    fn record() -> impl Strategy<Value = Record> {
        let header =
            (".{0,12}", option::of(bytes())).prop_map(|(key, value)| Header { key, value });
        (option::of(bytes()), option::of(bytes()), vec(header, 0..5)).prop_map(
            |(key, value, headers)| Record {
                key,
                value,
                headers,
            },
        )
    }

    proptest! {
        #[test]
        fn round_trip(record in record()) {
            prop_assert_eq!(Record::decode(record.encode().unwrap()).unwrap(), record);
        }

        #[test]
        fn every_shorter_and_longer_input_is_refused(record in record()) {
            let whole = record.encode().unwrap();
            for len in 0..whole.len() {
                prop_assert!(Record::decode(whole.slice(..len)).is_err());
            }
            let mut longer = whole.to_vec();
            longer.push(0);
            prop_assert_eq!(Record::decode(longer), Err(RecordError::Trailing(1)));
        }

        #[test]
        fn arbitrary_bytes_decode_to_what_they_encode(input in vec(any::<u8>(), 0..200)) {
            let input = Bytes::from(input);
            if let Ok(record) = Record::decode(input.clone()) {
                prop_assert_eq!(record.encode().unwrap(), input);
            }
        }
    }

    #[test]
    fn null_and_empty_stay_distinct() {
        let null = Record {
            key: None,
            value: None,
            headers: vec![Header::null("h")],
        };
        let empty = Record {
            key: Some(Bytes::new()),
            value: Some(Bytes::new()),
            headers: vec![Header::new("h", Bytes::new())],
        };
        assert_ne!(null.encode().unwrap(), empty.encode().unwrap());
        assert_eq!(Record::decode(null.encode().unwrap()).unwrap(), null);
        assert_eq!(Record::decode(empty.encode().unwrap()).unwrap(), empty);
    }

    #[test]
    fn a_header_count_beyond_the_bytes_is_refused_before_anything_is_allocated() {
        let mut lie = BytesMut::new();
        lie.put_i32(-1);
        lie.put_i32(-1);
        lie.put_u32(u32::MAX);
        assert_eq!(
            Record::decode(lie.freeze()),
            Err(RecordError::HeaderCount {
                count: u32::MAX,
                left: 0
            })
        );
    }
}
