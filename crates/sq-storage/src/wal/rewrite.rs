//! Writing frames again in place, so that the next sync means something for them.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use sq_sim::FileHandle;

use super::scan::{Expected, Found, Window, frame_at};

/// How much is written at a time, in bytes; a larger frame is written in one piece.
const PIECE_LEN: u64 = 1 << 20;

/// Frames right behind each other that are yet to be written.
#[derive(Default)]
struct Piece {
    position: u64,
    bytes: u64,
    frames: Vec<Bytes>,
}

impl Piece {
    fn takes(&self, position: u64) -> bool {
        self.position + self.bytes == position && self.bytes < PIECE_LEN
    }

    fn push(&mut self, position: u64, frame: Bytes) {
        if self.frames.is_empty() {
            self.position = position;
        }
        self.bytes += frame.len() as u64;
        self.frames.push(frame);
    }

    async fn write(&mut self, file: &dyn FileHandle) -> io::Result<u64> {
        let Self {
            position,
            bytes,
            frames,
        } = std::mem::take(self);
        if !frames.is_empty() {
            file.write_at(position, &frames).await?;
        }
        Ok(bytes)
    }
}

/// Writes the frames of segment `id` at these positions, with these base offsets, once more, and the zeros
/// behind the last of them where something else may be on the disk there, syncs the file, and returns how
/// many bytes of frames that were.
///
/// They are read anew and checked anew. Since they were found, the kernel may have dropped pages
/// whose sync had failed, and a bit that gets lost on the way from the disk must not be written to it.
///
/// # Errors
/// The file system's; also where a frame is not what it was, of which those behind it are as they
/// were, and a new attempt will find what is there now.
pub(super) async fn rewrite(
    file: &dyn FileHandle,
    id: u64,
    frames: impl Iterator<Item = (u64, u64)>,
    zeros: Option<Range<u64>>,
) -> io::Result<u64> {
    let mut window = Window::new(file, u64::MAX);
    let mut piece = Piece::default();
    let mut written = 0;
    for (position, offset) in frames {
        let id = Some(id);
        let frame = whole_frame(&mut window, position, Expected { id, offset }).await?;
        if !piece.takes(position) {
            written += piece.write(file).await?;
        }
        piece.push(position, frame);
    }
    written += piece.write(file).await?;
    if written > 0 {
        if let Some(Range { start, end }) = zeros {
            file.zero_range(start, end.saturating_sub(start)).await?;
        }
        file.sync_data().await?;
    }
    Ok(written)
}

/// The bytes of the frame at `position`, if it is still the one that is expected there.
async fn whole_frame(
    window: &mut Window<'_>,
    position: u64,
    expected: Expected,
) -> io::Result<Bytes> {
    let mut found = frame_at(window, position).await?;
    if expected.fit(&found).is_err() {
        window.forget();
        found = frame_at(window, position).await?;
    }
    match (expected.fit(&found), found) {
        (Ok(()), Found::Frame(frame)) => {
            let len = frame.encoded_len();
            let mut bytes = window.at(position, len).await?;
            bytes.truncate(len);
            Ok(bytes)
        }
        _ => Err(io::Error::other(format!(
            "the frame at byte {position} changed while the log was being opened"
        ))),
    }
}
