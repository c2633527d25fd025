//! `sq segment verify`: every segment below a directory, by itself and beside its neighbours.
//!
//! A file that stops early is not damage by itself: the last writes before a crash were never
//! acknowledged. It is damage where something else says that what is missing was: a frame's own
//! word about what was committed before it, or the manifest's about where a sealed segment ends.
//!
//! A successor's file counts from its first record on: after a crash it may not have its name yet.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use sq_sim::{EntryKind, FileSystem};
use sq_storage::TopicName;
use sq_storage::frame::Frame;
use sq_storage::wal::manifest::{ManifestContent, read_manifest};
use sq_storage::wal::prepared_id;
use sq_storage::wal::segment::{SegmentHeader, SegmentHeaderError, SegmentName};

use super::SegmentError;
use super::batch_state::batch_in;
use super::walk::{Part, Walk};

/// How deep below a broker's data directory a partition is: its topic's directory, and its own.
const DEPTH: usize = 2;

/// The files of a partition that may hold records.
#[derive(Debug, Default)]
struct Files {
    segments: Vec<SegmentName>,
    /// The names of successors' files, and the ids in them.
    prepared: Vec<(OsString, u64)>,
}

impl Files {
    fn add(&mut self, name: &OsStr) {
        self.segments.extend(SegmentName::parse(name));
        self.prepared
            .extend(prepared_id(name).map(|id| (name.to_owned(), id)));
    }

    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.prepared.is_empty()
    }
}

/// What was found in one segment file.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    base_offset: u64,
    /// It has no name yet that says so: it begins where its first frame does.
    is_unnamed: bool,
    /// Among segments of one base, the later one has the higher ordinal; 0 where no frame says it.
    ordinal: u32,
    /// The offset behind the last frame.
    end_offset: u64,
    /// The highest offset that a frame says everything before was committed.
    committed: u64,
    frames: u64,
    records: u64,
    /// What stands where the next frame should, since the last one.
    stop: Option<String>,
    /// Offsets between frames, and what stands there.
    gaps: Vec<Gap>,
    /// What is wrong whatever was acknowledged.
    problems: Vec<String>,
}

/// Offsets that should be in a segment, and why they are not.
#[derive(Clone, Debug)]
struct Gap {
    from: u64,
    to: u64,
    reason: String,
}

/// Sums over all that was looked at.
#[derive(Debug, Default)]
struct Totals {
    partitions: usize,
    segments: usize,
    records: u64,
    problems: usize,
}

pub(super) async fn verify<F: FileSystem>(
    fs: &F,
    dir: &Path,
    out: &mut impl Write,
) -> Result<(), SegmentError> {
    let mut totals = Totals::default();
    for (partition, files) in partitions_below(fs, dir).await? {
        totals.partitions += 1;
        verify_partition(fs, &partition, &files, &mut totals, out).await?;
    }
    let Totals {
        partitions,
        segments,
        records,
        problems,
    } = totals;
    if partitions == 0 {
        return Err(SegmentError::NothingThere {
            path: dir.to_owned(),
        });
    }
    writeln!(
        out,
        "{partitions} partitions, {segments} segments, {records} records, {problems} problems"
    )?;
    match problems {
        0 => Ok(()),
        count => Err(SegmentError::Damage { count }),
    }
}

/// Directories that hold segments, with what is in them.
async fn partitions_below<F: FileSystem>(
    fs: &F,
    dir: &Path,
) -> Result<BTreeMap<PathBuf, Files>, SegmentError> {
    let mut found = BTreeMap::new();
    let mut level = vec![dir.to_owned()];
    for _ in 0..=DEPTH {
        for dir in std::mem::take(&mut level) {
            let entries = fs.list_dir(&dir).await;
            let entries = entries.map_err(|source| SegmentError::Io {
                path: dir.clone(),
                source,
            })?;
            // The broker's own directories, what it deleted and set aside among them, have an @.
            let deeper = entries.iter().filter(|entry| {
                entry.kind == EntryKind::Directory && !entry.name.as_encoded_bytes().contains(&b'@')
            });
            level.extend(deeper.map(|entry| dir.join(&entry.name)));
            let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
            let mut of_log = Files::default();
            files.for_each(|file| of_log.add(&file.name));
            if !of_log.is_empty() {
                found.insert(dir, of_log);
            }
        }
    }
    Ok(found)
}

