//! Walking the frames of a segment file, and searching what lies behind the last good one.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use sq_sim::{FileHandle, ReadAhead};

use super::config::MAX_UNSYNCED_BYTES;
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderError};
use super::spare::end_of_zeros;
use crate::error::DamageReason;
use crate::frame::{
    FRAME_HEADER_LEN, Frame, FrameError, FrameHeader, SEGMENT_ID_POSITION, length_and_id,
};

/// How much is read at a time, in bytes; a larger frame is read in one piece of its own size.
const WINDOW_LEN: usize = 1 << 20;

/// The most that is read at a time where just so much is wanted, in bytes: a read of [`WINDOW_LEN`] of
/// payload with its frames' headers.
const MAX_PIECE_LEN: usize = WINDOW_LEN + WINDOW_LEN / 8;

/// How much is read at a time, in bytes, while what was read before is looked at: little enough to still
/// be in a processor's cache then.
const AHEAD_LEN: usize = 256 << 10;

/// How much is read for a frame that lies across two such pieces, in bytes; a larger one is read alone.
const STRADDLE_LEN: usize = 4096;

const HEADER_LEN: u64 = FRAME_HEADER_LEN as u64;

/// A file read forwards in large pieces, of which frames are slices.
pub(super) struct Window<'a> {
    file: &'a dyn FileHandle,
    /// Nothing at or behind this position is looked at.
    limit: u64,
    piece: Bytes,
    piece_position: u64,
    piece_len: usize,
    ahead: Option<Ahead>,
}

/// Pieces that are read while the one before them is looked at.
struct Ahead {
    source: Box<dyn ReadAhead>,
    /// Where the next one begins.
    position: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a dyn FileHandle, limit: u64) -> Self {
        Self {
            file,
            limit,
            piece: Bytes::new(),
            piece_position: 0,
            piece_len: WINDOW_LEN,
            ahead: None,
        }
    }

    /// Reads `len` bytes at a time, where it is known how much will be looked at.
    pub(super) fn with_piece_len(mut self, len: usize) -> Self {
        self.set_piece_len(len);
        self
    }

    fn set_piece_len(&mut self, len: usize) {
        self.piece_len = len.clamp(FRAME_HEADER_LEN, MAX_PIECE_LEN);
    }

    /// Reads ahead from `position` on, where the file can: all of it will be looked at, in order.
    fn reading_ahead(mut self, position: u64) -> Self {
        let source = self.file.read_ahead(position..self.limit, AHEAD_LEN);
        self.ahead = source.map(|source| Ahead { source, position });
        self
    }

    /// A window on the same file that holds nothing of it yet, for one look.
    fn again(&self) -> Self {
        Self::new(self.file, self.limit).with_piece_len(FRAME_HEADER_LEN)
    }

    /// At least `len` bytes at `position`, or all that there are before the limit.
    pub(super) async fn at(&mut self, position: u64, len: usize) -> io::Result<Bytes> {
        let left = usize::try_from(self.limit.saturating_sub(position)).unwrap_or(usize::MAX);
        let len = len.min(left);
        if let Some(bytes) = self.held(position)
            && bytes.len() >= len
        {
            return Ok(bytes);
        }
        let piece_len = match self.take_ahead(position, len).await? {
            Some(bytes) => return Ok(bytes),
            None if self.ahead.is_some() => STRADDLE_LEN,
            None => self.piece_len,
        };
        self.piece = self
            .file
            .read_at(position, len.max(piece_len).min(left))
            .await?;
        self.piece_position = position;
        Ok(self.piece.clone())
    }

    /// Goes on to the piece that was read ahead and begins at or before `position`, if it has `len` bytes
    /// from there on. `None` for a frame that no one piece has.
    async fn take_ahead(&mut self, position: u64, len: usize) -> io::Result<Option<Bytes>> {
        while let Some(ahead) = &mut self.ahead
            && position >= ahead.position
        {
            self.piece = ahead.source.next().await?;
            self.piece_position = ahead.position;
            ahead.position += self.piece.len() as u64;
            if self.piece.is_empty() {
                self.ahead = None;
            }
        }
        if len > AHEAD_LEN / 4 {
            // Of such frames too many would be read twice.
            self.ahead = None;
        }
        let held = self.held(position);
        Ok(held.filter(|bytes| bytes.len() >= len))
    }

    /// The frame at `position`, if all of it was read already and it is valid: header and length.
    fn frame_held(&self, position: u64) -> Option<(FrameHeader, usize)> {
        let skip = usize::try_from(position.checked_sub(self.piece_position)?).ok()?;
        Frame::check(self.piece.get(skip..)?).ok()
    }

    /// Lets go of what was read, so that it is read again.
    pub(super) fn forget(&mut self) {
        self.piece = Bytes::new();
    }

    /// Bytes of the piece that was read last, where it has them.
    fn slice(&self, range: Range<u64>) -> Option<Bytes> {
        let start = usize::try_from(range.start.checked_sub(self.piece_position)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.piece_position)?).ok()?;
        (end <= self.piece.len() && start <= end).then(|| self.piece.slice(start..end))
    }

    fn held(&self, position: u64) -> Option<Bytes> {
        let skip = usize::try_from(position.checked_sub(self.piece_position)?).ok()?;
        (skip <= self.piece.len()).then(|| self.piece.slice(skip..))
    }
}

