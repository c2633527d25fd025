//! Length-prefixed frames on a byte stream.
//!
//! A frame is a big-endian `i32`, the length of what follows, and that many bytes. The length is
//! checked before anything is done about it, and memory is taken as bytes arrive, never because a
//! peer announced them.

use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::response::Encoded;

/// Bytes of the length before each frame.
pub const LENGTH_PREFIX: usize = 4;

/// Room below which a buffer grows before a read.
const LEAST_ROOM: usize = 4 * 1024;

/// The least by which a buffer grows.
const READ_CHUNK: usize = 64 * 1024;

/// How many times what has already arrived a buffer may grow by, towards the end of a frame.
const TRUST: usize = 4;

/// Slices handed to one vectored write; Linux takes up to 1,024.
const WRITE_SLICES: usize = 64;

/// Why no further frame can be read. The connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length is negative.
    #[error("a frame announces a negative length, {length}{}", hint(*length))]
    Negative {
        /// What was announced, in bytes.
        length: i32,
    },
    /// The announced length is more than is allowed.
    #[error("a frame announces {length} bytes, more than the {max} that are allowed{}", hint(*length))]
    TooLarge {
        /// What was announced, in bytes.
        length: i32,
        /// The most that is allowed, in bytes.
        max: usize,
    },
    /// The peer closed the connection inside a frame or inside its length.
    #[error("the connection was closed {have} bytes into a frame of {want}")]
    Truncated {
        /// Bytes that arrived, the length's own four included.
        have: usize,
        /// Bytes that would have been whole, as far as that is known.
        want: usize,
    },
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Names the protocols that are most often spoken to a Kafka port by mistake.
fn hint(length: i32) -> &'static str {
    match length.to_be_bytes() {
        [0x16, 0x03, _, _] => " (a TLS client? this listener speaks plain text)",
        [b'G', b'E', b'T', b' '] | [b'P', b'O', b'S', b'T'] | [b'H', b'E', b'A', b'D'] => {
            " (an HTTP client? this is a Kafka port)"
        }
        _ => "",
    }
}

/// Waits for the next frame's length and checks it against `max` bytes.
///
/// The frame itself stays unread, so that a caller can first find room for that many bytes; then
/// comes [`read_body`]. `None` means that the peer closed the connection between two frames.
///
/// Dropping the future loses nothing: what has arrived is in `buf`.
///
/// # Errors
/// [`FrameError`]; the connection is to be closed.
pub async fn read_length<R: AsyncRead + Unpin>(
    reader: &mut R,
    buf: &mut BytesMut,
    max: usize,
) -> Result<Option<usize>, FrameError> {
    loop {
        if let Some(prefix) = buf.first_chunk::<LENGTH_PREFIX>() {
            return checked_length(i32::from_be_bytes(*prefix), max).map(Some);
        }
        if !fill(reader, buf, LENGTH_PREFIX).await? {
            return match buf.len() {
                0 => Ok(None),
                have => Err(FrameError::Truncated {
                    have,
                    want: LENGTH_PREFIX,
                }),
            };
        }
    }
}

/// Reads the frame whose length, as [`read_length`] gave it, is at the front of `buf`.
///
/// The frame shares `buf`'s memory: nothing is copied. Dropping the future loses nothing.
///
/// # Errors
/// [`FrameError::Truncated`] if the peer closes the connection first, or [`FrameError::Io`].
pub async fn read_body<R: AsyncRead + Unpin>(
    reader: &mut R,
    buf: &mut BytesMut,
    length: usize,
) -> Result<Bytes, FrameError> {
    let want = LENGTH_PREFIX + length;
    while buf.len() < want {
        if !fill(reader, buf, want).await? {
            return Err(FrameError::Truncated {
                have: buf.len(),
                want,
            });
        }
    }
    buf.advance(LENGTH_PREFIX);
    Ok(buf.split_to(length).freeze())
}

/// Reads the next frame, of at most `max` bytes: [`read_length`] and [`read_body`] in one.
///
/// # Errors
/// [`FrameError`]; the connection is to be closed.
pub async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    buf: &mut BytesMut,
    max: usize,
) -> Result<Option<Bytes>, FrameError> {
    match read_length(reader, buf, max).await? {
        Some(length) => read_body(reader, buf, length).await.map(Some),
        None => Ok(None),
    }
}

/// Writes a whole response, its buffers side by side where the stream can do that.
///
/// # Errors
/// The stream's own. A part of the response may have been written: the connection is to be closed.
pub async fn write_frame<W: AsyncWrite + Unpin>(
    writer: &mut W,
    response: &Encoded,
) -> io::Result<()> {
    let mut rest = response.chunks();
    let mut done = 0;
    while let Some(first) = rest.first() {
        if done == first.len() {
            rest = rest.split_first().map_or(&[][..], |(_, tail)| tail);
            done = 0;
            continue;
        }
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
        for (slice, chunk) in slices.iter_mut().zip(rest) {
            *slice = IoSlice::new(chunk);
        }
        if let Some(slice) = slices.first_mut() {
            slice.advance(done);
        }
        let mut written = match writer.write_vectored(&slices).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done + n,
        };
        while let Some((first, tail)) = rest.split_first()
            && written >= first.len()
        {
            written -= first.len();
            rest = tail;
        }
        done = written;
    }
    writer.flush().await
}

fn checked_length(length: i32, max: usize) -> Result<usize, FrameError> {
    match usize::try_from(length) {
        Err(_) => Err(FrameError::Negative { length }),
        Ok(n) if n > max => Err(FrameError::TooLarge { length, max }),
        Ok(n) => Ok(n),
    }
}

/// Reads once towards `want` bytes in `buf`; false at the end of the stream.
///
/// The buffer grows by [`READ_CHUNK`], or by up to [`TRUST`] times what has arrived: a peer that only
/// announces a large frame gets no memory for it.
async fn fill<R: AsyncRead + Unpin>(
    reader: &mut R,
    buf: &mut BytesMut,
    want: usize,
) -> io::Result<bool> {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        let missing = want.saturating_sub(buf.len());
        buf.reserve(missing.min(buf.len() * TRUST).max(READ_CHUNK));
    }
    Ok(reader.read_buf(buf).await? > 0)
}
