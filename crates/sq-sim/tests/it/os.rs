//! The machine's file system, in both executors, beside the simulated one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use sq_sim::{
    FileHandle, FileSystem, InMemoryFileSystem, OsFileSystem, PathError, os_error_number,
    poll_n_then_drop,
};

use crate::{b, block_on, p};

const EXECUTORS: [fn() -> OsFileSystem; 4] = [
    OsFileSystem::inline,
    OsFileSystem::blocking_pool,
    || OsFileSystem::inline().with_direct_writes(),
    || OsFileSystem::blocking_pool().with_direct_writes(),
];

#[test]
fn writes_more_buffers_than_one_call_takes() {
    for fs in EXECUTORS.map(|new| new()) {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            let file = fs.create_new(&dir.path().join("a")).await.unwrap();
            let data: Vec<Bytes> = (0..2500_u32)
                .map(|i| Bytes::from(i.to_be_bytes()[..(i % 5) as usize].to_vec()))
                .collect();
            file.write_and_sync_at(3, &data).await.unwrap();
            let expected = [&[0; 3], data.concat().as_slice()].concat();
            assert_eq!(file.read_at(0, usize::MAX).await.unwrap(), expected);
            assert_eq!(
                fs.open_read_only(&dir.path().join("a"))
                    .await
                    .unwrap()
                    .len()
                    .await
                    .unwrap(),
                expected.len() as u64
            );
        });
    }
}

/// A request that lies about a length must not make the reader allocate it.
#[test]
fn a_read_allocates_no_more_than_the_file_holds() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let fs = OsFileSystem::inline();
        let file = fs.create_new(&dir.path().join("a")).await.unwrap();
        file.write_at(0, &b(b"abc")).await.unwrap();
        assert_eq!(file.read_at(1, usize::MAX).await.unwrap(), &b"bc"[..]);
        assert_eq!(file.read_at(u64::MAX, usize::MAX).await.unwrap(), &b""[..]);
    });
}

#[test]
fn zeroes_whole_pages_and_ragged_edges() {
    for fs in EXECUTORS.map(|new| new()) {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            let file = fs.create_new(&dir.path().join("a")).await.unwrap();
            for (start, len, held) in [
                (0, 4096, 8192),
                (1, 4095, 8192),
                (100, 700_000, 900_000),
                (4096, 300_000, 5000),
                (5, 2, 10),
                (8192, 0, 100),
            ] {
                file.set_len(0).await.unwrap();
                let mut model = vec![7_u8; held];
                file.write_at(0, &b(&model)).await.unwrap();
                file.zero_range(start as u64, len as u64).await.unwrap();
                if len > 0 {
                    model.resize(held.max(start + len), 0);
                    model[start..start + len].fill(0);
                }
                assert!(
                    file.read_at(0, usize::MAX).await.unwrap() == model,
                    "{start}+{len}"
                );
            }
        });
    }
}

#[test]
fn a_lock_conflicts_within_the_process_too() {
    for fs in EXECUTORS.map(|new| new()) {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            let path = dir.path().join("lock");
            let held = fs.lock(&path).await.unwrap();
            let refused = fs.lock(&path).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WouldBlock);
            drop(held);
            fs.lock(&path).await.unwrap();
        });
    }
}

#[test]
fn an_error_names_its_path_and_number() {
    for fs in EXECUTORS.map(|new| new()) {
        block_on(async {
            let error = fs.open(p("/nowhere/at/all")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert_eq!(os_error_number(&error), Some(2));
            let inner = error
                .get_ref()
                .unwrap()
                .downcast_ref::<PathError>()
                .unwrap();
            assert_eq!(
                (inner.operation, inner.path.as_path()),
                ("open", p("/nowhere/at/all"))
            );
            assert!(
                error
                    .to_string()
                    .starts_with("open /nowhere/at/all: No such file"),
                "{error}"
            );
        });
    }
}

#[test]
fn a_dropped_write_on_the_pool_still_takes_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let one_thread = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build();
    one_thread.unwrap().block_on(async {
        let file = OsFileSystem::blocking_pool()
            .create_new(&path)
            .await
            .unwrap();
        let data = b(b"whole");
        let (release, busy) = std::sync::mpsc::channel::<()>();
        let occupant = tokio::task::spawn_blocking(move || busy.recv());
        assert!(
            poll_n_then_drop(file.write_and_sync_at(0, &data), 1)
                .await
                .is_none()
        );
        release.send(()).unwrap();
        occupant.await.unwrap().unwrap();
        // The only thread of the pool takes this call after that one.
        assert_eq!(file.read_at(0, 9).await.unwrap(), &b"whole"[..]);
    });
}

