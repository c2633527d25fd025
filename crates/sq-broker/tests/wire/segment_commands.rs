//! `sq segment` on what the writer writes, and on what can become of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::records::Compression as Codec;
use sq_broker::batch::assign;
use sq_broker::cli::{SegmentCommand, SegmentError};
use sq_sim::{FileSystem, InMemoryFileSystem};
use sq_storage::wal::segment::SEGMENT_HEADER_LEN;
use sq_storage::{Batch, MaintenanceMode, TopicName, WalConfig, WalWriter};

use crate::batches::batch_of;

type Fs = Arc<InMemoryFileSystem>;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

const PARTITION: &str = "/data/orders/3";

/// A partition of `count` batches of two records each, two batches to a segment.
async fn partition(count: usize, close: bool) -> Fs {
    let (fs, writer) = begun(count, MaintenanceMode::Inline).await;
    if close {
        writer.close().await.unwrap();
    }
    fs
}

/// The same, and its writer.
async fn begun(count: usize, maintenance: MaintenanceMode) -> (Fs, WalWriter<InMemoryFileSystem>) {
    let fs = Arc::new(InMemoryFileSystem::new(1));
    fs.create_dir_all(Path::new("/data")).await.unwrap();
    let batch = batch_of(&[5, 6], Codec::Gzip);
    let config = WalConfig {
        max_segment_bytes: 2 * (64 + batch.len() as u64) + 200,
        maintenance,
        ..WalConfig::new("/data")
    };
    let topic = TopicName::new("orders").unwrap();
    let mut writer = WalWriter::new(Arc::clone(&fs), config, topic, 3)
        .await
        .unwrap();
    for _ in 0..count {
        append(&mut writer).await;
    }
    (fs, writer)
}

async fn append(writer: &mut WalWriter<InMemoryFileSystem>) {
    let base = i64::try_from(writer.next_offset()).unwrap();
    let batch = Batch {
        payload: assign(&batch_of(&[5, 6], Codec::Gzip), base, 0).to_vec(),
        record_count: 2,
        max_timestamp_ms: 6,
        leader_epoch: 0,
    };
    assert_eq!(writer.append_batches(&[batch]).await.unwrap(), 1);
}

fn file(base_offset: u64) -> PathBuf {
    Path::new(PARTITION).join(format!("{base_offset:020}.wal"))
}

async fn read(fs: &Fs, path: &Path) -> Vec<u8> {
    let file = fs.open_read_only(path).await.unwrap();
    file.read_at(0, usize::MAX >> 1).await.unwrap().to_vec()
}

async fn overwrite(fs: &Fs, path: &Path, at: u64, bytes: &[u8]) {
    let file = fs.open(path).await.unwrap();
    file.write_at(at, &[Bytes::copy_from_slice(bytes)])
        .await
        .unwrap();
}

async fn run(fs: &Fs, command: SegmentCommand) -> (String, Result<(), SegmentError>) {
    let mut out = Vec::new();
    let result = command.execute(&**fs, &mut out).await;
    (String::from_utf8(out).unwrap(), result)
}

async fn verify(fs: &Fs, dir: &str) -> (String, Result<(), SegmentError>) {
    run(fs, SegmentCommand::Verify { dir: dir.into() }).await
}

#[test]
fn what_the_writer_writes_is_whole() {
    block_on(async {
        let fs = partition(7, true).await;
        for dir in ["/data", "/data/orders", PARTITION] {
            let (out, result) = verify(&fs, dir).await;
            assert!(result.is_ok(), "{out}");
            assert!(
                out.contains("1 partitions, 4 segments, 14 records, 0 problems"),
                "{out}"
            );
            assert_eq!(out.matches("ok\t").count(), 4, "{out}");
            assert!(out.contains("offsets 4..8"), "{out}");
        }
        // What the broker has put away is no part of its log.
        fs.rename(Path::new("/data/orders"), Path::new("/data/@deleted-1"))
            .await
            .unwrap();
        assert!(matches!(
            verify(&fs, "/data").await.1,
            Err(SegmentError::NothingThere { .. })
        ));
    });
}