/// What stands at a position of a segment file.
#[derive(Debug)]
pub(super) enum Found {
    /// A valid frame.
    Frame(Frame),
    /// Nothing was written here: a zero length, or the end of the file.
    End,
    /// Bytes that are no valid frame.
    Bad(FrameError),
}

/// Reads what stands at `position`. Allocates no more than the file holds there.
pub(super) async fn frame_at(window: &mut Window<'_>, position: u64) -> io::Result<Found> {
    let head = window.at(position, FRAME_HEADER_LEN).await?;
    if head.is_empty() {
        return Ok(Found::End);
    }
    let whole = match Frame::decode(&head) {
        Err(FrameError::Truncated { needed, .. }) => window.at(position, needed).await?,
        decoded => return Ok(decoded.into()),
    };
    Ok(Frame::decode(&whole).into())
}

impl From<Result<Frame, FrameError>> for Found {
    fn from(decoded: Result<Frame, FrameError>) -> Self {
        match decoded {
            Ok(frame) => Self::Frame(frame),
            Err(FrameError::End) => Self::End,
            Err(e) => Self::Bad(e),
        }
    }
}

/// What a segment's frames must fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// The segment's id; `None` until its first frame says it.
    pub(super) id: Option<u64>,
    /// The offset of the next record.
    pub(super) offset: u64,
}

impl Expected {
    /// Why a valid frame does not belong here, if it does not.
    pub(super) fn check(&self, header: &FrameHeader) -> Result<(), DamageReason> {
        if let Some(expected) = self.id
            && header.segment_id != expected
        {
            return Err(DamageReason::OtherSegment {
                found: header.segment_id,
                expected,
            });
        }
        if header.base_offset != self.offset {
            return Err(DamageReason::Discontinuous(header.base_offset));
        }
        Ok(())
    }

    /// Why what was found is not a frame that belongs here, if it is not.
    pub(super) fn fit(&self, found: &Found) -> Result<(), Stop> {
        match found {
            Found::Frame(frame) => self.check(&frame.header).map_err(Stop::Bad),
            Found::End => Err(Stop::End),
            Found::Bad(e) => Err(Stop::Bad(DamageReason::Frame(e.clone()))),
        }
    }
}

/// Where a walk over a segment's frames stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// At a zero length or the end of the file.
    End,
    /// At bytes that do not continue the segment.
    Bad(DamageReason),
}

impl Stop {
    /// What is wrong at the stop, if something should be there.
    pub(super) fn reason(&self) -> DamageReason {
        match self {
            Self::End => DamageReason::EndOfFile,
            Self::Bad(reason) => reason.clone(),
        }
    }
}

