//! Where a read begins: a segment's open file, and the place in it.

use std::io;
use std::sync::Arc;

use sq_sim::FileSystem;

use super::super::cache::{OpenFile, SealedIndex};
use super::super::companion::{Companion, dir};
use super::super::index::{Index, checksum};
use super::super::manifest::SegmentTimes;
use super::super::scan::{self, Scope, Seen, Walk, Window, walk_runs};
use super::super::segment::SEGMENT_HEADER_LEN;
use super::super::state::Segment;
use super::{LogReader, read_error};
use crate::error::{Error, ReadError};

/// A frame's offset and position.
type Place = (u64, u64);

impl<F: FileSystem> LogReader<F> {
    /// A segment's file, opened if it is not open.
    pub(super) async fn open(&self, segment: &Segment) -> Result<Arc<OpenFile>, ReadError> {
        let cache = self.state.segment_cache();
        if let Some(file) = cache.file(&segment.slot) {
            return Ok(file);
        }
        match segment.open_read_only(&*self.fs).await {
            Ok(file) => Ok(cache.keep_file(&segment.slot, file.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(ReadError::Damaged(Error::MissingSegment {
                    path: segment.path.clone(),
                    base_offset: segment.name.base_offset,
                }))
            }
            Err(e) => Err(read_error(segment)(e)),
        }
    }

    /// A walk from the nearest place known at or before `offset`, which reads so many bytes at once.
    pub(super) async fn walk_to<'f>(
        &self,
        segment: &Segment,
        opened: &'f OpenFile,
        offset: u64,
        piece_len: usize,
    ) -> Result<Walk<'f>, ReadError> {
        let (first, position) = match opened.place(offset) {
            Some(position) => (offset, position),
            None => self
                .place(segment, opened, |index| index.before_offset(offset))
                .await?
                // Without a place that is known, damage at the very start is found by walking into it.
                .unwrap_or((segment.name.base_offset, SEGMENT_HEADER_LEN as u64)),
        };
        let window = Window::new(&*opened.file, segment.extent().bytes).with_piece_len(piece_len);
        Ok(Walk::from(window, position, Some(segment.id), first))
    }

    /// What a segment's index says. Where the index could be wrong, and no frame stands where it says, it is
    /// made anew first.
    pub(super) async fn place(
        &self,
        segment: &Segment,
        opened: &OpenFile,
        look: impl Fn(&Index) -> Option<Place> + Send,
    ) -> Result<Option<Place>, ReadError> {
        let told_below = segment.points.told_below();
        let live = match segment.in_live_index(&look) {
            Some(Some(place))
                if place.1 < told_below && !stands_at(segment, opened, place).await? =>
            {
                mend_index(segment, opened, told_below).await?;
                segment.in_live_index(&look)
            }
            live => live,
        };
        if let Some(found) = live {
            return Ok(found);
        }
        let sealed = self.sealed_index(segment, opened).await?;
        let found = look(&sealed.index);
        if let Some(place) = found
            && !sealed.is_certain
            && !stands_at(segment, opened, place).await?
        {
            let sealed = self.make_index_anew(segment, opened).await?;
            return Ok(look(&sealed.index));
        }
        Ok(found)
    }

    /// The greatest timestamp of a segment: as its index says, whatever its seal does. `None` for one
    /// without records, and for one that is missing.
    pub(super) async fn max_timestamp(&self, segment: &Segment) -> Result<Option<i64>, ReadError> {
        let greatest = |index: &Index| index.times().map(|times| times.max_timestamp_ms);
        if let Some(found) = segment.in_live_index(greatest) {
            return Ok(found);
        }
        let opened = match self.open(segment).await {
            // What is missing hides nothing else.
            Err(ReadError::Damaged(_)) => return Ok(None),
            opened => opened?,
        };
        let sealed = self.sealed_index(segment, &opened).await?;
        Ok(greatest(&sealed.index))
    }

    /// When a segment's records are from, by its index; `None` where its file does not tell.
    pub(in super::super) async fn times_of(&self, segment: &Segment) -> Option<SegmentTimes> {
        if let Some(times) = segment.in_live_index(Index::times) {
            return times;
        }
        let opened = self.open(segment).await.ok()?;
        self.sealed_index(segment, &opened)
            .await
            .ok()?
            .index
            .times()
    }

    /// The index of a segment that takes no more records: from memory, from its file, or made anew.
    async fn sealed_index(
        &self,
        segment: &Segment,
        opened: &OpenFile,
    ) -> Result<Arc<SealedIndex>, ReadError> {
        let cache = self.state.segment_cache();
        let cell = cache.index(&segment.slot);
        let mut is_new = false;
        let found = cell
            .get_or_try_init(|| async {
                is_new = true;
                match self.load_index(segment).await {
                    Some(index) => Ok(Arc::new(index)),
                    None => self.build_index(segment, opened).await.map(Arc::new),
                }
            })
            .await;
        match found {
            Ok(index) => {
                if is_new {
                    cache.keep_index(&segment.slot, Arc::clone(index));
                }
                Ok(Arc::clone(index))
            }
            Err(e) => {
                cache.forget_index(&segment.slot);
                Err(e)
            }
        }
    }

    /// Reads a segment's index file. `None` if it is missing, can't be read or is wrong: nothing that is
    /// in it is lost with it.
    async fn load_index(&self, segment: &Segment) -> Option<SealedIndex> {
        let file = Companion::Index.read(&*self.fs, dir(segment), &segment.name);
        let file = file.await?;
        let index = Index::decode(&file, &segment.subject())?;
        let (found, listed) = (checksum(&file), segment.index_checksum());
        let is_certain = found == listed;
        // The manifest says nothing of it where it was lost with its index, or is older.
        (is_certain || listed == 0).then_some(SealedIndex { index, is_certain })
    }

    async fn make_index_anew(
        &self,
        segment: &Segment,
        opened: &OpenFile,
    ) -> Result<Arc<SealedIndex>, ReadError> {
        tracing::warn!(segment = %segment.path.display(), "a segment's index was wrong and is made anew");
        let built = Arc::new(self.build_index(segment, opened).await?);
        let cache = self.state.segment_cache();
        cache.keep_index(&segment.slot, Arc::clone(&built));
        Ok(built)
    }

    /// Makes the index of a segment by reading all of it, and its file.
    async fn build_index(
        &self,
        segment: &Segment,
        opened: &OpenFile,
    ) -> Result<SealedIndex, ReadError> {
        let subject = segment.subject();
        let limit = subject.extent.bytes;
        let index = read_index(segment, opened, limit).await?;
        // One that was removed meanwhile leaves nothing behind.
        if self.state.holds(segment.id) {
            let file = index.encode(&subject);
            // Of a segment that is damaged it is not the one that the manifest has the checksum of.
            segment.set_index_checksum(checksum(&file));
            let written = Companion::Index.write(&*self.fs, dir(segment), &segment.name, file);
            if let Err(error) = written.await {
                tracing::debug!(segment = %segment.path.display(), %error, "index not written");
            }
        }
        Ok(SealedIndex {
            index,
            is_certain: true,
        })
    }
}