/// A crash right behind a switch leaves records in a file that has no segment's name; they were passed over, and
/// with them what they said of the segment before.
#[test]
fn a_successor_without_its_name_counts_from_its_first_record_on() {
    block_on(async {
        let (fs, mut writer) = begun(7, MaintenanceMode::Handed).await;
        writer.take_no_step_alone();
        let prepared = writer.preparation(Some(0x5a)).run().await.unwrap();
        let spare = writer.preparation(Some(0x5b)).run().await.unwrap();
        writer.arm(prepared).unwrap();
        let (out, result) = verify(&fs, "/data").await;
        assert!(result.is_ok(), "{out}");
        assert_eq!(out.matches("prepared\t/data").count(), 2, "{out}");
        assert_eq!(out.matches("\tno record yet").count(), 2, "{out}");
        assert!(out.contains("4 segments, 14 records, 0 problems"), "{out}");

        assert!(writer.switch());
        append(&mut writer).await;
        drop((writer, spare));
        let (out, result) = verify(&fs, "/data").await;
        assert!(result.is_ok(), "{out}");
        let line =
            "ok\t/data/orders/3/000000000000005a.prepared\toffsets 14..16, 1 frames, 2 records";
        assert!(out.contains(line), "{out}");
        assert!(out.contains("5 segments, 16 records, 0 problems"), "{out}");

        // The segment before it has lost its end, and only its successor knows.
        let active = file(12);
        let len = read(&fs, &active).await.len();
        overwrite(&fs, &active, 32, &vec![0; len - 32]).await;
        let (out, result) = verify(&fs, "/data").await;
        assert!(matches!(result, Err(SegmentError::Damage { .. })), "{out}");
        let lost = "offsets 12..14 were acknowledged and are lost";
        assert!(out.contains(lost), "{out}");

        // What no frame explains is told, and is no damage: it may never have been acknowledged.
        let spare = Path::new(PARTITION).join("000000000000005b.prepared");
        overwrite(&fs, &spare, 32, b"something else").await;
        let (out, _) = verify(&fs, "/data").await;
        assert!(
            out.contains("no frame, and yet something at position 32: "),
            "{out}"
        );
    });
}

#[test]
fn dump_shows_header_frames_offsets_and_checksums() {
    block_on(async {
        let fs = partition(7, true).await;
        let (out, result) = run(&fs, SegmentCommand::Dump { file: file(4) }).await;
        assert!(result.is_ok());
        assert!(
            out.contains("topic      orders (6 bytes)\npartition  3\n"),
            "{out}"
        );
        assert!(out.contains("\n32\t4..6\tbatch\t2\t"), "{out}");
        assert!(out.contains("\t6..8\tbatch\t2\t"), "{out}");
        let words = "\tok\tbatch ok, compression gzip, producer 4711 epoch 3 sequence 100\n";
        assert_eq!(out.matches(words).count(), 2, "{out}");
        assert!(out.contains("\tend, and "), "{out}");

        // A flipped bit in the first frame's body.
        let mut byte = read(&fs, &file(4)).await[150];
        byte ^= 4;
        overwrite(&fs, &file(4), 150, &[byte]).await;
        let (out, _) = run(&fs, SegmentCommand::Dump { file: file(4) }).await;
        let bad = out
            .lines()
            .position(|line| line.starts_with("32\t4..6") && line.ends_with("BAD"));
        let why = out.lines().nth(bad.unwrap() + 1).unwrap();
        assert!(
            why.contains("the checksum is") && why.contains("the segment goes on"),
            "{why}"
        );
        assert!(
            out.contains("\t6..8\tbatch\t2\t"),
            "the one behind it is shown: {out}"
        );
    });
}

