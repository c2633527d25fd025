//! Every operation can be stopped before its effect and after it.

use std::collections::BTreeSet;

use sq_sim::{FileSystem, InMemoryFileSystem, OpKind, poll_n_then_drop};

use crate::{b, block_on, durable_file, p};

/// The kinds of the operations that took place, for each number of polls after which one was
/// dropped; the last one was not.
fn dropped_everywhere(
    run: &impl AsyncFn(&InMemoryFileSystem),
) -> Vec<(Vec<OpKind>, InMemoryFileSystem)> {
    block_on(async {
        let mut seen = Vec::new();
        for polls in 0.. {
            let fs = InMemoryFileSystem::new(1);
            let file = durable_file(&fs, "/a", b"old").await;
            fs.take_trace();
            let done = poll_n_then_drop(run(&fs), polls).await;
            drop(file);
            seen.push((fs.trace().iter().map(|op| op.kind).collect(), fs));
            if done.is_some() {
                break;
            }
        }
        seen
    })
}

#[test]
fn a_create_is_dropped_before_and_after_its_effect() {
    let seen = dropped_everywhere(&async |fs| {
        fs.create_new(p("/b")).await.unwrap();
    });
    let kinds: Vec<_> = seen.iter().map(|(kinds, _)| kinds.as_slice()).collect();
    let create = [OpKind::CreateNew];
    assert_eq!(kinds, [&[][..], &[], &create, &create]);
    // A handle that its caller never got is closed.
    assert!(seen.iter().all(|(_, fs)| fs.open_files() == 0));
}

#[test]
fn a_lock_that_its_caller_never_got_is_free() {
    let seen = dropped_everywhere(&async |fs| {
        fs.lock(p("/l")).await.unwrap();
    });
    for (_, fs) in &seen {
        block_on(async { fs.lock(p("/l")).await.unwrap() });
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_durable_write_is_dropped_between_its_write_and_its_sync() {
    let seen = dropped_everywhere(&async |fs| {
        let file = fs.open(p("/a")).await.unwrap();
        fs.take_trace();
        file.write_and_sync_at(0, &b(b"new")).await.unwrap();
    });
    let states: BTreeSet<_> = seen
        .iter()
        .map(|(_, fs)| (fs.read_file("/a").unwrap(), fs.read_durable("/a").unwrap()))
        .collect();
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    assert_eq!(
        states,
        BTreeSet::from([
            (old.clone(), old.clone()),
            (new.clone(), old),
            (new.clone(), new)
        ])
    );
}

#[test]
fn every_operation_gives_way_before_and_after_its_effect() {
    let seen = dropped_everywhere(&async |fs| {
        fs.create_dir_all(p("/d")).await.unwrap();
        let file = fs.open(p("/a")).await.unwrap();
        file.allocate(0, 10).await.unwrap();
        file.zero_range(0, 1).await.unwrap();
        file.set_len(5).await.unwrap();
        file.len().await.unwrap();
        file.read_at(0, 1).await.unwrap();
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        fs.open_read_only(p("/a")).await.unwrap();
        fs.rename(p("/a"), p("/d/a")).await.unwrap();
        fs.sync_dir(p("/d")).await.unwrap();
        fs.list_dir(p("/d")).await.unwrap();
        fs.remove_file(p("/d/a")).await.unwrap();
        fs.remove_dir(p("/d")).await.unwrap();
    });
    // Polls: 0, then two for each of 15 operations, and the one that ends it.
    assert_eq!(seen.len(), 32);
    for (polls, (kinds, _)) in seen.iter().enumerate() {
        assert_eq!(kinds.len(), (polls / 2).min(15));
    }
}
