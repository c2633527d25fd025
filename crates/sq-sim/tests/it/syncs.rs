//! Syncs that fail.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use sq_sim::{
    DurableWriteError, Effect, Errno, Fault, FileHandle, FileSystem, InMemoryFileSystem, Keep,
    OpKind, SyncFailure, os_error_number,
};

use crate::{b, block_on, durable_file, p};

fn fail(fs: &InMemoryFileSystem, failure: SyncFailure) {
    fs.inject(Fault::new(Effect::FailSync(failure)));
}

/// After a failed sync of "NEW" over "old": what a read sees, what it sees when the next sync has
/// reported success, when the clean pages are evicted, and when the power is gone.
fn states(failure: SyncFailure) -> [String; 4] {
    let fs = InMemoryFileSystem::new(7);
    let seen = || String::from_utf8_lossy(&fs.read_file("/a").unwrap()).into_owned();
    let [first, second] = block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        file.write_at(0, &b(b"NEW!")).await.unwrap();
        fail(&fs, failure);
        let error = file.sync_data().await.unwrap_err();
        assert_eq!(os_error_number(&error), Some(5));
        let first = seen();
        file.sync_data().await.unwrap();
        [first, seen()]
    });
    fs.process_crash();
    assert_eq!(seen(), second, "a new process reads the same pages");
    fs.evict_clean_pages();
    let evicted = seen();
    fs.power_loss(Keep::None);
    [first, second, evicted, seen()]
}

/// Kernels mark the pages clean: a program that retries the sync believes in bytes that are
/// nowhere but in the cache.
#[test]
fn the_next_sync_succeeds_and_persists_nothing() {
    assert_eq!(
        states(SyncFailure::Lost),
        ["NEW!", "NEW!", "old\0", "old\0"]
    );
}

#[test]
fn a_failed_sync_may_have_worked() {
    assert_eq!(states(SyncFailure::Kept), ["NEW!", "NEW!", "NEW!", "NEW!"]);
}

#[test]
fn a_failed_sync_may_bring_the_old_bytes_back() {
    assert_eq!(states(SyncFailure::Reverted), ["old", "old", "old", "old"]);
}

#[test]
fn a_failed_sync_may_leave_the_pages_dirty() {
    assert_eq!(
        states(SyncFailure::StillDirty),
        ["NEW!", "NEW!", "NEW!", "NEW!"]
    );
}

#[test]
fn a_failed_sync_may_tear_the_disk_and_hide_it_in_the_cache() {
    let [first, second, evicted, lost] = states(SyncFailure::Torn);
    assert_eq!([first.as_str(), second.as_str()], ["NEW!", "NEW!"]);
    assert_eq!(evicted, lost);
    assert!((0..50).any(|seed| {
        let fs = InMemoryFileSystem::new(seed);
        block_on(async {
            let file = durable_file(&fs, "/a", &[b'o'; 2048]).await;
            file.write_at(0, &b(&[b'n'; 2048])).await.unwrap();
            fail(&fs, SyncFailure::Torn);
            file.sync_data().await.unwrap_err();
        });
        let disk = fs.read_durable("/a").unwrap();
        disk.contains(&b'o') && disk.contains(&b'n')
    }));
}

/// Opening rewrites what it can't prove durable; that must work although the bytes do not change.
#[test]
fn rewriting_lost_bytes_with_the_same_value_makes_them_durable() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        file.write_at(0, &b(b"new")).await.unwrap();
        fail(&fs, SyncFailure::Lost);
        file.sync_data().await.unwrap_err();
        fs.process_crash();
        let file = fs.open(p("/a")).await.unwrap();
        let seen = file.read_at(0, 3).await.unwrap();
        file.write_and_sync_at(0, &[seen]).await.unwrap();
    });
    assert_eq!(fs.read_durable("/a").unwrap(), b"new");
    fs.power_loss(Keep::None);
    assert_eq!(fs.read_file("/a").unwrap(), b"new");
}

/// A file of `bytes`, over which "LOST" was written at 2 with a sync that lost it.
async fn with_lost_bytes(fs: &InMemoryFileSystem, bytes: &[u8]) -> Box<dyn FileHandle> {
    let file = durable_file(fs, "/a", bytes).await;
    file.write_at(2, &b(b"LOST")).await.unwrap();
    fail(fs, SyncFailure::Lost);
    file.sync_data().await.unwrap_err();
    file
}

