//! A layer above the log that remembers of every frame where it was and what it held.

use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes};
use sq_storage::{RecoveryVisitor, Sidecar, StoredFrame};

use crate::oracle::Oracle;
use crate::support::{Reader, Writer};

/// A frame: where it begins and ends, and the checksum of what it holds.
pub(crate) type Known = (u64, u64, u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    /// The frames that it knows of, oldest first.
    pub(crate) frames: Vec<Known>,
    /// The offset behind the last record that it takes in.
    pub(crate) end: u64,
    /// The sidecar that it began with, and how many of the frames are from there.
    pub(crate) began: Option<(Sidecar, usize)>,
    /// How many sidecars it makes nothing of.
    pub(crate) refuses: usize,
}

fn known(frame: &StoredFrame) -> Known {
    let crc = crc32fast::hash(&frame.payload.to_bytes());
    (frame.base_offset, frame.end_offset(), crc)
}

fn decode(mut content: Bytes) -> Vec<Known> {
    let mut frames = Vec::new();
    while content.has_remaining() {
        frames.push((content.get_u64(), content.get_u64(), content.get_u32()));
    }
    frames
}

impl RecoveryVisitor for Layer {
    fn begin(&mut self, sidecar: Option<&Sidecar>) -> Option<u64> {
        if sidecar.is_some() && self.refuses > 0 {
            self.refuses -= 1;
            // It may have come half-way.
            self.frames = vec![(0, u64::MAX, 0)];
            return None;
        }
        self.frames.clear();
        self.end = 0;
        self.began = None;
        if let Some(sidecar) = sidecar {
            self.frames = decode(sidecar.content.clone());
            self.end = sidecar.end_offset;
            self.began = Some((sidecar.clone(), self.frames.len()));
        }
        Some(self.end)
    }

    fn frame(&mut self, frame: &StoredFrame) {
        assert!(frame.record_count > 0, "a mark is none of its business");
        assert!(frame.base_offset >= self.end, "a frame is shown once");
        self.frames.push(known(frame));
        self.end = frame.end_offset();
    }

    fn sidecar(&mut self, end_offset: u64) -> Option<Bytes> {
        if self.end != end_offset {
            return None;
        }
        let mut content = Vec::new();
        for (base, end, crc) in &self.frames {
            content.put_u64(*base);
            content.put_u64(*end);
            content.put_u32(*crc);
        }
        Some(content.into())
    }
}

impl Layer {
    /// The frames that it saw itself.
    pub(crate) fn shown(&self) -> &[Known] {
        let from_sidecar = self.began.as_ref().map_or(0, |(_, frames)| *frames);
        &self.frames[from_sidecar..]
    }

    /// It was brought back by opening: it must know just what the log holds.
    pub(crate) async fn check(&self, reader: &Reader) {
        let start = reader.start_offset();
        let mut next = start;
        let mut held = Vec::new();
        while next < reader.end_offset() {
            for frame in reader.read(next, 1 << 20).await.unwrap() {
                next = frame.end_offset();
                held.push(known(&frame));
            }
        }
        let of_log = |frames: &[Known]| -> Vec<Known> {
            let frames = frames.iter().filter(|(_, end, _)| *end > start);
            frames.copied().collect()
        };
        assert_eq!(of_log(&self.frames), held);
        assert_eq!(
            of_log(self.shown()),
            self.shown(),
            "what is gone is not shown"
        );
        if let Some((sidecar, _)) = &self.began {
            assert!(sidecar.end_offset <= reader.end_offset());
        }
    }

    /// Takes in what was acknowledged, or taken out, since the last call.
    pub(crate) fn follow(&mut self, oracle: &Oracle) {
        while self
            .frames
            .last()
            .is_some_and(|(_, end, _)| *end > oracle.end())
        {
            self.frames.pop();
        }
        let end = self.frames.last().map_or(0, |(_, end, _)| *end);
        self.frames.extend(oracle.frames_from(end));
        self.end = oracle.end();
    }
}

/// A layer that lives beside a writer.
pub(crate) type SharedLayer = Arc<Mutex<Layer>>;

/// Has the sidecars of a log written by a layer that lives on beside it.
pub(crate) fn attach(layer: Layer, log: &mut Writer) -> SharedLayer {
    let shared = Arc::new(Mutex::new(layer));
    let source = Arc::clone(&shared);
    log.set_sidecar_source(move |end| source.lock().unwrap().sidecar(end));
    shared
}
