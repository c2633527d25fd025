//! Bytes: what is written to a log or a snapshot, and read back with suspicion.
//!
//! All integers are big-endian. A decoder takes no length or count on trust: nothing is allocated that
//! the bytes at hand can't fill. What it accepts it would encode to the same bytes.

pub mod command;
pub mod snapshot;

use bytes::{Buf, BufMut, BytesMut};
use sq_storage::TopicName;
use uuid::Uuid;

use crate::command::NewSegment;
use crate::ids::{BrokerId, MAX_REPLICAS, ReplicaSet, SegmentId, TopicId};

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It ends in the middle of something.
    #[error("it ends in the middle of an entry")]
    TooShort,
    /// It does not begin with the mark of its kind.
    #[error("it does not begin with the right mark")]
    Magic,
    /// A later version wrote it.
    #[error("format version {0} is not known here")]
    Version(u16),
    /// The checksum does not match.
    #[error("the checksum is {stored:08x}, the content gives {computed:08x}")]
    Checksum {
        /// What it says.
        stored: u32,
        /// What its content gives.
        computed: u32,
    },
    /// It can be read, but makes no sense.
    #[error("{0}")]
    Content(&'static str),
}

/// Reads from the front of what is left.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

macro_rules! numbers {
    ($($name:ident: $type:ty = $read:ident;)*) => {
        $(pub(crate) fn $name(&mut self) -> Result<$type, Damage> {
            self.rest.$read().map_err(|_| Damage::TooShort)
        })*
    };
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    numbers! {
        u8: u8 = try_get_u8;
        u16: u16 = try_get_u16;
        u32: u32 = try_get_u32;
        u64: u64 = try_get_u64;
        i64: i64 = try_get_i64;
        u128: u128 = try_get_u128;
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Damage> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damage::Content("a yes or no is neither")),
        }
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Damage>,
    ) -> Result<Option<T>, Damage> {
        if self.bool()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A count of entries that take at least `least` bytes each.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, Damage> {
        let count = usize::try_from(self.u32()?).map_err(|_| Damage::TooShort)?;
        if count.saturating_mul(least) > self.rest.len() {
            return Err(Damage::TooShort);
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        self.rest.split_off(..len).ok_or(Damage::TooShort)
    }

    /// A text with its length in 32 bits.
    pub(crate) fn text(&mut self) -> Result<&'a str, Damage> {
        let len = self.count(1)?;
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes).map_err(|_| Damage::Content("a text is not UTF-8"))
    }

    pub(crate) fn topic_id(&mut self) -> Result<TopicId, Damage> {
        Ok(TopicId::from_uuid(Uuid::from_u128(self.u128()?)))
    }

    pub(crate) fn topic_name(&mut self) -> Result<TopicName, Damage> {
        TopicName::new(self.text()?)
            .map_err(|_| Damage::Content("a topic has a name that no topic can have"))
    }

    pub(crate) fn replicas(&mut self) -> Result<ReplicaSet, Damage> {
        let bad = Damage::Content("a segment has replicas that no segment can have");
        let count = usize::from(self.u8()?);
        if count > MAX_REPLICAS {
            return Err(bad);
        }
        let mut brokers = Vec::with_capacity(count);
        for _ in 0..count {
            brokers.push(BrokerId(self.u32()?));
        }
        if !brokers.is_sorted() {
            return Err(bad);
        }
        ReplicaSet::new(brokers).map_err(|_| bad)
    }

    pub(crate) fn new_segment(&mut self) -> Result<NewSegment, Damage> {
        Ok(NewSegment {
            id: SegmentId(self.u64()?),
            replicas: self.replicas()?,
        })
    }

    /// Nothing is left.
    pub(crate) fn end(self) -> Result<(), Damage> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Damage::Content("bytes follow the last entry"))
        }
    }
}

pub(crate) fn put_bool(out: &mut BytesMut, value: bool) {
    out.put_u8(u8::from(value));
}

pub(crate) fn put_option<T>(
    out: &mut BytesMut,
    value: Option<T>,
    put: impl FnOnce(&mut BytesMut, T),
) {
    put_bool(out, value.is_some());
    if let Some(value) = value {
        put(out, value);
    }
}

pub(crate) fn put_count(out: &mut BytesMut, count: usize) {
    // What is counted lives in memory, and takes more than a byte each there.
    out.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    put_count(out, text.len());
    out.put_slice(text.as_bytes());
}

pub(crate) fn put_topic_id(out: &mut BytesMut, id: TopicId) {
    out.put_u128(id.uuid().as_u128());
}

pub(crate) fn put_replicas(out: &mut BytesMut, replicas: &ReplicaSet) {
    // At most `MAX_REPLICAS`.
    out.put_u8(u8::try_from(replicas.len()).unwrap_or(u8::MAX));
    for broker in replicas.iter() {
        out.put_u32(broker.0);
    }
}

pub(crate) fn put_new_segment(out: &mut BytesMut, segment: &NewSegment) {
    out.put_u64(segment.id.0);
    put_replicas(out, &segment.replicas);
}
