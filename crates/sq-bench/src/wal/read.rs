//! Reading a log from its first record to its last, from the page cache.

use std::path::Path;

use anyhow::{Result, ensure};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::pread;

use super::Bench;
use super::sq::{SEGMENT_BYTES, batch, runtime, writer};
use crate::stats::{float, median};
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;

/// Steps of a round: plain, and sq.
pub(super) const STEPS: u64 = 2;

/// Bytes of one read.
const AT_A_TIME: usize = 1 << 20;

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    let dir = bench.dir("read")?;
    let mut log = writer(dir.path(), SEGMENT_BYTES)?;
    let runtime = runtime()?;
    let value = Bytes::from(bench.value.clone());
    let one = batch(&[value])?;
    let batches = vec![one; 1024];
    let mut records = 0;
    while records * (super::RECORD_BYTES as u64) < bench.bytes {
        records += runtime.block_on(log.append_batches(&batches))? as u64;
    }
    // Opened anew, it has nothing in memory.
    runtime.block_on(log.close())?;
    let log = writer(dir.path(), SEGMENT_BYTES)?;
    let (mut plains, mut ours) = (Vec::new(), Vec::new());
    warm(log.dir())?;
    for _ in 0..bench.rounds {
        bench.run.step("plain reads");
        plains.push(plain(log.dir())?);
        bench.run.step("sq's reader");
        let reader = log.reader();
        let begun = now();
        let (mut bytes, mut next) = (0, 0);
        while next < records {
            let frames = runtime.block_on(reader.read(next, AT_A_TIME))?;
            ensure!(!frames.is_empty(), "nothing at offset {next}");
            for frame in frames {
                bytes += frame.payload.len() as u64;
                next = frame.end_offset();
            }
        }
        ours.push(float(bytes) / 1e6 / now().duration_since(begun).as_secs_f64());
    }
    let ratios = ours.iter().zip(&plains).map(|(ours, plain)| ours / plain);
    let ratio = median(ratios.collect::<Vec<_>>());
    let unit = Unit::MegabytesPerSecond;
    table.push(
        Row::new("read from start to end, sq; beside: pread and CRC-32")
            .beside(median(plains), unit)
            .figure(median(ours), unit)
            .judge(ratio, Unit::Times, Target::AtLeast(0.5))
            .note(format!("{} MiB, warm", bench.bytes >> 20)),
    );
    Ok(())
}

/// Reads the files through with the same checksum over all of them, in MB/s.
fn plain(dir: &Path) -> Result<f64> {
    let mut buffer = vec![0; AT_A_TIME];
    let begun = now();
    let mut bytes = 0;
    for path in crate::machine::files(dir)? {
        bytes += read_through(&path, &mut buffer)?;
    }
    Ok(float(bytes) / 1e6 / now().duration_since(begun).as_secs_f64())
}

/// Brings everything below a directory into the page cache: what was written past it is not there yet.
pub(super) fn warm(dir: &Path) -> Result<()> {
    let mut buffer = vec![0; AT_A_TIME];
    for path in crate::machine::files(dir)? {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if rustix::fs::open(&path, flags, Mode::empty()).is_ok() {
            warm(&path)?;
        } else {
            read_through(&path, &mut buffer)?;
        }
    }
    Ok(())
}

/// The bytes of a file, each of which went into a checksum.
fn read_through(path: &Path, buffer: &mut [u8]) -> Result<u64> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut at = 0;
    loop {
        let read = pread(&file, &mut *buffer, at)?;
        let taken = buffer.get(..read).unwrap_or_default();
        if taken.is_empty() {
            return Ok(at);
        }
        std::hint::black_box(crc32fast::hash(taken));
        at += read as u64;
    }
}