/// One bit, anywhere in the frames of a sealed segment, took the records behind it along, or went
/// unnoticed. It must be found, and cost no other frame.
#[test]
fn every_flipped_bit_of_a_sealed_segment_is_found_and_named() {
    block_on(async {
        let fs = partition(6, true).await;
        let path = file(4);
        let good = read(&fs, &path).await;
        let frame = 64 + batch_of(&[5, 6], Codec::Gzip).len();
        for bit in 0..8 * (SEGMENT_HEADER_LEN + 2 * frame) {
            let at = bit / 8;
            overwrite(&fs, &path, at as u64, &[good[at] ^ (1 << (bit % 8))]).await;
            let (out, result) = verify(&fs, "/data").await;
            assert!(
                matches!(result, Err(SegmentError::Damage { count: 1 })),
                "bit {bit}: {out}"
            );
            let line = out
                .lines()
                .find(|line| line.starts_with("DAMAGED"))
                .unwrap();
            assert!(
                line.contains("00000000000000000004.wal"),
                "bit {bit}: {line}"
            );
            if at >= SEGMENT_HEADER_LEN {
                let lost = if at < SEGMENT_HEADER_LEN + frame {
                    "4..6"
                } else {
                    "6..8"
                };
                assert!(
                    line.contains(&format!("offsets {lost} were acknowledged")),
                    "{line}"
                );
                assert!(
                    out.contains("10 records"),
                    "only the one frame is lost: {out}"
                );
            }
            overwrite(&fs, &path, at as u64, &good[at..=at]).await;
        }
    });
}

#[test]
fn a_sealed_segment_that_is_gone_is_missed() {
    block_on(async {
        let fs = partition(7, true).await;
        fs.remove_file(&file(4)).await.unwrap();
        let (out, result) = verify(&fs, "/data").await;
        assert!(matches!(result, Err(SegmentError::Damage { .. })), "{out}");
        assert!(out.contains("00000000000000000004.wal\tsealed by the manifest, and not there"));
        assert!(
            out.contains("offsets 4..8 were acknowledged and are lost, the file ends"),
            "{out}"
        );
    });
}

#[test]
fn what_retention_let_go_of_is_not_missed() {
    // Its files are freed in steps, and half of one was reported as lost records.
    block_on(async {
        let fs = partition(7, true).await;
        let topic = TopicName::new("orders").unwrap();
        let config = WalConfig::new("/data");
        let mut writer = WalWriter::new(Arc::clone(&fs), config, topic, 3)
            .await
            .unwrap();
        writer.purge_to(6).await.unwrap();
        drop(writer);
        let half = fs.open(&file(0)).await.unwrap();
        half.set_len(100).await.unwrap();
        let (out, result) = verify(&fs, PARTITION).await;
        result.unwrap();
        assert!(out.contains(&format!("{:020}.wal", 4)), "{out}");
        assert!(!out.contains(&format!("{:020}.wal", 0)), "{out}");
    });
}

#[test]
fn a_segment_in_another_partitions_place_is_found() {
    block_on(async {
        let fs = partition(7, true).await;
        fs.create_dir_all(Path::new("/data/orders/4"))
            .await
            .unwrap();
        let elsewhere = Path::new("/data/orders/4/00000000000000000000.wal");
        fs.rename(&file(0), elsewhere).await.unwrap();
        let (out, result) = verify(&fs, "/data/orders/4").await;
        assert!(
            matches!(result, Err(SegmentError::Damage { count: 1 })),
            "{out}"
        );
        assert!(out.contains("partition 3, not of"), "{out}");
    });
}

/// The last write before a crash, half of it on the disk, is nothing that anyone was promised.
#[test]
fn a_torn_tail_that_nobody_was_promised_is_no_damage() {
    block_on(async {
        let fs = partition(2, false).await;
        let frame = 64 + batch_of(&[5, 6], Codec::Gzip).len() as u64;
        let handle = fs.open(&file(0)).await.unwrap();
        let torn = 32 + 2 * frame - 7;
        handle.set_len(torn).await.unwrap();
        let (out, result) = verify(&fs, "/data").await;
        assert!(result.is_ok(), "{out}");
        assert!(
            out.contains("tail\t") && out.contains("offset 2, never acknowledged"),
            "{out}"
        );
        assert!(out.contains("0 problems"), "{out}");
    });
}