/// Walks the frames of a segment from its first on.
pub(super) struct Walk<'a> {
    window: Window<'a>,
    /// Where the next frame starts.
    pub(super) position: u64,
    /// What it must fit.
    pub(super) expected: Expected,
}

impl<'a> Walk<'a> {
    /// From a frame known to start at `position` with `offset`.
    pub(super) fn from(window: Window<'a>, position: u64, id: Option<u64>, offset: u64) -> Self {
        Self {
            window,
            position,
            expected: Expected { id, offset },
        }
    }

    /// The next frame's place and header, if all of it was read already and nothing is wrong with it.
    fn next_held(&mut self) -> Option<(u64, FrameHeader)> {
        let position = self.position;
        let (header, len) = self.window.frame_held(position)?;
        self.expected.check(&header).ok()?;
        self.position += len as u64;
        self.expected.id = Some(header.segment_id);
        self.expected.offset = header.end_offset();
        Some((position, header))
    }

    /// The next frame and where it starts, if all of it was read already and nothing is wrong with it.
    pub(super) fn next_frame_held(&mut self) -> Option<(u64, Frame)> {
        let (position, header) = self.next_held()?;
        let range = position + HEADER_LEN..self.position;
        // It was checked where it lies.
        let body = self.window.slice(range).unwrap_or_default();
        Some((position, Frame { header, body }))
    }

    /// Has no more than `len` bytes read at a time from now on, for a frame that is no longer than that.
    pub(super) fn read_at_most(&mut self, len: usize) {
        self.window.set_piece_len(len);
    }

    /// The length that the next frame says it has, which nothing has confirmed; 0 where there is none.
    pub(super) async fn next_len(&mut self) -> io::Result<usize> {
        let head = self.window.at(self.position, FRAME_HEADER_LEN).await?;
        Ok(length_and_id(&head).map_or(0, |(len, _)| len))
    }

    /// The next frame and where it starts, or why there is none.
    ///
    /// A bit can get lost on the way from the disk, so what seems to end the segment is read again.
    pub(super) async fn next(&mut self) -> io::Result<Result<(u64, Frame), Stop>> {
        if let Some(found) = self.next_frame_held() {
            return Ok(Ok(found));
        }
        let position = self.position;
        let mut found = frame_at(&mut self.window, position).await?;
        if self.expected.fit(&found).is_err() && position < self.window.limit {
            found = frame_at(&mut self.window.again(), position).await?;
        }
        let frame = match (self.expected.fit(&found), found) {
            (Ok(()), Found::Frame(frame)) => frame,
            (Err(stop), _) => return Ok(Err(stop)),
            (Ok(()), _) => return Ok(Err(Stop::End)),
        };
        self.position += frame.encoded_len() as u64;
        self.expected.id = Some(frame.header.segment_id);
        self.expected.offset = frame.header.end_offset();
        Ok(Ok((position, frame)))
    }

    /// Goes to the next frame of the segment that can be found behind what the walk stopped at.
    /// Whether there is one.
    pub(super) async fn skip(&mut self) -> io::Result<bool> {
        let Window { file, limit, .. } = self.window;
        let (found, _) = search(file, self.position..limit, limit, self.expected).await?;
        if let Some((position, header)) = &found {
            self.position = *position;
            self.expected.offset = header.base_offset;
            self.expected.id = Some(header.segment_id);
        }
        Ok(found.is_some())
    }
}

/// A stretch of a segment's frames, each right behind the one before it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The offset at which it begins.
    pub(super) offset: u64,
    /// Where it ends.
    pub(super) end_position: u64,
    pub(super) end_offset: u64,
    /// How many frames were read of it; none only where a segment's first frame can't be read, or nothing
    /// stands behind a recovery point.
    pub(super) frames: usize,
    /// Why it ends.
    pub(super) stop: Stop,
}

