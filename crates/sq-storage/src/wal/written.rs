//! The frames of one write, kept as they were written.

use std::ops::Range;

use bytes::Bytes;

use super::payload::Payload;
use super::reader::StoredFrame;
use crate::frame::{FRAME_HEADER_LEN, FrameHeader};

/// The frames of one write, in the buffers that were written. What a reader gets is a slice of them.
#[derive(Debug)]
pub(super) struct Written {
    buffers: Vec<Bytes>,
    /// Each frame's place in the buffers, and its header. Without a gap in the offsets.
    frames: Vec<(usize, FrameHeader)>,
    /// Where the last frame ends.
    end: usize,
    /// What it counts for, until all of it is let go of.
    cost: usize,
}

impl Written {
    /// Frames with their positions in the file, one right behind the other, and the buffers of `bytes`
    /// bytes that hold them.
    pub(super) fn new(buffers: Vec<Bytes>, frames: Vec<(u64, FrameHeader)>, bytes: u64) -> Self {
        let first = frames.first().map_or(0, |(position, _)| *position);
        let place = |position: u64| usize::try_from(position - first).unwrap_or(usize::MAX);
        let frames = frames.into_iter().map(|(at, header)| (place(at), header));
        let mut written = Self {
            buffers,
            frames: frames.collect(),
            end: usize::try_from(bytes).unwrap_or(usize::MAX),
            cost: 0,
        };
        written.cost = written.cost_from(0);
        written
    }

    /// What it counts for: its bytes, and what it takes to keep track of them.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// What the frames from the `first` on would count for by themselves.
    fn cost_from(&self, first: usize) -> usize {
        let Some((place, _)) = self.frames.get(first) else {
            return 0;
        };
        let frames = (self.frames.len() - first) * size_of::<(usize, FrameHeader)>();
        let buffers = self.buffers.len() * size_of::<Bytes>();
        size_of::<Self>() + frames + buffers + self.end - place
    }

    /// The first offset; `None` if no frame is left.
    pub(super) fn start_offset(&self) -> Option<u64> {
        self.frames.first().map(|(_, header)| header.base_offset)
    }

    pub(super) fn end_offset(&self) -> Option<u64> {
        self.frames.last().map(|(_, header)| header.end_offset())
    }

    /// Lets go of frames, the oldest first, until it counts for no more than `most`. What is left of a
    /// buffer is copied: a slice would keep all of it.
    pub(super) fn shrink_to(&mut self, most: usize) {
        if self.cost <= most {
            return;
        }
        let mut first = 0;
        while self.cost_from(first) > most {
            first += 1;
        }
        let start = self.frames.get(first).map_or(self.end, |(place, _)| *place);
        self.frames.drain(..first);
        self.frames.shrink_to_fit();
        for (place, _) in &mut self.frames {
            *place -= start;
        }
        let mut skip = start;
        self.buffers.retain_mut(|buffer| {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            if skipped > 0 {
                *buffer = Bytes::copy_from_slice(buffer.get(skipped..).unwrap_or_default());
            }
            !buffer.is_empty()
        });
        self.end -= start;
        self.cost = self.cost_from(0);
    }

    /// Forgets the frames that reach behind `offset`.
    pub(super) fn forget_from(&mut self, offset: u64) {
        let kept = self.frames_below(offset);
        if let Some((place, _)) = self.frames.get(kept) {
            self.end = *place;
        }
        self.frames.truncate(kept);
    }

    /// Forgets the frames that end at or before `offset`.
    pub(super) fn forget_before(&mut self, offset: u64) {
        let forgotten = self.frames_below(offset);
        self.frames.drain(..forgotten);
    }

    /// How many frames end at or before `offset`.
    fn frames_below(&self, offset: u64) -> usize {
        self.frames
            .partition_point(|(_, header)| header.end_offset() <= offset)
    }

    /// The frames from the one that holds `offset` on, or from the first if they begin behind it.
    pub(super) fn frames_from(&self, offset: u64) -> impl Iterator<Item = StoredFrame> {
        let first = self.frames_below(offset);
        let frames = self.frames.get(first..).unwrap_or_default();
        let ends = frames.iter().skip(1).map(|(place, _)| *place);
        let mut buffers = Reading {
            rest: &self.buffers,
            place: 0,
        };
        let ends = ends.chain(std::iter::once(self.end));
        frames.iter().zip(ends).map(move |((place, header), end)| {
            let body = buffers.payload(place + FRAME_HEADER_LEN..end);
            StoredFrame::new(header, body)
        })
    }
}