/// A file that was another segment's before still holds its frames behind the new segment's end.
#[test]
fn what_an_earlier_segment_left_in_a_file_is_no_part_of_it() {
    block_on(async {
        let fs = partition(2, false).await;
        let earlier = read(&partition(6, true).await, &file(4)).await;
        let frame = 64 + batch_of(&[5, 6], Codec::Gzip).len();
        let end = SEGMENT_HEADER_LEN + 2 * frame;
        let zeros = (end + 4).next_multiple_of(4096);
        overwrite(&fs, &file(0), 5, &[2]).await;
        overwrite(&fs, &file(0), end as u64, &vec![0; zeros - end]).await;
        let left = &earlier[SEGMENT_HEADER_LEN..];
        overwrite(&fs, &file(0), zeros as u64, left).await;
        let (out, result) = verify(&fs, "/data").await;
        assert!(result.is_ok(), "{out}");
        assert!(out.contains("1 segments, 4 records, 0 problems"), "{out}");
        assert!(!out.contains("tail\t"), "{out}");
        let (out, result) = run(&fs, SegmentCommand::Dump { file: file(0) }).await;
        assert!(result.is_ok(), "{out}");
        assert!(out.starts_with("version    2\n"), "{out}");
        assert_eq!(out.matches("\tbatch\t").count(), 2, "{out}");

        // With its only word of the id gone, an older frame is not taken for it either.
        let name = file(0);
        fs.remove_file(&Path::new(PARTITION).join("manifest"))
            .await
            .unwrap();
        overwrite(&fs, &name, SEGMENT_HEADER_LEN as u64, &vec![7; 2 * frame]).await;
        let (out, result) = verify(&fs, "/data").await;
        assert!(result.is_ok(), "{out}");
        assert!(out.contains("1 segments, 0 records"), "{out}");
        assert!(out.contains("tail\t"), "{out}");
    });
}

/// A batch whose frame is right and whose own checksum is not was damaged before it was written.
#[test]
fn a_bad_batch_in_a_good_frame_is_found() {
    block_on(async {
        let fs = partition(1, true).await;
        let mut bytes = read(&fs, &file(0)).await;
        let batch = batch_of(&[5, 6], Codec::Gzip);
        let body = SEGMENT_HEADER_LEN + 64;
        bytes[body + batch.len() - 1] ^= 1;
        let covered = crc32fast::hash(&bytes[SEGMENT_HEADER_LEN + 8..body + batch.len()]);
        bytes[SEGMENT_HEADER_LEN + 4..SEGMENT_HEADER_LEN + 8]
            .copy_from_slice(&covered.to_be_bytes());
        overwrite(&fs, &file(0), 0, &bytes).await;
        let (out, result) = verify(&fs, "/data").await;
        assert!(
            matches!(result, Err(SegmentError::Damage { count: 1 })),
            "{out}"
        );
        assert!(out.contains("the record batch's CRC-32C is"), "{out}");
        let (out, _) = run(&fs, SegmentCommand::Dump { file: file(0) }).await;
        assert!(
            out.contains("\tok\tBAD: the record batch's CRC-32C is"),
            "{out}"
        );
    });
}

#[test]
fn what_is_not_there_or_no_segment_is_said_to_be_so() {
    block_on(async {
        let fs = partition(1, true).await;
        fs.create_dir_all(Path::new("/empty")).await.unwrap();
        let (_, result) = verify(&fs, "/empty").await;
        assert_eq!(
            result.unwrap_err().to_string(),
            "/empty: there is no segment here"
        );
        let (_, result) = verify(&fs, "/nowhere").await;
        assert!(matches!(result, Err(SegmentError::Io { .. })));
        let manifest = Path::new(PARTITION).join("manifest");
        let (_, result) = run(&fs, SegmentCommand::Dump { file: manifest }).await;
        assert!(matches!(result, Err(SegmentError::NoSegment { .. })));
        let (_, result) = run(&fs, SegmentCommand::Dump { file: file(99) }).await;
        assert!(matches!(result, Err(SegmentError::Io { .. })));
    });
}