/// Makes anew the index of a segment that takes records, as far as a recovery point told it.
async fn mend_index(
    segment: &Segment,
    opened: &OpenFile,
    told_below: u64,
) -> Result<(), ReadError> {
    tracing::warn!(segment = %segment.path.display(),
        "no frame stands where a recovery point said, and all in front of it is read");
    let front = read_index(segment, opened, told_below).await?;
    segment.mend_index(told_below, front);
    Ok(())
}

/// The index of what a segment holds in front of a position.
async fn read_index(segment: &Segment, opened: &OpenFile, limit: u64) -> Result<Index, ReadError> {
    let scope = Scope {
        file: &*opened.file,
        limit,
        id: Some(segment.id),
        base_offset: segment.name.base_offset,
        from: None,
        max_zeros: limit,
        // Behind its end it is not looked.
        is_recycled: false,
    };
    let end = segment.extent().end_offset;
    let mut index = Index::default();
    let visit = |seen: Seen<'_>| {
        if seen.header.base_offset < end {
            index.note(seen.position, seen.header, seen.begins);
        }
    };
    walk_runs(scope, visit).await.map_err(read_error(segment))?;
    Ok(index)
}

/// Whether the frame of the segment that begins with this offset stands there.
async fn stands_at(segment: &Segment, opened: &OpenFile, place: Place) -> Result<bool, ReadError> {
    let limit = segment.extent().bytes;
    let found = scan::stands_at(&*opened.file, limit, segment.id, place).await;
    found.map_err(read_error(segment))
}
