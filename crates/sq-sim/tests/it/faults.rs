//! Operations that fail, do half of it, do something else, or take long.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sq_sim::{
    Clock, Crashed, Effect, Errno, Fault, FileSystem, InMemoryFileSystem, Keep, OpKind,
    PathPattern, VirtualClock, os_error_number, poll_n_then_drop,
};

use crate::{b, block_on, durable_file, p};

#[test]
fn a_short_write_leaves_a_prefix() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"....").await;
        for (bytes, left) in [(0, "...."), (1, "a..."), (3, "abc."), (9, "abcde")] {
            fs.write_file("/a", *b"....").unwrap();
            fs.inject(Fault::new(Effect::ShortWrite {
                bytes,
                errno: Errno::NoSpace,
            }));
            let error = file
                .write_at(0, &[b(b"ab"), b(b"cde")].concat())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            assert_eq!(fs.read_file("/a").unwrap(), left.as_bytes());
        }
    });
}

#[test]
fn space_is_taken_by_new_bytes_only_and_given_back() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"12345").await;
        fs.set_free_space(Some(3));
        let error = file.write_at(3, &b(b"abcdefgh")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(fs.read_file("/a").unwrap(), b"123abcde");
        file.write_at(0, &b(b"ABCDEFGH")).await.unwrap();
        assert!(file.write_at(8, &b(b"x")).await.is_err());
        file.set_len(6).await.unwrap();
        assert_eq!(fs.free_space(), Some(2));
        // A hole takes no space until it is written.
        file.set_len(100).await.unwrap();
        file.write_at(98, &b(b"xy")).await.unwrap();
        assert_eq!(
            (fs.free_space(), fs.allocated_bytes("/a").unwrap()),
            (Some(0), 8)
        );
        assert!(file.write_at(50, &b(b"x")).await.is_err());
        fs.set_free_space(Some(5));
        assert!(file.allocate(0, 100).await.is_err());
        assert_eq!(fs.free_space(), Some(5), "all of it or none");
        fs.set_free_space(Some(0));
        assert!(file.zero_range(40, 2).await.is_err());
        fs.remove_file(p("/a")).await.unwrap();
        assert_eq!(fs.free_space(), Some(0), "it is open still");
        drop(file);
        assert_eq!(fs.free_space(), Some(8));
    });
}

#[test]
fn a_removal_that_is_undone_takes_its_space_back() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        durable_file(&fs, "/a", b"12345").await;
        fs.set_free_space(Some(0));
        fs.remove_file(p("/a")).await.unwrap();
        assert_eq!(fs.free_space(), Some(5));
        fs.power_loss(Keep::None);
        assert_eq!((fs.free_space(), fs.files()), (Some(0), vec!["/a".into()]));
        fs.create_new(p("/b")).await.unwrap();
        fs.remove_file(p("/a")).await.unwrap();
        fs.power_loss(Keep::All);
        assert_eq!(fs.free_space(), Some(5));
    });
}

#[test]
fn bytes_that_are_lost_take_no_space() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"12").await;
        fs.set_free_space(Some(10));
        file.write_at(2, &b(b"345")).await.unwrap();
        fs.power_loss(Keep::None);
        assert_eq!(
            (fs.free_space(), fs.allocated_bytes("/a").unwrap()),
            (Some(10), 2)
        );
    });
}

#[test]
fn allocation_takes_space_that_writes_need_no_more() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = fs.create_new(p("/a")).await.unwrap();
        fs.set_free_space(Some(10));
        file.allocate(0, 10).await.unwrap();
        file.write_at(0, &b(b"0123456789")).await.unwrap();
        assert_eq!(fs.free_space(), Some(0));
    });
}

#[test]
fn reads_and_writes_fail_with_eio() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"abc").await;
        for kind in [
            OpKind::ReadAt,
            OpKind::WriteAt,
            OpKind::Len,
            OpKind::Allocate,
        ] {
            fs.fail_next(kind, Errno::Io);
        }
        let numbers = [
            file.read_at(0, 1).await.map(drop).unwrap_err(),
            file.write_at(0, &b(b"x")).await.unwrap_err(),
            file.len().await.map(drop).unwrap_err(),
            file.allocate(0, 9).await.unwrap_err(),
        ];
        assert!(numbers.iter().all(|e| os_error_number(e) == Some(5)));
        assert_eq!(fs.read_file("/a").unwrap(), b"abc");
        assert_eq!(fs.faults_left(), 0);
    });
}