/// All frames of a segment that can be read.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    /// Never empty.
    pub(super) runs: Vec<Run>,
    /// Whether any byte behind the last one is not zero, but for what an earlier segment left.
    pub(super) has_data_behind: bool,
}

/// What the frames of a segment are looked for in and by.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) file: &'a dyn FileHandle,
    /// Nothing at or behind this position counts.
    pub(super) limit: u64,
    /// The segment's id, where something but its frames says it.
    pub(super) id: Option<u64>,
    pub(super) base_offset: u64,
    /// Where the first frame begins that is looked at, and its offset, if there are others in front of it,
    /// each right behind the one before it.
    pub(super) from: Option<(u64, u64)>,
    /// The search for further frames ends after so many zeros.
    pub(super) max_zeros: u64,
    /// Whether the file was another segment's before.
    pub(super) is_recycled: bool,
}

/// A frame that a walk came by.
pub(super) struct Seen<'a> {
    pub(super) position: u64,
    pub(super) header: &'a FrameHeader,
    /// Whether it is the first of its run.
    pub(super) begins: bool,
    body: Body<'a>,
}

/// Where a frame's body is.
enum Body<'a> {
    Held(&'a Window<'a>, Range<u64>),
    Own(&'a Bytes),
}

impl Seen<'_> {
    /// What the frame carries. Shares what was read.
    pub(super) fn body(&self) -> Bytes {
        match &self.body {
            // It was checked where it lies.
            Body::Held(window, range) => window.slice(range.clone()).unwrap_or_default(),
            Body::Own(body) => Bytes::clone(body),
        }
    }
}

/// Walks a segment from its first frame on and, wherever that stops, from the next frame of the
/// segment that can be found behind it. `visit` gets each frame.
pub(super) async fn walk_runs(
    scope: Scope<'_>,
    mut visit: impl FnMut(Seen<'_>),
) -> io::Result<Runs> {
    let Scope { file, limit, .. } = scope;
    let (start, next) = scope
        .from
        .unwrap_or((SEGMENT_HEADER_LEN as u64, scope.base_offset));
    let window = Window::new(file, limit).reading_ahead(start);
    let mut walk = Walk::from(window, start, scope.id, next);
    let mut runs = Vec::new();
    let (mut offset, mut goes_on) = (scope.base_offset, scope.from.is_some());
    loop {
        let mut frames = 0;
        let stop = loop {
            while let Some((position, header)) = walk.next_held() {
                let body = position + HEADER_LEN..walk.position;
                visit(Seen {
                    position,
                    header: &header,
                    begins: frames == 0 && !goes_on,
                    body: Body::Held(&walk.window, body),
                });
                frames += 1;
            }
            match walk.next().await? {
                Ok((position, frame)) => visit(Seen {
                    position,
                    header: &frame.header,
                    begins: frames == 0 && !goes_on,
                    body: Body::Own(&frame.body),
                }),
                Err(stop) => break stop,
            }
            frames += 1;
        };
        let Walk {
            position: end_position,
            expected,
            ..
        } = walk;
        let end_offset = expected.offset;
        runs.push(Run {
            offset,
            end_position,
            end_offset,
            frames,
            stop,
        });
        // No frame yet, and nothing else says the id: the unreadable one may still tell it.
        let id = match expected.id {
            None => told_id(&mut Window::new(file, limit), end_position, end_offset).await?,
            known => known,
        };
        let expected = Expected { id, ..expected };
        let range = end_position..limit;
        let searched = if scope.is_recycled {
            search_recycled(file, range, scope.max_zeros, expected).await
        } else {
            search(file, range, scope.max_zeros, expected).await
        };
        let (found, has_data) = searched?;
        let Some((position, header)) = found else {
            return Ok(Runs {
                runs,
                has_data_behind: has_data,
            });
        };
        let window = Window::new(file, limit);
        walk = Walk::from(
            window,
            position,
            Some(header.segment_id),
            header.base_offset,
        );
        (offset, goes_on) = (header.base_offset, false);
    }
}

/// Whether the frame of a segment that begins with this offset stands at this position, as an index says it.
pub(super) async fn stands_at(
    file: &dyn FileHandle,
    limit: u64,
    id: u64,
    (offset, position): (u64, u64),
) -> io::Result<bool> {
    let mut window = Window::new(file, limit).with_piece_len(STRADDLE_LEN);
    let found = frame_at(&mut window, position).await?;
    let id = Some(id);
    Ok(Expected { id, offset }.fit(&found).is_ok())
}

/// The id of a segment whose first frame can't be read: that of the valid frame which stands where
/// the first one says it ends, or else the one that the first one says.
///
/// Neither is a client's to choose. A frame that is found by search alone is: it can lie inside a
/// record's value, and may say that everything was committed.
async fn told_id(window: &mut Window<'_>, position: u64, offset: u64) -> io::Result<Option<u64>> {
    let head = window.at(position, FRAME_HEADER_LEN).await?;
    let Some((len, id)) = length_and_id(&head) else {
        return Ok(None);
    };
    match frame_at(window, position.saturating_add(len as u64)).await? {
        Found::Frame(next) if next.header.base_offset >= offset => Ok(Some(next.header.segment_id)),
        _ => Ok(Some(id)),
    }
}

/// Searches a range of a file, at any position, for a frame that carries the segment's id and does not
/// fall behind the offset expected, until `max_zeros` bytes in a row were zero or the file ends. Says
/// also whether there is anything but zeros. Where the id is not known, no frame counts.
///
/// A frame that a client put into a record's value does not count: it can't know the id.
async fn search(
    file: &dyn FileHandle,
    range: Range<u64>,
    max_zeros: u64,
    expected: Expected,
) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
    let mut window = Window::new(file, range.end);
    look(&mut window, range, max_zeros, expected, last_nonzero).await
}