#[test]
fn a_sync_can_be_asked_for_on_every_kind_of_handle() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let fs = OsFileSystem::inline();
        let path = dir.path().join("x/y");
        fs.create_dir_all(&path).await.unwrap();
        fs.sync_dir(&path).await.unwrap();
        let file = fs.create_new(&path.join("a")).await.unwrap();
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        let missing = fs.sync_dir(&dir.path().join("z")).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    });
}

/// One step of the comparison. Paths are picked from a few, so that steps meet.
#[derive(Clone, Debug)]
enum Step {
    CreateNew(usize),
    Open(usize),
    OpenReadOnly(usize),
    Rename(usize, usize),
    RemoveFile(usize),
    RemoveDir(usize),
    ListDir(usize),
    CreateDirAll(usize),
    SyncDir(usize),
    Write(usize, u64, Vec<u8>),
    Zero(usize, u64, u64),
    Allocate(usize, u64, u64),
    SetLen(usize, u64),
    Read(usize, u64, usize),
    Len(usize),
    Sync(usize),
}

const PATHS: [&str; 7] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"];

fn step() -> impl Strategy<Value = Step> {
    let path = 0..PATHS.len();
    let at = 0_u64..10_000;
    prop_oneof![
        3 => path.clone().prop_map(Step::CreateNew),
        3 => path.clone().prop_map(Step::Open),
        1 => path.clone().prop_map(Step::OpenReadOnly),
        2 => (path.clone(), path.clone()).prop_map(|(a, b)| Step::Rename(a, b)),
        1 => path.clone().prop_map(Step::RemoveFile),
        1 => path.clone().prop_map(Step::RemoveDir),
        1 => path.clone().prop_map(Step::ListDir),
        2 => path.clone().prop_map(Step::CreateDirAll),
        1 => path.prop_map(Step::SyncDir),
        4 => (0_usize..4, at.clone(), prop::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(h, o, d)| Step::Write(h, o, d)),
        1 => (0_usize..4, at.clone(), 0_u64..20_000).prop_map(|(h, o, l)| Step::Zero(h, o, l)),
        1 => (0_usize..4, at.clone(), 1_u64..9000).prop_map(|(h, o, l)| Step::Allocate(h, o, l)),
        2 => (0_usize..4, at.clone()).prop_map(|(h, l)| Step::SetLen(h, l)),
        3 => (0_usize..4, at, 0_usize..20_000).prop_map(|(h, o, l)| Step::Read(h, o, l)),
        1 => (0_usize..4).prop_map(Step::Len),
        1 => (0_usize..4).prop_map(Step::Sync),
    ]
}

/// A file system, a directory in it, and the handles opened last.
struct Side {
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    handles: Vec<Box<dyn FileHandle>>,
}