#[test]
fn a_bad_sector_fails_the_reads_that_touch_it() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", &[1; 2048]).await;
        let bad = Fault::new(Effect::Fail(Errno::Io))
            .on(&[OpKind::ReadAt])
            .bytes(512..1024);
        fs.inject(bad.always());
        file.read_at(0, 512).await.unwrap();
        file.read_at(0, 513).await.unwrap_err();
        file.read_at(1023, 1).await.unwrap_err();
        file.read_at(1024, 100).await.unwrap();
        file.len().await.unwrap();
    });
}

#[test]
fn open_files_are_capped() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"").await;
        let lock = fs.lock(p("/lock")).await.unwrap();
        fs.set_max_open_files(Some(fs.open_files()));
        let full = [
            fs.open(p("/a")).await.map(drop).unwrap_err(),
            fs.create_new(p("/b")).await.map(drop).unwrap_err(),
            fs.lock(p("/c")).await.map(drop).unwrap_err(),
        ];
        assert!(full.iter().all(|e| os_error_number(e) == Some(24)));
        assert_eq!(fs.files(), [p("/a"), p("/lock")]);
        file.write_and_sync_at(0, &b(b"x")).await.unwrap();
        drop(lock);
        fs.open(p("/a")).await.unwrap();
        assert_eq!(fs.open_files(), 1);
    });
}

#[test]
fn a_flipped_bit_stays_flipped() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", &[0, 0, 0]).await;
        fs.flip_bit("/a", 1, 7).unwrap();
        assert_eq!(file.read_at(0, 3).await.unwrap(), &[0, 128, 0][..]);
        fs.power_loss(Keep::None);
        assert_eq!(fs.read_file("/a").unwrap(), [0, 128, 0]);
        fs.flip_bit("/a", 1, 7).unwrap();
        assert_eq!(fs.read_file("/a").unwrap(), [0, 0, 0]);
        assert_eq!(
            fs.flip_bit("/a", 3, 0).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    });
}

#[test]
fn a_read_can_be_wrong_by_one_bit() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", &[0; 100]).await;
        fs.inject(Fault::new(Effect::FlipBitOfRead));
        let wrong = file.read_at(0, 100).await.unwrap();
        assert_eq!(wrong.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        assert_eq!(file.read_at(0, 100).await.unwrap(), vec![0; 100]);
    });
}

/// A frame that is whole and well-formed, in the place of another.
#[test]
fn a_write_can_land_elsewhere() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"aaaaaa").await;
        durable_file(&fs, "/b", b"bbbbbb").await;
        let elsewhere = Effect::Misdirect {
            path: Some("/b".into()),
            offset: 1,
        };
        fs.inject(Fault::new(elsewhere).on(&[OpKind::WriteAt]));
        file.write_and_sync_at(2, &b(b"XY")).await.unwrap();
        fs.inject(Fault::new(Effect::Misdirect {
            path: None,
            offset: 5,
        }));
        file.write_and_sync_at(0, &b(b"ZZ")).await.unwrap();
        assert_eq!(
            file.read_at(0, 9).await.unwrap(),
            &b"ZZXYaa"[..],
            "the cache hides it"
        );
        assert_eq!(fs.read_file("/b").unwrap(), b"bbbbbb");
    });
    fs.evict_clean_pages();
    assert_eq!(fs.read_file("/a").unwrap(), b"aaaaaZ");
    assert_eq!(fs.read_file("/b").unwrap(), b"bXYbbb");
    fs.power_loss(Keep::All);
    assert_eq!(fs.read_file("/b").unwrap(), b"bXYbbb");
}

#[test]
fn a_write_can_be_dropped_without_a_word() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        fs.inject(Fault::new(Effect::DropWrite));
        file.write_and_sync_at(0, &b(b"newer")).await.unwrap();
        assert_eq!(file.read_at(0, 9).await.unwrap(), &b"newer"[..]);
    });
    fs.power_loss(Keep::All);
    assert_eq!(fs.read_file("/a").unwrap(), b"old\0\0");
}

#[test]
fn a_failure_may_come_after_the_effect() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        durable_file(&fs, "/a", b"").await;
        for kind in [OpKind::Rename, OpKind::Open, OpKind::Lock] {
            fs.inject(Fault::new(Effect::FailAfterwards(Errno::Io)).on(&[kind]));
        }
        fs.rename(p("/a"), p("/b")).await.unwrap_err();
        fs.open(p("/b")).await.unwrap_err();
        fs.lock(p("/lock")).await.unwrap_err();
        assert_eq!(
            (fs.files(), fs.open_files()),
            (vec!["/b".into(), "/lock".into()], 0)
        );
        fs.lock(p("/lock")).await.unwrap();
    });
}