/// The first frame of a segment in a range of a file, and whether anything there is the segment's: `own` finds
/// the last byte that is in a piece. It ends `most` bytes behind the last such byte.
async fn look(
    window: &mut Window<'_>,
    range: Range<u64>,
    most: u64,
    expected: Expected,
    own: impl Fn(&[u8]) -> Option<usize>,
) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
    let Range { start, end: limit } = range;
    let mut has_data = false;
    let (mut position, mut last_own) = (start, start);
    while position < limit && position.saturating_sub(last_own) <= most {
        let piece = window.at(position, FRAME_HEADER_LEN).await?;
        if piece.is_empty() {
            break;
        }
        if let Some(at) = own(&piece) {
            has_data = true;
            last_own = position + at as u64;
        }
        for at in candidates(&piece, expected) {
            let at = position + at as u64;
            if let Found::Frame(frame) = frame_at(&mut window.again(), at).await? {
                return Ok((Some((at, frame.header)), true));
            }
        }
        // Overlap, so that a header across two pieces is seen whole in the second.
        let step = piece.len().saturating_sub(FRAME_HEADER_LEN - 1).max(1);
        position += step as u64;
    }
    Ok((None, has_data))
}

/// [`search`] in a file that was another segment's before, from where the next frame would begin.
///
/// What the earlier segment left is no data. Of this segment are the zeros that its last write ended with,
/// and behind them what carries its id. Of a write that was torn, whatever could be taken for a frame carries
/// it, so where nothing does, the next write can go. Where the zeros are what they should be, a torn write is
/// all that may follow: no further than `most` bytes from the last thing that is of the segment.
async fn search_recycled(
    file: &dyn FileHandle,
    range: Range<u64>,
    most: u64,
    expected: Expected,
) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
    let mut searched = (None, false);
    // A bit can get lost on the way, and the only trace of a write with it.
    for _ in 0..2 {
        searched = look_among_older(file, range.clone(), most, expected).await?;
        if searched != (None, false) {
            break;
        }
    }
    Ok(searched)
}

