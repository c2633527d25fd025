//! A check of a request's every length and count, before a decoder believes them.
//!
//! `kafka-protocol` reserves room for as many elements as an array announces: a frame of five bytes
//! can ask it for 150 GB. So a request is walked first, along a table of its fields, and refused
//! unless every string, array and tagged field fits the bytes that are left and the last byte of
//! the frame is the last one of the body. The walk allocates nothing, recurses as deep as the table
//! is nested, and takes time in the bytes it is given, whatever they announce.

use super::Api;
use super::schemas;

/// Array elements and tagged fields that one request may hold, all told.
///
/// A decoder turns an element of three bytes into a structure of a hundred. This bounds what a
/// frame can grow into at a few tens of megabytes, and is far above what clients send, where it is
/// the partitions of a produce request or the topics of a metadata request.
pub const MAX_ITEMS: usize = 250_000;

/// Why a request is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {at}: {problem}")]
pub struct SchemaError {
    /// The field, as the protocol names it in snake case.
    pub field: &'static str,
    /// Position in the frame, in bytes, behind its length.
    pub at: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// More is announced than there is.
    #[error("{needed} bytes are needed, {left} are left")]
    Short {
        /// Bytes it takes at least.
        needed: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// A length below −1.
    #[error("negative length {length}")]
    Negative {
        /// What was announced.
        length: i32,
    },
    /// Null where a value has to be.
    #[error("null is not allowed here")]
    Null,
    /// A varint of more than 32 bits.
    #[error("a varint of more than 32 bits")]
    Varint,
    /// Tags not in ascending order, or one twice.
    #[error("tag {tag} does not come in order")]
    TagOrder {
        /// The tag out of order.
        tag: u32,
    },
    /// A tagged field whose content is not as long as it says.
    #[error("a tagged field of {announced} bytes holds {held}")]
    TagLength {
        /// What was announced.
        announced: usize,
        /// What it takes.
        held: usize,
    },
    /// More than [`MAX_ITEMS`].
    #[error("more than {MAX_ITEMS} elements in one request")]
    TooMany,
    /// Bytes behind the last field.
    #[error("{left} bytes are left over")]
    Trailing {
        /// How many.
        left: usize,
    },
}

/// A range of versions, both ends in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Versions(i16, i16);

impl Versions {
    const ALL: Self = Self(0, i16::MAX);
    const NONE: Self = Self(1, 0);

    const fn has(self, version: i16) -> bool {
        self.0 <= version && version <= self.1
    }
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// So many bytes: an integer, a boolean, a UUID.
    Fixed(usize),
    /// A string. Its length is an `i16`, or a varint.
    Text,
    /// Bytes. Their length is an `i32`, or a varint.
    Blob,
    /// An array of what one such field holds.
    List(&'static Kind),
    /// A structure.
    Nested(&'static Struct),
}

/// A field, and the versions that have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    name: &'static str,
    kind: Kind,
    versions: Versions,
    null: Versions,
}

impl Field {
    pub(super) const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            versions: Versions::ALL,
            null: Versions::NONE,
        }
    }

    /// From this version on.
    pub(super) const fn since(self, version: i16) -> Self {
        Self {
            versions: Versions(version, self.versions.1),
            ..self
        }
    }

    /// Up to and with this version.
    pub(super) const fn until(self, version: i16) -> Self {
        Self {
            versions: Versions(self.versions.0, version),
            ..self
        }
    }

    /// Null is allowed from this version on.
    pub(super) const fn null_since(self, version: i16) -> Self {
        Self {
            null: Versions(version, i16::MAX),
            ..self
        }
    }
}

/// A structure: its fields in order, and the tagged fields it knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Struct {
    pub(super) fields: &'static [Field],
    pub(super) tagged: &'static [(u32, Field)],
}

/// Checks a whole request frame, header and body, against its API's table.
///
/// `frame` is what comes behind the length. The version must be one that the table has: the served
/// ones, and Produce 0 to 2.
///
/// # Errors
/// [`SchemaError`]: the first thing that does not fit.
pub fn check_request(frame: &[u8], api: Api, version: i16) -> Result<(), SchemaError> {
    let mut walk = Walk {
        bytes: frame,
        at: 0,
        version,
        flexible: false,
        items: 0,
    };
    // The client id never became compact: a broker must be able to read it before it knows more.
    for field in schemas::REQUEST_HEADER.fields {
        walk.field(field)?;
    }
    walk.flexible = api.flexible_request_header(version);
    walk.tagged_fields(&schemas::REQUEST_HEADER)?;
    walk.structure(schemas::request(api))?;
    match walk.left() {
        0 => Ok(()),
        left => Err(walk.error("end of the request", Problem::Trailing { left })),
    }
}

/// The walk's place in the bytes.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    version: i16,
    flexible: bool,
    items: usize,
}