async fn verify_partition<F: FileSystem>(
    fs: &F,
    dir: &Path,
    files: &Files,
    totals: &mut Totals,
    out: &mut impl Write,
) -> Result<(), SegmentError> {
    let manifest = read_manifest(fs, dir).await;
    let manifest = manifest.map_err(|source| SegmentError::Io {
        path: dir.to_owned(),
        source,
    })?;
    let mut segments = Vec::new();
    // What retention let go of is no part of the log, and its file may be half gone.
    let is_removed = |name: &SegmentName| {
        manifest.removed.iter().any(|entry| entry.name == *name)
            && manifest.entries.iter().all(|entry| entry.name != *name)
    };
    for name in files.segments.iter().filter(|name| !is_removed(name)) {
        segments.push(read_segment(fs, dir, *name, &manifest).await?);
    }
    for (name, id) in &files.prepared {
        segments.extend(read_successor(fs, dir, name, *id, out).await?);
    }
    segments.sort_by_key(|segment| (segment.base_offset, segment.ordinal));
    let acknowledged = acknowledged(&segments, &manifest);
    let bounds: Vec<_> = segments
        .iter()
        .skip(1)
        .map(|next| Some(next.base_offset))
        .chain([None])
        .collect();
    for (segment, bound) in segments.iter().zip(bounds) {
        totals.segments += 1;
        totals.records += segment.records;
        totals.problems += report(segment, bound, acknowledged, out)?;
    }
    for missing in missing_files(&files.segments, &manifest) {
        totals.problems += 1;
        let path = dir.join(missing.file_name());
        writeln!(
            out,
            "DAMAGED\t{}\tsealed by the manifest, and not there",
            path.display()
        )?;
    }
    Ok(())
}

/// The offset before which everything in the partition is known to have been acknowledged.
fn acknowledged(segments: &[Segment], manifest: &ManifestContent) -> u64 {
    let by_frames = segments.iter().map(|segment| segment.committed);
    let by_seals = manifest
        .entries
        .iter()
        .filter_map(|entry| entry.seal)
        .map(|s| s.end_offset);
    by_frames.chain(by_seals).max().unwrap_or(0)
}

/// Sealed segments that hold records, by the manifest, and have no file.
fn missing_files<'a>(
    names: &'a [SegmentName],
    manifest: &'a ManifestContent,
) -> impl Iterator<Item = SegmentName> + 'a {
    let sealed = manifest.entries.iter().filter(|entry| {
        entry
            .seal
            .is_some_and(|seal| seal.end_offset > entry.name.base_offset)
    });
    sealed
        .map(|entry| entry.name)
        .filter(|name| !names.contains(name))
}

async fn read_segment<F: FileSystem>(
    fs: &F,
    dir: &Path,
    name: SegmentName,
    manifest: &ManifestContent,
) -> Result<Segment, SegmentError> {
    let listed = manifest.entries.iter().find(|entry| entry.name == name);
    let id = name.id.or(listed.map(|entry| entry.id));
    let mut segment = Segment::new(dir.join(name.file_name()), name.base_offset);
    segment.ordinal = listed.map_or(0, |entry| entry.ordinal);
    match segment.read(fs, id).await? {
        Ok(header) => segment.problems.extend(misplaced(&header, dir)),
        Err(error) => segment.problems.push(error.to_string()),
    }
    Ok(segment)
}

/// A successor that holds records, or something that can't be told; others are named, no more.
async fn read_successor<F: FileSystem>(
    fs: &F,
    dir: &Path,
    name: &OsStr,
    id: u64,
    out: &mut impl Write,
) -> Result<Option<Segment>, SegmentError> {
    let path = dir.join(name);
    let mut segment = Segment::new(path.clone(), 0);
    segment.is_unnamed = true;
    let header = segment.read(fs, Some(id)).await?;
    if segment.frames > 0 {
        match header {
            Ok(header) => segment.problems.extend(misplaced(&header, dir)),
            Err(error) => segment.problems.push(error.to_string()),
        }
        return Ok(Some(segment));
    }
    let state = match segment.stop {
        Some(stop) => format!("no frame, and yet something {stop}"),
        None => "no record yet".to_owned(),
    };
    writeln!(out, "prepared\t{}\t{state}", path.display())?;
    Ok(None)
}

/// What a header says about a place that is not the directory's.
fn misplaced(header: &SegmentHeader, dir: &Path) -> Option<String> {
    let partition = dir.file_name()?.to_str()?.parse().ok()?;
    let topic = TopicName::new(dir.parent()?.file_name()?.to_str()?).ok()?;
    let expected = SegmentHeader::new(&topic, partition);
    header
        .check_place(&expected)
        .err()
        .map(|error| error.to_string())
}