async fn look_among_older(
    file: &dyn FileHandle,
    range: Range<u64>,
    most: u64,
    expected: Expected,
) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
    let start = range.start;
    let zeros = usize::try_from(end_of_zeros(start).saturating_sub(start)).unwrap_or(usize::MAX);
    let mut window = Window::new(file, range.end);
    let head = window.at(start, zeros).await?;
    let is_torn = head.iter().take(zeros).any(|&byte| byte != 0);
    let most = if is_torn {
        u64::MAX
    } else {
        most.saturating_add(MAX_UNSYNCED_BYTES)
    };
    let id = expected.id.map(u64::to_be_bytes);
    let own = |piece: &[u8]| id.and_then(|id| memchr::memmem::rfind(piece, &id));
    let (found, has_data) = look(&mut window, range, most, expected, own).await?;
    Ok((found, has_data || is_torn))
}

/// The first frame of a segment anywhere in its file, and whether there is anything but zeros in front of
/// it, or at all. What an earlier segment left does not count; where the zeros that end a log are right
/// behind the header, it is looked no further than a first write of `most` bytes reaches.
pub(super) async fn first_frame(
    file: &dyn FileHandle,
    id: u64,
    most: u64,
) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
    let range = SEGMENT_HEADER_LEN as u64..file.len().await?;
    let expected = Expected {
        id: Some(id),
        offset: 0,
    };
    if is_recycled(file).await? {
        search_recycled(file, range, most, expected).await
    } else {
        search(file, range, u64::MAX, expected).await
    }
}

/// Whether a file says that it was another segment's before.
async fn is_recycled(file: &dyn FileHandle) -> io::Result<bool> {
    // Twice, as in a walk: a bit may have been lost on the way.
    for _ in 0..2 {
        let head = file.read_at(0, SEGMENT_HEADER_LEN).await?;
        if let Ok(header) = SegmentHeader::decode(&head) {
            return Ok(header.is_recycled);
        }
    }
    Ok(false)
}

/// Reads a segment's header and checks it against its place.
pub(super) async fn read_header(
    file: &dyn FileHandle,
    place: &SegmentHeader,
) -> io::Result<Result<SegmentHeader, SegmentHeaderError>> {
    let head = file.read_at(0, SEGMENT_HEADER_LEN).await?;
    let header = SegmentHeader::decode(&head);
    Ok(header.and_then(|header| header.check_place(place).map(|()| header)))
}

/// The last byte that is not zero.
fn last_nonzero(piece: &[u8]) -> Option<usize> {
    const CHUNK_LEN: usize = 4096;
    const ZEROS: [u8; CHUNK_LEN] = [0; CHUNK_LEN];
    // Whole chunks are compared first, which is many times faster than byte by byte.
    let chunk = piece
        .chunks(CHUNK_LEN)
        .rposition(|c| !ZEROS.starts_with(c))?;
    let start = chunk * CHUNK_LEN;
    let within = piece
        .get(start..)?
        .iter()
        .take(CHUNK_LEN)
        .rposition(|&b| b != 0)?;
    Some(start + within)
}

/// The positions in `piece` at which a frame of the segment could start, by a look that costs no
/// checksum. Every position whose header lies in the piece is judged.
fn candidates(piece: &Bytes, expected: Expected) -> Vec<usize> {
    let plausible = |at: &usize| {
        piece
            .get(*at..)
            .and_then(|b| FrameHeader::decode(b).ok())
            .is_some_and(|(header, _)| {
                header.base_offset >= expected.offset
                    && header.committed_before <= header.base_offset
            })
    };
    #[cfg(feature = "mutants")]
    if super::mutants::lacks(super::mutants::Guard::SegmentId) {
        let all = 0..piece.len().saturating_sub(FRAME_HEADER_LEN - 1);
        return all.filter(plausible).collect();
    }
    let Some(id) = expected.id else {
        return Vec::new();
    };
    memchr::memmem::find_iter(piece, &id.to_be_bytes())
        .filter_map(|at| at.checked_sub(SEGMENT_ID_POSITION))
        .filter(plausible)
        .collect()
}