#[test]
fn dirty_pages_are_not_evicted() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = with_lost_bytes(&fs, b"........").await;
        file.write_at(3, &b(b"new")).await.unwrap();
        fs.evict_clean_pages();
        assert_eq!(file.read_at(0, 9).await.unwrap(), &b"...new.."[..]);
    });
}

/// The sync after the failed one covers what was written since, and nothing beside it.
#[test]
fn lost_bytes_stay_lost_beside_new_ones() {
    for (seed, keep) in (0..40).flat_map(|seed| Keep::ALL.map(|keep| (seed, keep))) {
        let fs = InMemoryFileSystem::new(seed);
        block_on(async {
            let file = with_lost_bytes(&fs, b"........").await;
            file.write_and_sync_at(0, &b(b"12")).await.unwrap();
            file.write_at(6, &b(b"34")).await.unwrap();
        });
        fs.power_loss(keep);
        let left = fs.read_file("/a").unwrap();
        assert_eq!(&left[..6], b"12....", "seed {seed}, {keep:?}");
    }
}

#[test]
fn lost_bytes_that_are_cut_off_do_not_come_back() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = with_lost_bytes(&fs, b"........").await;
        file.set_len(3).await.unwrap();
        file.set_len(6).await.unwrap();
        fs.evict_clean_pages();
        assert_eq!(file.read_at(0, 9).await.unwrap(), &b"...\0\0\0"[..]);
    });
}

/// The length is metadata: it may reach the disk without the bytes that the failed sync lost.
#[test]
fn a_length_may_outlive_its_lost_bytes() {
    let lens: BTreeSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let fs = InMemoryFileSystem::new(seed);
            block_on(async { with_lost_bytes(&fs, b"12").await });
            fs.power_loss(Keep::Prefix);
            fs.read_file("/a").unwrap()
        })
        .collect();
    assert_eq!(
        lens,
        BTreeSet::from([b"12".to_vec(), b"12\0\0\0\0".to_vec()])
    );
}

#[test]
fn what_was_durable_survives_a_failed_sync() {
    for seed in 0..200 {
        for failure in SyncFailure::ALL {
            let fs = InMemoryFileSystem::new(seed);
            block_on(async {
                let file = durable_file(&fs, "/a", &[b'o'; 1000]).await;
                file.write_at(300, &b(&[b'n'; 300])).await.unwrap();
                fail(&fs, failure);
                file.sync_all().await.unwrap_err();
            });
            fs.power_loss(Keep::Mixed);
            let left = fs.read_file("/a").unwrap();
            assert_eq!(
                (&left[..300], &left[600..]),
                (&[b'o'; 300][..], &[b'o'; 400][..])
            );
        }
    }
}

#[test]
fn the_caller_learns_whether_the_write_or_the_sync_failed() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"").await;
        fs.fail_next(OpKind::SyncData, Errno::Io);
        let error = file.write_and_sync_at(0, &b(b"x")).await.unwrap_err();
        assert!(matches!(error, DurableWriteError::Sync(_)));
        fs.fail_next(OpKind::WriteAt, Errno::NoSpace);
        let error = file.write_and_sync_at(0, &b(b"x")).await.unwrap_err();
        assert!(matches!(error, DurableWriteError::Write(e) if e.kind() == ErrorKind::StorageFull));
    });
}

/// Its absence was tested everywhere, its failure nowhere.
#[test]
fn a_directory_sync_can_fail() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = fs.create_new(p("/a")).await.unwrap();
        file.write_and_sync_at(0, &b(b"x")).await.unwrap();
        fs.fail_next(OpKind::SyncDir, Errno::Io);
        assert_eq!(
            os_error_number(&fs.sync_dir(p("/")).await.unwrap_err()),
            Some(5)
        );
        assert!(fs.durable_files().is_empty());
        fs.inject(Fault::new(Effect::FailAfterwards(Errno::Io)).on(&[OpKind::SyncDir]));
        fs.sync_dir(p("/")).await.unwrap_err();
        assert_eq!(fs.durable_files(), [p("/a")]);
    });
}

/// The negative control of every test of durability.
#[test]
fn a_drive_can_ignore_syncs() {
    let fs = InMemoryFileSystem::new(1);
    fs.inject(Fault::new(Effect::IgnoreSync).always());
    block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        file.write_and_sync_at(0, &b(b"new")).await.unwrap();
        fs.create_new(p("/b")).await.unwrap();
        fs.sync_dir(p("/")).await.unwrap();
    });
    fs.power_loss(Keep::None);
    assert_eq!(
        (fs.read_file("/a").unwrap(), fs.files()),
        (b"old".to_vec(), vec!["/a".into()])
    );
}
