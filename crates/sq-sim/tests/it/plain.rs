//! Without faults it is a file system like any other.

use std::io::ErrorKind;

use sq_sim::{
    EntryKind, Errno, FileSystem, InMemoryFileSystem, Keep, OpKind, Outcome, os_error_number,
};

use crate::{b, block_on, durable_file, p};

#[test]
fn reads_what_was_written() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = fs.create_new(p("/a")).await.unwrap();
        file.write_at(2, &[b(b"hel")[0].clone(), b(b"lo")[0].clone()])
            .await
            .unwrap();
        assert_eq!(file.read_at(0, 100).await.unwrap(), &b"\0\0hello"[..]);
        assert_eq!(file.read_at(4, 2).await.unwrap(), &b"ll"[..]);
        assert_eq!(file.read_at(7, 5).await.unwrap(), &b""[..]);
        assert_eq!(file.read_at(u64::MAX, usize::MAX).await.unwrap(), &b""[..]);
        assert_eq!(file.len().await.unwrap(), 7);
        file.set_len(3).await.unwrap();
        file.allocate(0, 5).await.unwrap();
        file.zero_range(0, 1).await.unwrap();
        assert_eq!(file.read_at(0, 100).await.unwrap(), &b"\0\0h\0\0"[..]);
    });
}

#[test]
fn refuses_what_a_file_system_refuses() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        fs.create_dir_all(p("/d/e")).await.unwrap();
        fs.create_dir_all(p("/d/e")).await.unwrap();
        fs.create_new(p("/d/f")).await.unwrap();
        let kind = |e: std::io::Error| e.kind();
        assert_eq!(
            fs.create_new(p("/d/f")).await.map_err(kind).err(),
            Some(ErrorKind::AlreadyExists)
        );
        assert_eq!(
            fs.open(p("/x")).await.map_err(kind).err(),
            Some(ErrorKind::NotFound)
        );
        assert_eq!(
            fs.open(p("/d")).await.map_err(kind).err(),
            Some(ErrorKind::IsADirectory)
        );
        assert_eq!(
            fs.create_new(p("/x/y")).await.map_err(kind).err(),
            Some(ErrorKind::NotFound)
        );
        assert_eq!(
            fs.remove_dir(p("/d")).await.map_err(kind),
            Err(ErrorKind::DirectoryNotEmpty)
        );
        assert_eq!(
            fs.remove_file(p("/d/e")).await.map_err(kind),
            Err(ErrorKind::IsADirectory)
        );
        assert_eq!(
            fs.list_dir(p("/d/f")).await.map_err(kind),
            Err(ErrorKind::NotADirectory)
        );
        assert_eq!(
            fs.rename(p("/d"), p("/d/e/f")).await.map_err(kind),
            Err(ErrorKind::InvalidInput)
        );
        let read_only = fs.open_read_only(p("/d/f")).await.unwrap();
        assert!(read_only.write_at(0, &b(b"x")).await.is_err());
        assert!(read_only.set_len(1).await.is_err());
    });
}

#[test]
fn lists_directories_sorted() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        fs.create_dir_all(p("/d/sub")).await.unwrap();
        fs.create_new(p("/d/z"))
            .await
            .unwrap()
            .write_at(0, &b(b"123"))
            .await
            .unwrap();
        fs.create_new(p("/d/a")).await.unwrap();
        let entries = fs.list_dir(p("/d")).await.unwrap();
        let seen: Vec<_> = entries
            .iter()
            .map(|e| (e.name.to_str().unwrap(), e.kind, e.len))
            .collect();
        assert_eq!(
            seen,
            [
                ("a", EntryKind::File, 0),
                ("sub", EntryKind::Directory, 0),
                ("z", EntryKind::File, 3)
            ]
        );
    });
}

#[test]
fn an_unlinked_file_stays_open() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"kept").await;
        fs.remove_file(p("/a")).await.unwrap();
        fs.create_new(p("/a")).await.unwrap();
        assert_eq!(file.read_at(0, 9).await.unwrap(), &b"kept"[..]);
    });
}

