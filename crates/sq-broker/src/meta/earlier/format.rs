//! The bytes of the metadata file, version 1. Integers are big-endian.
//!
//! ```text
//!   0  magic "SQMT"          4
//!   4  version = 1           2
//!   6  zero                  2
//!   8  length of the body    8
//!  16  body:
//!        revision            8
//!        next producer id    8
//!        topics              4   then for each, sorted by name:
//!          id               16
//!          name              2 + n
//!          partitions        4
//!          settings          4   then for each, sorted by key: key 2 + n, value 4 + n
//!        being deleted       4   then for each: id 16, name 2 + n
//!   …  CRC-32 of all before  4   and nothing behind it
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Buf;
#[cfg(test)]
use bytes::{BufMut, Bytes, BytesMut};
use sq_meta::codec::Damage;
use sq_storage::TopicName;

use super::super::{TopicId, TopicRecord};
use super::MetaImage;

const MAGIC: &[u8; 4] = b"SQMT";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
const CRC_LEN: usize = 4;

/// The file for an image.
#[cfg(test)]
pub(super) fn encode(image: &MetaImage) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u64(image.revision);
    body.put_i64(image.next_producer_id);
    put_count(&mut body, image.topics.len());
    for topic in image.topics.values() {
        body.put_u128(topic.id.uuid().as_u128());
        put_short(&mut body, topic.name.as_str());
        body.put_u32(topic.partitions);
        put_count(&mut body, topic.configs.len());
        for (key, value) in &topic.configs {
            put_short(&mut body, key);
            put_count(&mut body, value.len());
            body.put_slice(value.as_bytes());
        }
    }
    put_count(&mut body, image.deleting.len());
    for (id, name) in &image.deleting {
        body.put_u128(id.uuid().as_u128());
        put_short(&mut body, name.as_str());
    }

    let mut file = BytesMut::with_capacity(HEADER_LEN + body.len() + CRC_LEN);
    file.put_slice(MAGIC);
    file.put_u16(VERSION);
    file.put_u16(0);
    file.put_u64(body.len() as u64);
    file.put_slice(&body);
    let crc = crc32fast::hash(&file);
    file.put_u32(crc);
    file.freeze()
}

/// The image in a file.
pub(super) fn decode(file: &[u8]) -> Result<MetaImage, Damage> {
    let (content, crc) = file
        .split_last_chunk::<CRC_LEN>()
        .filter(|(content, _)| content.len() >= HEADER_LEN)
        .ok_or(Damage::TooShort)?;
    let mut rest = content;
    let mut magic = [0; 4];
    rest.copy_to_slice(&mut magic);
    if &magic != MAGIC {
        return Err(Damage::Magic);
    }
    let version = rest.get_u16();
    let _zero = rest.get_u16();
    let stated = rest.get_u64();
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    // Of two explanations of a bad checksum the length is the more telling one.
    if stated != rest.len() as u64 {
        return Err(Damage::Content(
            "it has not the length that its header says",
        ));
    }
    let (stored, computed) = (u32::from_be_bytes(*crc), crc32fast::hash(content));
    if stored != computed {
        return Err(Damage::Checksum { stored, computed });
    }
    decode_body(rest)
}

fn decode_body(mut body: &[u8]) -> Result<MetaImage, Damage> {
    let body = &mut body;
    let mut image = MetaImage {
        revision: get(body, Buf::try_get_u64)?,
        next_producer_id: get(body, Buf::try_get_i64)?,
        ..MetaImage::default()
    };
    for _ in 0..get(body, Buf::try_get_u32)? {
        let topic = decode_topic(body)?;
        if image
            .topics
            .insert(topic.name.clone(), Arc::new(topic))
            .is_some()
        {
            return Err(Damage::Content("a topic's name occurs twice"));
        }
    }
    for _ in 0..get(body, Buf::try_get_u32)? {
        let id = get_id(body)?;
        image.deleting.insert(id, get_name(body)?);
    }
    if body.is_empty() {
        Ok(image)
    } else {
        Err(Damage::Content("bytes follow the last entry"))
    }
}

fn decode_topic(body: &mut &[u8]) -> Result<TopicRecord, Damage> {
    let id = get_id(body)?;
    let name = get_name(body)?;
    let partitions = get(body, Buf::try_get_u32)?;
    let mut configs = BTreeMap::new();
    for _ in 0..get(body, Buf::try_get_u32)? {
        let key_len = get(body, Buf::try_get_u16)?;
        let key = get_str(body, usize::from(key_len))?;
        let value_len = get(body, Buf::try_get_u32)?;
        let value = get_str(body, value_len as usize)?;
        configs.insert(key.to_owned(), value.to_owned());
    }
    Ok(TopicRecord {
        name,
        id,
        partitions,
        configs,
    })
}

fn get<'a, T>(
    body: &mut &'a [u8],
    read: impl FnOnce(&mut &'a [u8]) -> Result<T, bytes::TryGetError>,
) -> Result<T, Damage> {
    read(body).map_err(|_| Damage::TooShort)
}

fn get_id(body: &mut &[u8]) -> Result<TopicId, Damage> {
    get(body, Buf::try_get_u128).map(|bits| TopicId::from_uuid(uuid::Uuid::from_u128(bits)))
}

fn get_name(body: &mut &[u8]) -> Result<TopicName, Damage> {
    let len = get(body, Buf::try_get_u16)?;
    TopicName::new(get_str(body, usize::from(len))?)
        .map_err(|_| Damage::Content("a topic has a name that no topic can have"))
}

fn get_str<'a>(body: &mut &'a [u8], len: usize) -> Result<&'a str, Damage> {
    let bytes = body.split_off(..len).ok_or(Damage::TooShort)?;
    std::str::from_utf8(bytes).map_err(|_| Damage::Content("a text is not UTF-8"))
}

#[cfg(test)]
fn put_count(body: &mut BytesMut, count: usize) {
    // The image lives in memory and every entry takes more than a byte there.
    body.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
}

#[cfg(test)]
fn put_short(body: &mut BytesMut, text: &str) {
    // Names and keys are checked on the way in and are at most 249 bytes.
    body.put_u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
    body.put_slice(text.as_bytes());
}
