//! The manifest across versions of its format.

use sq_sim::{Effect, Fault, OpKind};
use sq_storage::wal::manifest::ManifestContent;

use crate::oracle::Oracle;
use crate::support::{DIR, Machine, Writer, block_on, segment, value};

/// The same manifest as version 1 wrote it.
fn as_version_1(manifest: &[u8]) -> Vec<u8> {
    let mut old = b"SQMF\x00\x01\x00\x00".to_vec();
    for line in manifest[8..].chunks_exact(64) {
        let sealed = line[0] == 2;
        let flags = line[1] & 1;
        let mut fields = [&[line[0], flags], &line[2..24], &[0; 20]].concat();
        if sealed {
            fields[24..40].copy_from_slice(&line[24..40]);
        }
        let crc = crc32fast::hash(&fields);
        old.extend(fields);
        old.extend(crc.to_be_bytes());
    }
    old
}

/// A log of several segments, and what it holds.
async fn rolled() -> (Machine, Writer, Oracle) {
    let machine = Machine::new(51).with_segment_bytes(900);
    let mut oracle = Oracle::default();
    let mut log = machine.open().await;
    for n in 0..12 {
        oracle.append(&mut log, value(n)).await.unwrap();
    }
    (machine, log, oracle)
}

#[test]
fn a_manifest_of_version_1_is_believed_and_written_anew() {
    block_on(async {
        let (machine, log, mut oracle) = rolled().await;
        drop(log);
        let path = format!("{DIR}/manifest");
        let new = machine.fs.read_file(&path).unwrap();
        let old = as_version_1(&new);
        assert!(ManifestContent::decode(&old).is_intact());
        machine.fs.write_file(&path, old).unwrap();

        let mut log = machine.open().await;
        let report = log.recovery_report();
        assert_eq!(
            report.segments_scanned, 1,
            "sealed ones are taken by its word"
        );
        assert_eq!(
            (report.damaged_manifest_lines, &report.damage[..]),
            (0, &[][..])
        );
        oracle.check(&log).await;
        log.close_active_segment().await.unwrap();
        drop(log);
        let written = machine.fs.read_file(&path).unwrap();
        assert_eq!(written[..8], *b"SQMF\x00\x02\x00\x00");
        let content = ManifestContent::decode(&written);
        assert!(content.is_intact() && !content.is_older);
        assert_eq!(content.entries.len(), machine.segments().len());
        let last = content.entries.last().and_then(|e| e.seal).unwrap();
        assert_eq!(last.end_offset, oracle.end());
        assert!(last.times.is_some(), "what was written here has its times");
        oracle.check(&machine.open().await).await;
    });
}

#[test]
fn a_seal_says_when_its_records_are_from() {
    block_on(async {
        let machine = Machine::new(52);
        let mut log = machine.open().await;
        let wall = sq_sim::Clock::wall_ms(&machine.clock);
        log.append(None, b"a", &[], 700).await.unwrap();
        machine.clock.advance(std::time::Duration::from_secs(5));
        log.append(None, b"b", &[], 300).await.unwrap();
        machine.clock.advance(std::time::Duration::from_secs(5));
        log.close_active_segment().await.unwrap();
        drop(log);
        let sealed_as = || {
            let manifest = machine.fs.read_file(format!("{DIR}/manifest")).unwrap();
            let seal = ManifestContent::decode(&manifest).entries[0].seal.unwrap();
            seal.times.map(|t| (t.max_timestamp_ms, t.last_append_ms))
        };
        assert_eq!(sealed_as(), Some((700, wall + 5_000)));
        // Where the manifest is lost, the frames say it.
        machine.fs.delete_file(format!("{DIR}/manifest")).unwrap();
        let mut log = machine.open().await;
        log.close_active_segment().await.unwrap();
        log.append(None, b"c", &[], 0).await.unwrap();
        drop(log);
        assert_eq!(machine.segments().first(), Some(&segment(0)));
        assert_eq!(sealed_as(), Some((700, wall + 5_000)));
    });
}

#[test]
fn a_bit_that_is_lost_when_a_torn_manifest_is_read_again_does_not_bring_purged_records_back() {
    // Power failed while a line was being appended, so each opening read the manifest twice and believed
    // the second reading. A bit that got lost on the way then, in the line that said where the log
    // starts, brought back what had been purged.
    block_on(async {
        let (machine, mut log, mut oracle) = rolled().await;
        oracle.purge_to(&mut log, 1).await.unwrap();
        drop(log);
        let path = format!("{DIR}/manifest");
        let mut torn = machine.fs.read_file(&path).unwrap();
        torn.extend([1; 30]);
        machine.fs.write_file(&path, torn).unwrap();
        for reading in 0..2 {
            for _ in 0..40 {
                let flip = Fault::new(Effect::FlipBitOfRead).on(&[OpKind::ReadAt]);
                let flip = flip.path_ends_with("manifest").skip(reading);
                machine.fs.inject(flip);
                let log = machine.open().await;
                oracle.check(&log).await;
            }
        }
    });
}

#[test]
fn a_line_does_not_go_into_another_manifest_that_took_the_place_of_the_one_known() {
    // A manifest is opened anew for each line. A rewrite whose writer was dropped while it was under way may
    // put its file in place at any time, and what is written there at the place where the other one ended
    // overwrites its lines, or leaves a hole.
    block_on(async {
        for lines in [1, 40] {
            let (machine, mut log, mut oracle) = rolled().await;
            let path = format!("{DIR}/manifest");
            let known = machine.fs.read_file(&path).unwrap();
            let line = &known[8..72];
            let other = [&known[..8], &line.repeat(lines)].concat();
            assert_ne!(other.len(), known.len());
            machine.fs.write_file(&path, other).unwrap();
            oracle.append(&mut log, value(12)).await.unwrap();
            log.close_active_segment().await.unwrap().unwrap();
            drop(log);
            let content = ManifestContent::decode(&machine.fs.read_file(&path).unwrap());
            assert!(content.is_intact(), "{content:?}");
            assert_eq!(content.entries.len(), machine.segments().len());
            assert!(content.entries.iter().all(|entry| entry.seal.is_some()));
            oracle.check(&machine.open().await).await;
        }
    });
}
