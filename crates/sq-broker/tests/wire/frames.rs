//! Frames on a stream that comes, and goes, in pieces.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::TopicName;
use proptest::prelude::{any, proptest};
use sq_broker::protocol::frame::{read_body, read_length};
use sq_broker::protocol::{
    FetchResponse, FetchedPartition, FetchedTopic, FrameError, ResponseBody, encode, read_frame,
    write_frame,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::alloc::measure;

/// A stream of bytes that gives, or takes, at most so many at a time.
struct Trickle {
    bytes: Vec<u8>,
    at: usize,
    step: usize,
}

impl Trickle {
    fn of(bytes: Vec<u8>, step: usize) -> Self {
        Self { bytes, at: 0, step }
    }
}

impl AsyncRead for Trickle {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let end = this
            .bytes
            .len()
            .min(this.at + this.step.min(out.remaining()));
        out.put_slice(&this.bytes[this.at..end]);
        this.at = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Trickle {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let taken = data.len().min(this.step);
        this.bytes.extend_from_slice(&data[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        self.poll_write(context, &all)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Frames until the stream ends or fails.
fn read_all(bytes: Vec<u8>, step: usize, max: usize) -> (Vec<Bytes>, Option<FrameError>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut stream = Trickle::of(bytes, step);
        let (mut buf, mut frames) = (BytesMut::new(), Vec::new());
        loop {
            match read_frame(&mut stream, &mut buf, max).await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, None),
                Err(error) => return (frames, Some(error)),
            }
        }
    })
}

fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
    let one = |frame: &Vec<u8>| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    frames.iter().flat_map(one).collect()
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6),
        step in 1_usize..500,
        cut in any::<u16>(),
    ) {
        let bytes = framed(&frames);
        let (read, error) = read_all(bytes.clone(), step, 300);
        assert!(error.is_none());
        assert_eq!(read, frames);

        let cut = usize::from(cut) % (bytes.len() + 1);
        let (read, error) = read_all(bytes[..cut].to_vec(), step, 300);
        assert_eq!(read, frames[..read.len()]);
        let whole = framed(&frames[..read.len()]).len();
        match error {
            None => assert_eq!(whole, cut),
            Some(FrameError::Truncated { have, .. }) => assert_eq!(whole + have, cut),
            Some(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_response_is_written_whole_however_little_is_taken(
        records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..100),
        step in 1_usize..200,
    ) {
        let partitions = records.chunks(3).map(|records| FetchedPartition {
            records: records.iter().cloned().map(Bytes::from).collect(),
            ..FetchedPartition::default()
        });
        let topic = FetchedTopic {
            name: TopicName("orders".into()),
            partitions: partitions.collect(),
            ..FetchedTopic::default()
        };
        let response = FetchResponse { topics: vec![topic], ..FetchResponse::default() };
        let encoded = encode(11, 77, ResponseBody::Fetch(response)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut stream = Trickle::of(Vec::new(), step);
        runtime.block_on(write_frame(&mut stream, &encoded)).unwrap();
        assert_eq!(stream.bytes, encoded.chunks().concat());
    }
}

#[test]
fn a_stream_that_takes_nothing_is_an_error() {
    let encoded = encode(11, 77, ResponseBody::Fetch(FetchResponse::default())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(write_frame(&mut Trickle::of(Vec::new(), 0), &encoded));
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::WriteZero);
}

#[test]
fn lengths_that_cannot_be_are_named() {
    for (length, message) in [
        (-1, "a frame announces a negative length, -1"),
        (i32::MIN, "a frame announces a negative length, -2147483648"),
        (
            1001,
            "a frame announces 1001 bytes, more than the 1000 that are allowed",
        ),
        (
            i32::MAX,
            "a frame announces 2147483647 bytes, more than the 1000 that are allowed",
        ),
    ] {
        let (frames, error) = read_all(length.to_be_bytes().to_vec(), 9, 1000);
        assert!(frames.is_empty());
        assert_eq!(error.unwrap().to_string(), message);
    }
    for (begin, word) in [
        (&b"GET / HTTP/1.1"[..], "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ] {
        let error = read_all(begin.to_vec(), 99, 1000).1.unwrap();
        assert!(matches!(error, FrameError::TooLarge { .. }));
        assert!(error.to_string().contains(word), "{error}");
    }
    let (frames, error) = read_all(framed(&[vec![7; 1000]]), 99, 1000);
    assert!(error.is_none());
    assert_eq!(frames, [vec![7; 1000]]);
}

/// A connection that announces a frame of 100 MB and then goes silent must not hold 100 MB.
#[test]
fn an_announced_frame_gets_memory_only_as_it_arrives() {
    const ANNOUNCED: usize = 100 << 20;
    for arrived in [0, 10, 1000, 100_000, 1_000_000] {
        let mut bytes = (ANNOUNCED as u32).to_be_bytes().to_vec();
        bytes.resize(4 + arrived, 1);
        let ((_, error), asked) = measure(|| read_all(bytes, 10_000, ANNOUNCED));
        assert!(matches!(error, Some(FrameError::Truncated { .. })));
        assert!(
            asked.largest <= 80_000 + 6 * arrived,
            "{asked:?} for {arrived} bytes"
        );
    }
}

#[test]
fn a_frame_is_not_copied_out_of_the_buffer_and_the_next_one_is_found_behind_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut stream = Trickle::of(framed(&[vec![1; 50], vec![2; 60]]), 1000);
        let mut buf = BytesMut::new();
        let first = read_frame(&mut stream, &mut buf, 100)
            .await
            .unwrap()
            .unwrap();
        let second = read_frame(&mut stream, &mut buf, 100)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(first.as_ptr().wrapping_add(54), second.as_ptr());
    });
}

#[test]
fn a_dropped_read_loses_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut near, mut far) = tokio::io::duplex(1000);
        let bytes = framed(&[vec![3; 40]]);
        let mut buf = BytesMut::new();
        for piece in bytes.chunks(7) {
            // Each read is given up as soon as it has to wait.
            let read = read_frame(&mut near, &mut buf, 100);
            tokio::select! {
                biased;
                frame = read => panic!("too early: {frame:?}"),
                () = std::future::ready(()) => {}
            }
            tokio::io::AsyncWriteExt::write_all(&mut far, piece)
                .await
                .unwrap();
        }
        let length = read_length(&mut near, &mut buf, 100)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(length, 40);
        let frame = read_body(&mut near, &mut buf, length).await.unwrap();
        assert_eq!(frame, vec![3; 40]);
    });
}