#[test]
fn faults_find_their_operations() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let wal = durable_file(&fs, "/d/a.wal", b"").await;
        let index = durable_file(&fs, "/d/a.index", b"").await;
        let fault = || Fault::new(Effect::Fail(Errno::Io)).on(&[OpKind::SyncData]);
        fs.inject(fault().path_ends_with(".index").skip(1).times(2));
        wal.sync_data().await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            index.sync_all().await.unwrap();
            seen.push(index.sync_data().await.is_ok());
        }
        assert_eq!(seen, [true, false, false, true]);
        fs.inject(fault().at_op(fs.operations() + 2));
        assert_eq!(
            [wal.sync_data().await.is_ok(), wal.sync_data().await.is_ok()],
            [true, false]
        );
        fs.inject(fault().path(PathPattern::Under("/d".into())).always());
        wal.sync_data().await.unwrap_err();
        index.sync_data().await.unwrap_err();
        fs.clear_faults();
        wal.sync_data().await.unwrap();
        fs.inject(fault().always().one_in(10));
        let mut failed = 0;
        for _ in 0..1000 {
            failed += u32::from(wal.sync_data().await.is_err());
        }
        assert!((50..200).contains(&failed), "{failed} of 1000");
    });
}

#[test]
fn operations_take_time_on_the_clock() {
    block_on(async {
        let clock = VirtualClock::new();
        let fs = InMemoryFileSystem::with_clock(1, Arc::new(clock.clone()));
        let file = durable_file(&fs, "/a", b"").await;
        fs.inject(Fault::delay(Duration::from_millis(10)).on(&[OpKind::SyncData]));
        fs.inject(Fault::delay(Duration::from_millis(4)).on(&[OpKind::WriteAt]));
        let start = clock.now();
        let data = b(b"x");
        // One call is one hop, as long as its longer half.
        let mut write = Box::pin(file.write_and_sync_at(0, &data));
        while poll_n_then_drop(&mut write, 1).await.is_none() {
            clock.advance_to_next();
        }
        assert_eq!(clock.now() - start, Duration::from_millis(10));
        assert_eq!(fs.read_durable("/a").unwrap(), b"x");
        file.len().await.unwrap();
    });
}

/// A sync covers what was written before it was called. What is written while it runs was once
/// taken for covered as well.
#[test]
fn a_sync_covers_only_what_was_written_before_it() {
    block_on(async {
        let clock = VirtualClock::new();
        let fs = InMemoryFileSystem::with_clock(1, Arc::new(clock.clone()));
        let file = durable_file(&fs, "/a", b"").await;
        fs.inject(Fault::delay(Duration::from_millis(10)).on(&[OpKind::SyncData]));
        file.write_at(0, &b(b"before")).await.unwrap();
        let mut sync = file.sync_data();
        assert!(poll_n_then_drop(&mut sync, 2).await.is_none());
        file.write_at(6, &b(b" while")).await.unwrap();
        clock.advance(Duration::from_millis(10));
        sync.await.unwrap();
        assert_eq!(fs.read_durable("/a").unwrap(), b"before");
    });
}

#[test]
fn everything_fails_after_the_kth_operation() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"old").await;
        fs.crash_after(2);
        file.len().await.unwrap();
        // The crash falls between the write and the sync.
        let error = file.write_and_sync_at(0, &b(b"new")).await.unwrap_err();
        assert!(matches!(error, sq_sim::DurableWriteError::Sync(_)));
        assert!(fs.is_crashed());
        let error = fs.list_dir(p("/")).await.unwrap_err();
        assert!(error.to_string().contains("crashed"), "{error}");
        assert!(file.read_at(0, 3).await.is_err());
        assert_eq!(fs.operations(), fs.trace().len() as u64);
        fs.process_crash();
        assert!(!fs.is_crashed());
        let file = fs.open(p("/a")).await.unwrap();
        assert_eq!(file.read_at(0, 3).await.unwrap(), &b"new"[..]);
        fs.power_loss(Keep::None);
        assert_eq!(fs.read_file("/a").unwrap(), b"old");
        fs.crash_after(0);
        assert!(fs.open(p("/a")).await.is_err());
    });
}

#[test]
fn a_process_can_die_in_the_middle_of_a_write() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"").await;
        fs.inject(Fault::new(Effect::Crash { bytes: 2 }).on(&[OpKind::WriteAt]));
        let error = file.write_at(0, &b(b"four")).await.unwrap_err();
        let named = error
            .get_ref()
            .unwrap()
            .downcast_ref::<sq_sim::PathError>()
            .unwrap();
        assert!(named.source.get_ref().unwrap().is::<Crashed>());
        assert_eq!(fs.read_file("/a").unwrap(), b"fo");
        assert!(file.len().await.is_err());
        fs.process_crash();
        fs.open(p("/a")).await.unwrap();
    });
}