#[test]
fn a_lock_is_held_until_its_guard_is_dropped_or_its_process_dies() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let guard = fs.lock(p("/l")).await.unwrap();
        assert_eq!(
            fs.lock(p("/l")).await.unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(guard);
        let old = fs.lock(p("/l")).await.unwrap();
        fs.process_crash();
        let new = fs.lock(p("/l")).await.unwrap();
        drop(old);
        assert_eq!(
            fs.lock(p("/l")).await.unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(new);
        assert_eq!(fs.open_files(), 0);
    });
}

#[test]
fn unsynced_bytes_and_names_go_and_synced_ones_stay() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = fs.create_new(p("/a")).await.unwrap();
        file.write_and_sync_at(0, &b(b"synced")).await.unwrap();
        fs.sync_dir(p("/")).await.unwrap();
        file.write_at(6, &b(b" not")).await.unwrap();
        fs.create_new(p("/b"))
            .await
            .unwrap()
            .write_and_sync_at(0, &b(b"x"))
            .await
            .unwrap();
        assert_eq!(fs.read_durable("/a").unwrap(), b"synced");
        fs.power_loss(Keep::None);
        assert_eq!(fs.read_file("/a").unwrap(), b"synced");
        assert_eq!(fs.files(), [p("/a")]);
    });
}

#[test]
fn everything_stays_if_asked() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = fs.create_new(p("/a")).await.unwrap();
        file.write_at(0, &b(b"abc")).await.unwrap();
        fs.power_loss(Keep::All);
        assert_eq!(fs.read_durable("/a").unwrap(), b"abc");
    });
}

#[test]
fn a_handle_of_a_dead_process_is_dead() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/a", b"").await;
        file.write_at(0, &b(b"cached")).await.unwrap();
        fs.process_crash();
        assert!(file.write_at(0, &b(b"X")).await.is_err());
        assert!(file.sync_data().await.is_err());
        assert_eq!(
            fs.open(p("/a")).await.unwrap().read_at(0, 9).await.unwrap(),
            &b"cached"[..]
        );
    });
}

#[test]
fn an_error_names_its_path_and_number() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = durable_file(&fs, "/dir/a", b"").await;
        fs.fail_next(OpKind::SyncData, Errno::Io);
        let error = file.sync_data().await.unwrap_err();
        assert_eq!(os_error_number(&error), Some(5));
        assert!(error.to_string().starts_with("sync /dir/a: "), "{error}");
        file.sync_data().await.unwrap();
        fs.fail_next(OpKind::WriteAt, Errno::NoSpace);
        let error = file.write_at(0, &b(b"x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    });
}

#[test]
fn the_trace_tells_what_was_done() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        let file = fs.create_new(p("/a")).await.unwrap();
        file.write_and_sync_at(3, &b(b"1234")).await.unwrap();
        fs.rename(p("/a"), p("/b")).await.unwrap();
        assert!(fs.open(p("/a")).await.is_err());
        fs.process_crash();
        let ops = fs.trace();
        assert_eq!(
            (ops[1].kind, ops[1].offset, ops[1].len),
            (OpKind::WriteAt, 3, 4)
        );
        assert_eq!(ops[4].outcome, Outcome::Failed(ErrorKind::NotFound));
        assert_eq!(
            fs.trace_text(),
            "1 CreateNew /a 0+0 ok\n2 WriteAt /a 3+4 ok\n3 SyncData /a 0+0 ok\n\
             4 Rename /a -> /b 0+0 ok\n5 Open /a 0+0 NotFound\n5 ProcessCrash  0+0 ok\n"
        );
        assert_eq!(
            fs.paths_touched().into_iter().collect::<Vec<_>>(),
            [p("/a"), p("/b")]
        );
        assert_eq!(fs.operations(), 5);
    });
}

/// A task that outlived its process went on renaming files under the next one.
#[test]
fn a_process_that_died_touches_nothing_any_more() {
    block_on(async {
        let disk = InMemoryFileSystem::new(1);
        let old = disk.for_this_process();
        old.create_new(p("/a")).await.unwrap();
        let rename = old.rename(p("/a"), p("/b"));
        disk.process_crash();
        assert!(rename.await.is_err());
        assert!(old.create_new(p("/c")).await.is_err());
        disk.for_this_process().open(p("/a")).await.unwrap();
        assert_eq!(disk.files(), [p("/a")]);
    });
}