/// Buffers that are gone through from front to back.
struct Reading<'a> {
    rest: &'a [Bytes],
    /// Where the first of the rest begins.
    place: usize,
}

impl Reading<'_> {
    /// What stands at these places.
    fn payload(&mut self, mut range: Range<usize>) -> Payload {
        let mut parts = Vec::new();
        while let Some((first, behind)) = self.rest.split_first() {
            let end = self.place + first.len();
            if range.start < end {
                let here = range.start - self.place..range.end.min(end) - self.place;
                let part = first.slice(here);
                if range.end <= end && parts.is_empty() {
                    return part.into();
                }
                parts.push(part);
                range.start = range.end.min(end);
            }
            if range.start >= range.end {
                break;
            }
            (self.rest, self.place) = (behind, end);
        }
        parts.as_slice().into()
    }
}

/// The header of a batch of two records.
#[cfg(test)]
pub(super) fn header_at(base_offset: u64) -> FrameHeader {
    FrameHeader {
        segment_id: 7,
        base_offset,
        committed_before: 0,
        max_timestamp_ms: 0,
        append_time_ms: 0,
        record_count: 2,
        leader_epoch: 0,
        ordinal: 0,
        kind: crate::frame::FrameKind::Batch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Frames of bodies of these lengths at the offsets from 10 on, two each, as they would be written
    /// from position 500 on, and what is expected of each: its base offset and its body.
    fn written(lens: &[usize], cuts: &[usize]) -> (Written, Vec<(u64, Vec<u8>)>) {
        let mut all = BytesMut::new();
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for (len, n) in lens.iter().zip(0_u8..) {
            let header = header_at(10 + 2 * u64::from(n));
            frames.push((500 + all.len() as u64, header));
            let body = vec![n; *len];
            header
                .encode_whole(&[body.clone().into()], &mut all)
                .unwrap();
            expected.push((header.base_offset, body));
        }
        let bytes = all.len() as u64;
        let mut buffers = Vec::new();
        for cut in cuts {
            let at = cut % (all.len() + 1);
            buffers.push(all.split_to(at).freeze());
        }
        buffers.push(all.freeze());
        buffers.retain(|buffer| !buffer.is_empty());
        (Written::new(buffers, frames, bytes), expected)
    }

    fn given(written: &Written, offset: u64) -> Vec<(u64, Vec<u8>)> {
        let frames = written.frames_from(offset);
        let given = |f: StoredFrame| (f.base_offset, f.payload.to_bytes().to_vec());
        frames.map(given).collect()
    }

    proptest! {
        #[test]
        fn however_the_buffers_are_parted_each_frame_is_found(
            lens in vec(0..300_usize, 0..8), cuts in vec(any::<usize>(), 0..4), offset in 5..30_u64,
        ) {
            let (written, mut expected) = written(&lens, &cuts);
            prop_assert_eq!(given(&written, 0), expected.clone());
            expected.retain(|(base, _)| base + 2 > offset);
            prop_assert_eq!(given(&written, offset), expected);
        }

        #[test]
        fn what_is_let_go_of_leaves_the_rest_as_it_was(
            lens in vec(0..300_usize, 0..8), cuts in vec(any::<usize>(), 0..4),
            before in 5..30_u64, from in 5..30_u64, most in 0..2_000_usize,
        ) {
            let (mut written, mut expected) = written(&lens, &cuts);
            written.shrink_to(most);
            prop_assert!(written.cost() <= most);
            let left = given(&written, 0);
            prop_assert!(expected.ends_with(&left));
            expected = left;
            written.forget_before(before);
            written.forget_from(from);
            expected.retain(|(base, _)| base + 2 > before && base + 2 <= from);
            prop_assert_eq!(written.start_offset(), expected.first().map(|(base, _)| *base));
            prop_assert_eq!(written.end_offset(), expected.last().map(|(base, _)| base + 2));
            prop_assert_eq!(given(&written, 0), expected);
        }
    }

    #[test]
    fn what_is_left_of_a_buffer_does_not_keep_all_of_it() {
        let (mut written, _) = written(&[1000, 1000, 1000], &[]);
        let before = written.buffers[0].as_ptr_range();
        written.shrink_to(1500);
        assert_eq!(written.frames.len(), 1);
        assert!(!before.contains(&written.buffers[0].as_ptr()));
    }
}