impl Side {
    /// What a step answers, as text: the value, or the kind of the error.
    async fn take(&mut self, step: &Step) -> String {
        fn text<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
            format!("{:?}", result.map_err(|e| e.kind()))
        }
        let path = |i: &usize| self.root.join(PATHS.get(*i).unwrap());
        let opened = match step {
            Step::CreateNew(i) => Some(self.fs.create_new(&path(i)).await),
            Step::Open(i) => Some(self.fs.open(&path(i)).await),
            Step::OpenReadOnly(i) => Some(self.fs.open_read_only(&path(i)).await),
            _ => None,
        };
        if let Some(opened) = opened {
            return text(opened.map(|handle| {
                self.handles.insert(0, handle);
                self.handles.truncate(4);
            }));
        }
        match step {
            Step::Rename(a, b) => return text(self.fs.rename(&path(a), &path(b)).await),
            Step::RemoveFile(i) => return text(self.fs.remove_file(&path(i)).await),
            Step::RemoveDir(i) => return text(self.fs.remove_dir(&path(i)).await),
            Step::CreateDirAll(i) => return text(self.fs.create_dir_all(&path(i)).await),
            Step::SyncDir(i) => return text(self.fs.sync_dir(&path(i)).await),
            Step::ListDir(i) => return text(self.fs.list_dir(&path(i)).await),
            _ => {}
        }
        let handle = match step {
            Step::Write(h, ..)
            | Step::Zero(h, ..)
            | Step::Allocate(h, ..)
            | Step::SetLen(h, _)
            | Step::Read(h, ..)
            | Step::Len(h)
            | Step::Sync(h) => self.handles.get(*h),
            _ => None,
        };
        let Some(file) = handle else {
            return String::new();
        };
        match step {
            Step::Write(_, offset, data) => text(file.write_at(*offset, &b(data)).await),
            Step::Zero(_, offset, len) => text(file.zero_range(*offset, *len).await),
            Step::Allocate(_, offset, len) => text(file.allocate(*offset, *len).await),
            Step::SetLen(_, len) => text(file.set_len(*len).await),
            Step::Read(_, offset, len) => text(file.read_at(*offset, *len).await),
            Step::Sync(_) => text(file.sync_data().await),
            _ => text(file.len().await),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Without faults the simulated file system answers as the real one does, also where it
    /// refuses.
    #[test]
    fn the_simulated_one_answers_as_the_real_one(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let simulated = InMemoryFileSystem::new(0);
        block_on(async {
            simulated.create_dir_all(Path::new("/root")).await.unwrap();
            let mut sides = [
                Side {
                    fs: Arc::new(OsFileSystem::inline()),
                    root: dir.path().to_owned(),
                    handles: Vec::new(),
                },
                Side { fs: Arc::new(simulated), root: "/root".into(), handles: Vec::new() },
            ];
            for step in &steps {
                let real = sides[0].take(step).await;
                let simulated = sides[1].take(step).await;
                prop_assert_eq!(real, simulated, "at {:?}", step);
            }
            Ok(())
        })?;
    }
}

/// What is done to one file through one handle.
#[derive(Clone, Debug)]
enum Change {
    /// Durable, as many bytes as given and then zeros to the end of the page.
    Padded(u64, Vec<u8>),
    Durable(u64, Vec<u8>),
    Plain(u64, Vec<u8>),
    Zero(u64, u64),
    SetLen(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0_u64..40_000;
    let bytes = prop_oneof![1_usize..100, 1_usize..30_000];
    let data = bytes.prop_flat_map(|len| prop::collection::vec(1_u8..255, len));
    prop_oneof![
        6 => (at.clone(), data.clone()).prop_map(|(o, d)| Change::Padded(o, d)),
        1 => (at.clone(), data.clone()).prop_map(|(o, d)| Change::Durable(o, d)),
        2 => (at.clone(), data).prop_map(|(o, d)| Change::Plain(o, d)),
        1 => (at.clone(), 0_u64..20_000).prop_map(|(o, l)| Change::Zero(o, l)),
        1 => at.prop_map(Change::SetLen),
    ]
}

fn overwrite(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).unwrap();
    let end = start + data.len();
    content.resize(content.len().max(end), 0);
    content.splice(start..end, data.iter().copied());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A direct write goes to whole pages, of which most begin with what an earlier write left there.
    #[test]
    fn direct_writes_leave_the_bytes_that_were_written_and_no_others(
        changes in prop::collection::vec((any::<bool>(), change()), 1..30),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let fs = OsFileSystem::inline().with_direct_writes();
        let mut content = Vec::new();
        let mut head = 0;
        block_on(async {
            let file = fs.create_new(&path).await.unwrap();
            let reader = fs.open_read_only(&path).await.unwrap();
            for (goes_on, change) in &changes {
                // Most writes of a log go on where the one before ended, padding aside.
                let place = |offset: u64| if *goes_on { head } else { offset };
                let mut data = Vec::new();
                match change {
                    Change::Padded(o, d) => {
                        let (o, mut padded) = (place(*o), d.clone());
                        let end = (o + d.len() as u64).next_multiple_of(4096);
                        padded.resize(usize::try_from(end - o).unwrap(), 0);
                        file.write_and_sync_at(o, &b(&padded)).await.unwrap();
                        overwrite(&mut content, o, &padded);
                        head = o + d.len() as u64;
                    }
                    Change::Durable(o, d) => {
                        file.write_and_sync_at(place(*o), &b(d)).await.unwrap();
                        overwrite(&mut content, place(*o), d);
                    }
                    Change::Plain(o, d) => {
                        file.write_at(place(*o), &b(d)).await.unwrap();
                        overwrite(&mut content, place(*o), d);
                    }
                    Change::Zero(o, len) => {
                        file.zero_range(*o, *len).await.unwrap();
                        data.resize(usize::try_from(*len).unwrap(), 0);
                        if *len > 0 {
                            overwrite(&mut content, *o, &data);
                        }
                    }
                    Change::SetLen(len) => {
                        file.set_len(*len).await.unwrap();
                        content.resize(usize::try_from(*len).unwrap(), 0);
                    }
                }
                let read = reader.read_at(0, usize::MAX).await.unwrap();
                prop_assert!(read == content, "after {:?}", change);
            }
            Ok(())
        })?;
    }
}
