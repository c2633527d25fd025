//! `sq segment dump`.

use std::io::Write;
use std::path::Path;

use sq_sim::FileSystem;
use sq_storage::frame::{Frame, FrameHeader};
use sq_storage::wal::segment::SegmentHeader;

use super::SegmentError;
use super::batch_state::batch_in;
use super::walk::{Part, Walk};
use crate::batch::BatchHeader;

pub(super) async fn dump<F: FileSystem>(
    fs: &F,
    path: &Path,
    out: &mut impl Write,
) -> Result<(), SegmentError> {
    let io = |source| SegmentError::Io {
        path: path.to_owned(),
        source,
    };
    let file = fs.open_read_only(path).await.map_err(io)?;
    let (mut walk, header) = Walk::start(file, None).await.map_err(io)?;
    let header = header.map_err(|source| SegmentError::NoSegment {
        path: path.to_owned(),
        source,
    })?;
    write_segment_header(&header, walk.length(), out)?;
    while let Some(part) = walk.next().await.map_err(io)? {
        write_part(&part, out)?;
    }
    Ok(())
}

fn write_segment_header(
    header: &SegmentHeader,
    length: u64,
    out: &mut impl Write,
) -> Result<(), SegmentError> {
    let name: Vec<u8> = header
        .topic
        .iter()
        .copied()
        .take_while(|byte| *byte != 0)
        .collect();
    let name = name.escape_ascii();
    let cut = if usize::from(header.topic_len) > header.topic.len() {
        "..."
    } else {
        ""
    };
    writeln!(out, "version    {}", header.version())?;
    writeln!(out, "topic      {name}{cut} ({} bytes)", header.topic_len)?;
    writeln!(out, "partition  {}", header.partition)?;
    writeln!(out, "length     {length}")?;
    writeln!(
        out,
        "position\toffsets\tkind\trecords\tbody\tmax timestamp\tappend time\tepoch\tcommitted before\tcrc"
    )?;
    Ok(())
}

fn write_part(part: &Part, out: &mut impl Write) -> Result<(), SegmentError> {
    match part {
        Part::Frame { position, frame } => {
            let state = format!("ok{}", batch_words(frame));
            write_frame(
                *position,
                &frame.header,
                Some(frame.body.len()),
                &state,
                out,
            )?;
        }
        Part::Hole {
            position,
            until,
            error,
            header,
        } => {
            match header {
                Some(header) => write_frame(*position, header, None, "BAD", out)?,
                None => writeln!(out, "{position}\tno frame")?,
            }
            let hole = until - position;
            writeln!(
                out,
                "\t{error}; the segment goes on {hole} bytes further, at {until}"
            )?;
        }
        Part::Rest {
            position,
            length,
            has_data: false,
            ..
        } => {
            writeln!(out, "{position}\tend, and {length} bytes behind it")?;
        }
        Part::Rest {
            position,
            length,
            error,
            ..
        } => {
            writeln!(
                out,
                "{position}\tend: {error}; {length} bytes hold no further frame"
            )?;
        }
    }
    Ok(())
}

fn write_frame(
    position: u64,
    header: &FrameHeader,
    body: Option<usize>,
    state: &str,
    out: &mut impl Write,
) -> Result<(), SegmentError> {
    let FrameHeader {
        base_offset,
        record_count,
        max_timestamp_ms,
        append_time_ms,
        ..
    } = header;
    let FrameHeader {
        leader_epoch,
        committed_before,
        ..
    } = header;
    let kind = format!("{:?}", header.kind).to_lowercase();
    let body = body.map_or("?".to_owned(), |body| body.to_string());
    writeln!(
        out,
        "{position}\t{base_offset}..{}\t{kind}\t{record_count}\t{body}\t{max_timestamp_ms}\t\
         {append_time_ms}\t{leader_epoch}\t{committed_before}\t{state}",
        header.end_offset(),
    )?;
    Ok(())
}

/// What there is to say about a frame's batch.
fn batch_words(frame: &Frame) -> String {
    match batch_in(frame) {
        None => String::new(),
        Some(Err(problem)) => format!("\tBAD: {problem}"),
        Some(Ok(batch)) => {
            let BatchHeader {
                attributes,
                producer_id,
                producer_epoch,
                base_sequence,
                ..
            } = batch;
            let codec = attributes
                .compression()
                .map_or("?".to_owned(), |codec| codec.to_string());
            let producer = if batch.is_idempotent() {
                format!(", producer {producer_id} epoch {producer_epoch} sequence {base_sequence}")
            } else {
                String::new()
            };
            format!("\tbatch ok, compression {codec}{producer}")
        }
    }
}
