//! A response as a list of buffers, so that what it carries need not be copied into it.

use bytes::{Bytes, BytesMut};

/// A buffer under construction: bytes of its own, and others' buffers in between.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    own: BytesMut,
    /// Buffers, each list with the position in `own` that it follows.
    foreign: Vec<(usize, Vec<Bytes>)>,
}

impl Chunks {
    /// Starts with `head`, whose capacity should do for all but the foreign buffers.
    pub(super) fn new(head: BytesMut) -> Self {
        Self {
            own: head,
            foreign: Vec::new(),
        }
    }

    /// Where this chunk list's own bytes go next.
    pub(super) fn own(&mut self) -> &mut BytesMut {
        &mut self.own
    }

    /// Bytes in all.
    pub(super) fn len(&self) -> usize {
        let foreign = self
            .foreign
            .iter()
            .flat_map(|(_, list)| list)
            .map(Bytes::len);
        self.own.len() + foreign.sum::<usize>()
    }

    /// Puts others' buffers here, as they are.
    pub(super) fn put(&mut self, list: Vec<Bytes>) {
        if !list.is_empty() {
            self.foreign.push((self.own.len(), list));
        }
    }

    /// The buffers in order, none empty.
    pub(super) fn finish(self) -> Vec<Bytes> {
        let own = self.own.freeze();
        let mut all = Vec::with_capacity(2 * self.foreign.len() + 1);
        let mut from = 0;
        for (at, list) in self.foreign {
            all.push(own.slice(from..at));
            all.extend(list);
            from = at;
        }
        all.push(own.slice(from..));
        all.retain(|chunk| !chunk.is_empty());
        all
    }
}