impl Segment {
    fn new(path: PathBuf, base_offset: u64) -> Self {
        Self {
            path,
            base_offset,
            is_unnamed: false,
            ordinal: 0,
            end_offset: base_offset,
            committed: 0,
            frames: 0,
            records: 0,
            stop: None,
            gaps: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Takes in all that is in the file, of which the segment's id may be known.
    async fn read<F: FileSystem>(
        &mut self,
        fs: &F,
        id: Option<u64>,
    ) -> Result<Result<SegmentHeader, SegmentHeaderError>, SegmentError> {
        let path = self.path.clone();
        let io = |source| SegmentError::Io {
            path: path.clone(),
            source,
        };
        let file = fs.open_read_only(&path).await.map_err(io)?;
        let (mut walk, header) = Walk::start(file, id).await.map_err(io)?;
        while let Some(part) = walk.next().await.map_err(io)? {
            self.take(part);
        }
        Ok(header)
    }

    fn take(&mut self, part: Part) {
        match part {
            Part::Frame { position, frame } => self.take_frame(position, &frame),
            Part::Hole {
                position, error, ..
            }
            | Part::Rest {
                position,
                error,
                has_data: true,
                ..
            } => {
                self.stop
                    .get_or_insert(format!("at position {position}: {error}"));
            }
            Part::Rest { .. } => {}
        }
    }

    fn take_frame(&mut self, position: u64, frame: &Frame) {
        let header = &frame.header;
        if self.is_unnamed && self.frames == 0 {
            (self.base_offset, self.end_offset) = (header.base_offset, header.base_offset);
        }
        self.frames += 1;
        self.records += u64::from(header.record_count);
        self.ordinal = header.ordinal;
        self.committed = self.committed.max(header.committed_before);
        if let Some(Err(problem)) = batch_in(frame) {
            self.problems
                .push(format!("at position {position}: {problem}"));
        }
        let (from, to) = (self.end_offset, header.base_offset);
        let stop = self.stop.take();
        match from.cmp(&to) {
            Ordering::Less => {
                let reason =
                    stop.unwrap_or_else(|| format!("at position {position}: a later frame"));
                self.gaps.push(Gap { from, to, reason });
            }
            Ordering::Equal => {}
            Ordering::Greater => {
                let problem = format!("at position {position}: a frame of offset {to} once more");
                self.problems.push(problem);
            }
        }
        self.end_offset = from.max(header.end_offset());
    }

    /// All offsets that are not there but should be before those of a segment that starts at
    /// `bound`: what a successor has is no longer its predecessor's to hold.
    fn missing(&self, bound: Option<u64>, acknowledged: u64) -> Vec<Gap> {
        let from = self.end_offset;
        let to = bound.unwrap_or(acknowledged).max(from);
        let reason = self
            .stop
            .clone()
            .unwrap_or_else(|| "the file ends".to_owned());
        let behind = (to > from || self.stop.is_some()).then_some(Gap { from, to, reason });
        let all = self.gaps.iter().cloned().chain(behind);
        let bound = bound.unwrap_or(u64::MAX);
        all.filter(|gap| gap.from <= bound)
            .map(|gap| Gap {
                to: gap.to.min(bound),
                ..gap
            })
            .collect()
    }
}

/// Says what there is to say about a segment that is followed by one that starts at `bound`; how
/// many problems that is.
fn report(
    segment: &Segment,
    bound: Option<u64>,
    acknowledged: u64,
    out: &mut impl Write,
) -> Result<usize, SegmentError> {
    let Segment {
        path,
        base_offset,
        end_offset,
        frames,
        records,
        ..
    } = segment;
    let path = path.display();
    let mut problems = segment.problems.clone();
    for Gap { from, to, reason } in segment.missing(bound, acknowledged) {
        if from < to.min(acknowledged) {
            let to = to.min(acknowledged);
            problems.push(format!(
                "offsets {from}..{to} were acknowledged and are lost, {reason}"
            ));
        } else {
            writeln!(
                out,
                "tail\t{path}\toffset {from}, never acknowledged, {reason}"
            )?;
        }
    }
    for problem in &problems {
        writeln!(out, "DAMAGED\t{path}\t{problem}")?;
    }
    let state = if problems.is_empty() { "ok" } else { "read" };
    let counts = format!("{frames} frames, {records} records");
    writeln!(
        out,
        "{state}\t{path}\toffsets {base_offset}..{end_offset}, {counts}"
    )?;
    Ok(problems.len())
}
