//! Kafka's record batch, version 2: opaque but for its header.
//!
//! ```text
//!  0       8      12      16  17      21  23      27        35        43         51    53     57      61
//!  +-------+-------+-------+---+-------+---+-------+---------+---------+----------+-----+------+-------+----
//!  | base  | batch | leader| 2 | CRC-  |at-| last  | base    | max     | producer |prod.| base | re-   | re-
//!  | offset| length| epoch |   | 32C   |tr.| offset| time-   | time-   | id       |epoch| se-  | cord  | cords
//!  |       |       |       |   |       |   | delta | stamp   | stamp   |          |     | quen.| count | ...
//!  +-------+-------+-------+---+-------+---+-------+---------+---------+----------+-----+------+-------+----
//!                                      '-------------- what the checksum covers ------------------------
//! ```
//!
//! All integers are big-endian; the batch length counts what follows it. The broker writes two of
//! the fields, base offset and leader epoch, and the checksum covers neither: that is what lets a
//! batch be stored, replicated and served byte for byte.
//!
//! No work is done per record: what a batch's records hold, how many there are and whether their
//! own offsets and timestamps agree with the header is not checked. Only a lookup by timestamp
//! decodes records, those of the one batch that holds its answer.

mod codec;
mod header;
mod lookup;
mod validate;

pub use codec::Compression;
pub(crate) use header::checksum;
pub use header::{Attributes, BatchHeader, HEADER_LEN, assign};
pub use lookup::{LookupError, lookup_timestamp};
pub use validate::{BatchError, validate_produced};
