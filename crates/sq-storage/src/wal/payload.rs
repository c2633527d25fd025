//! What a frame carries, as it is handed out.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// The bytes that a frame carries: one buffer, or several that follow each other.
///
/// What was appended in parts stays in parts while it is in memory, so that it is handed out without a
/// copy; what was read from a file is one part. Two payloads are equal if their bytes are, however they
/// are parted. Cheap to clone.
#[derive(Clone)]
pub struct Payload(Parts);

#[derive(Clone)]
enum Parts {
    One(Bytes),
    /// At least two, none of them empty.
    Several(Arc<[Bytes]>),
}

impl Payload {
    /// The parts in order; a single empty one where there are no bytes, else none of them empty.
    pub fn parts(&self) -> &[Bytes] {
        match &self.0 {
            Parts::One(bytes) => std::slice::from_ref(bytes),
            Parts::Several(parts) => parts,
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.parts().iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes as one buffer. A copy only where there are several parts.
    pub fn to_bytes(&self) -> Bytes {
        self.head(usize::MAX)
    }

    /// The first `len` bytes, or all that there are. A copy only where they are in several parts.
    pub fn head(&self, len: usize) -> Bytes {
        if let [first, ..] = self.parts()
            && (first.len() >= len || self.parts().len() == 1)
        {
            return first.slice(..len.min(first.len()));
        }
        let mut head = BytesMut::with_capacity(len.min(self.len()));
        for part in self.parts() {
            let wanted = len.saturating_sub(head.len()).min(part.len());
            head.extend_from_slice(part.get(..wanted).unwrap_or_default());
        }
        head.freeze()
    }

    fn bytes(&self) -> impl Iterator<Item = &u8> {
        self.parts().iter().flatten()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self(Parts::One(bytes))
    }
}

impl From<&[Bytes]> for Payload {
    fn from(parts: &[Bytes]) -> Self {
        let filled = || parts.iter().filter(|part| !part.is_empty());
        match filled().count() {
            0 => Self(Parts::One(Bytes::new())),
            1 => Self(Parts::One(filled().next().cloned().unwrap_or_default())),
            _ => Self(Parts::Several(filled().cloned().collect())),
        }
    }
}

impl From<Payload> for Bytes {
    fn from(payload: Payload) -> Self {
        payload.to_bytes()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.bytes().eq(other.bytes())
    }
}

impl Eq for Payload {}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Payload {
    fn eq(&self, other: &T) -> bool {
        let other = other.as_ref();
        self.len() == other.len() && self.bytes().eq(other)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_bytes(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn however_it_is_parted_it_is_the_same(
            parts in vec(vec(any::<u8>(), 0..8).prop_map(Bytes::from), 0..5), len in 0..50usize,
        ) {
            let whole: Bytes = parts.concat().into();
            let payload = Payload::from(parts.as_slice());
            prop_assert_eq!(&payload, &whole);
            prop_assert_eq!(&payload, &Payload::from(whole.clone()));
            prop_assert_eq!(payload.len(), whole.len());
            prop_assert_eq!(payload.is_empty(), whole.is_empty());
            prop_assert_eq!(payload.to_bytes(), &whole);
            prop_assert_eq!(payload.head(len), whole.slice(..len.min(whole.len())));
            prop_assert!(payload.parts().len() == 1 || payload.parts().iter().all(|p| !p.is_empty()));
            let mut other = whole.to_vec();
            other.push(0);
            prop_assert!(payload != other);
        }
    }

    #[test]
    fn a_single_part_is_never_copied() {
        let bytes = Bytes::from_static(b"one buffer");
        let payload = Payload::from(&[Bytes::new(), bytes.clone()][..]);
        assert_eq!(payload.to_bytes().as_ptr(), bytes.as_ptr());
        assert_eq!(payload.head(3).as_ptr(), bytes.as_ptr());
    }
}