impl Walk<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn error(&self, field: &'static str, problem: Problem) -> SchemaError {
        SchemaError {
            field,
            at: self.at,
            problem,
        }
    }

    fn structure(&mut self, what: &Struct) -> Result<(), SchemaError> {
        for field in what.fields {
            if field.versions.has(self.version) {
                self.field(field)?;
            }
        }
        self.tagged_fields(what)
    }

    fn field(&mut self, field: &Field) -> Result<(), SchemaError> {
        self.value(field.name, field.kind, field.null.has(self.version))
    }

    fn value(&mut self, name: &'static str, kind: Kind, null: bool) -> Result<(), SchemaError> {
        match kind {
            Kind::Fixed(length) => self.skip(name, length),
            Kind::Text | Kind::Blob => match self.length(name, kind, null)? {
                Some(length) => self.skip(name, length),
                None => Ok(()),
            },
            Kind::List(element) => self.list(name, element, null),
            Kind::Nested(what) => self.structure(what),
        }
    }

    /// An array: all of its elements must fit, at their smallest, before the first is looked at.
    fn list(
        &mut self,
        name: &'static str,
        element: &'static Kind,
        null: bool,
    ) -> Result<(), SchemaError> {
        let Some(count) = self.length(name, Kind::List(element), null)? else {
            return Ok(());
        };
        let least = self.least_size(element) as u64;
        let needed = least.saturating_mul(count as u64);
        if needed > self.left() as u64 {
            return Err(self.error(
                name,
                Problem::Short {
                    needed,
                    left: self.left(),
                },
            ));
        }
        self.count_items(name, count)?;
        match element {
            Kind::Fixed(length) => self.skip(name, length * count),
            other => (0..count).try_for_each(|_| self.value(name, *other, false)),
        }
    }

    fn tagged_fields(&mut self, what: &Struct) -> Result<(), SchemaError> {
        const NAME: &str = "tagged fields";
        if !self.flexible {
            return Ok(());
        }
        let count = self.varint(NAME)?;
        let needed = 2 * u64::from(count);
        if needed > self.left() as u64 {
            return Err(self.error(
                NAME,
                Problem::Short {
                    needed,
                    left: self.left(),
                },
            ));
        }
        self.count_items(NAME, count as usize)?;
        let mut least_tag = 0;
        for _ in 0..count {
            let tag = self.varint(NAME)?;
            if u64::from(tag) < least_tag {
                return Err(self.error(NAME, Problem::TagOrder { tag }));
            }
            least_tag = u64::from(tag) + 1;
            let length = self.varint(NAME)? as usize;
            match what.tagged.iter().find(|(known, _)| *known == tag) {
                Some((_, field)) if field.versions.has(self.version) => {
                    self.tagged(field, length)?;
                }
                _ => self.skip(NAME, length)?,
            }
        }
        Ok(())
    }

    /// A tagged field that the decoder knows: it believes the content and not the length.
    fn tagged(&mut self, field: &Field, announced: usize) -> Result<(), SchemaError> {
        let start = self.at;
        self.field(field)?;
        match self.at - start {
            held if held == announced => Ok(()),
            held => Err(self.error(field.name, Problem::TagLength { announced, held })),
        }
    }

    /// The length or count before a string, bytes or an array; `None` for an allowed null.
    fn length(
        &mut self,
        name: &'static str,
        kind: Kind,
        null: bool,
    ) -> Result<Option<usize>, SchemaError> {
        let length = match kind {
            _ if self.flexible => i64::from(self.varint(name)?) - 1,
            Kind::Text => i64::from(i16::from_be_bytes(self.take(name)?)),
            _ => i64::from(i32::from_be_bytes(self.take(name)?)),
        };
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 && null => Ok(None),
            Err(_) if length == -1 => Err(self.error(name, Problem::Null)),
            Err(_) => {
                let length = i32::try_from(length).unwrap_or(i32::MIN);
                Err(self.error(name, Problem::Negative { length }))
            }
        }
    }

    fn varint(&mut self, name: &'static str) -> Result<u32, SchemaError> {
        let mut value = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.take(name)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).map_err(|_| self.error(name, Problem::Varint));
            }
        }
        Err(self.error(name, Problem::Varint))
    }

    fn take<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], SchemaError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = rest.first_chunk::<N>() else {
            return Err(self.error(
                name,
                Problem::Short {
                    needed: N as u64,
                    left: rest.len(),
                },
            ));
        };
        self.at += N;
        Ok(*bytes)
    }

    fn skip(&mut self, name: &'static str, length: usize) -> Result<(), SchemaError> {
        let left = self.left();
        if length > left {
            return Err(self.error(
                name,
                Problem::Short {
                    needed: length as u64,
                    left,
                },
            ));
        }
        self.at += length;
        Ok(())
    }

    fn count_items(&mut self, name: &'static str, count: usize) -> Result<(), SchemaError> {
        self.items = self.items.saturating_add(count);
        if self.items > MAX_ITEMS {
            return Err(self.error(name, Problem::TooMany));
        }
        Ok(())
    }

    /// The fewest bytes a value takes in this version.
    fn least_size(&self, kind: &Kind) -> usize {
        match kind {
            Kind::Fixed(length) => *length,
            Kind::Text | Kind::Blob | Kind::List(_) if self.flexible => 1,
            Kind::Text => 2,
            Kind::Blob | Kind::List(_) => 4,
            Kind::Nested(what) => {
                let fields = what
                    .fields
                    .iter()
                    .filter(|field| field.versions.has(self.version));
                fields
                    .map(|field| self.least_size(&field.kind))
                    .sum::<usize>()
                    + usize::from(self.flexible)
            }
        }
    }
}
