//! Names are durable only once their directory is synced.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sq_sim::{FileSystem, InMemoryFileSystem, Keep};

use crate::{block_on, durable_file, p};

/// Every outcome of a power loss after `change`, as lists of path and content, over many seeds.
fn outcomes(change: &impl AsyncFn(&InMemoryFileSystem)) -> BTreeSet<Vec<(PathBuf, String)>> {
    (0..200)
        .map(|seed| {
            let fs = InMemoryFileSystem::new(seed);
            block_on(async { change(&fs).await });
            fs.power_loss(Keep::Prefix);
            let content = |path: PathBuf| {
                let bytes = fs.read_file(&path).unwrap();
                (path, String::from_utf8(bytes).unwrap())
            };
            fs.files().into_iter().map(content).collect()
        })
        .collect()
}

fn files(of: &[(&str, &str)]) -> Vec<(PathBuf, String)> {
    of.iter()
        .map(|(path, content)| (PathBuf::from(path), (*content).to_owned()))
        .collect()
}

#[test]
fn an_unsynced_rename_leaves_the_old_name_or_the_new_one() {
    let seen = outcomes(&async |fs| {
        durable_file(fs, "/a", b"A").await;
        fs.rename(p("/a"), p("/b")).await.unwrap();
    });
    assert_eq!(
        seen,
        BTreeSet::from([files(&[("/a", "A")]), files(&[("/b", "A")])])
    );
}

#[test]
fn an_unsynced_rename_over_a_file_leaves_one_of_the_two() {
    let seen = outcomes(&async |fs| {
        durable_file(fs, "/a", b"A").await;
        durable_file(fs, "/b", b"B").await;
        fs.rename(p("/a"), p("/b")).await.unwrap();
    });
    assert_eq!(
        seen,
        BTreeSet::from([files(&[("/a", "A"), ("/b", "B")]), files(&[("/b", "A")])])
    );
}

#[test]
fn an_unsynced_removal_may_come_back() {
    let seen = outcomes(&async |fs| {
        durable_file(fs, "/a", b"A").await;
        fs.remove_file(p("/a")).await.unwrap();
    });
    assert_eq!(seen, BTreeSet::from([files(&[]), files(&[("/a", "A")])]));
}

#[test]
fn unsynced_names_are_kept_and_lost_independently() {
    let seen = outcomes(&async |fs| {
        fs.create_new(p("/a")).await.unwrap();
        fs.create_new(p("/b")).await.unwrap();
    });
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_change_needs_those_it_builds_on() {
    let seen = outcomes(&async |fs| {
        fs.create_new(p("/a")).await.unwrap();
        fs.rename(p("/a"), p("/b")).await.unwrap();
        fs.rename(p("/b"), p("/c")).await.unwrap();
    });
    let one = |name| files(&[(name, "")]);
    assert_eq!(
        seen,
        BTreeSet::from([files(&[]), one("/a"), one("/b"), one("/c")])
    );
}

#[test]
fn a_file_goes_with_its_unsynced_directory() {
    let seen = outcomes(&async |fs| {
        fs.create_dir_all(p("/d")).await.unwrap();
        fs.create_new(p("/d/a")).await.unwrap();
        fs.sync_dir(p("/d")).await.unwrap();
    });
    assert_eq!(seen, BTreeSet::from([files(&[]), files(&[("/d/a", "")])]));
}

#[test]
fn a_synced_directory_keeps_its_names() {
    let seen = outcomes(&async |fs| {
        durable_file(fs, "/d/a", b"A").await;
        durable_file(fs, "/d/gone", b"").await;
        fs.rename(p("/d/a"), p("/d/b")).await.unwrap();
        fs.remove_file(p("/d/gone")).await.unwrap();
        fs.create_new(p("/d/new")).await.unwrap();
        fs.sync_dir(p("/d")).await.unwrap();
    });
    assert_eq!(
        seen,
        BTreeSet::from([files(&[("/d/b", "A"), ("/d/new", "")])])
    );
}

#[test]
fn a_rename_across_directories_never_loses_a_durable_file() {
    for synced in ["/x", "/y", "/"] {
        let seen = outcomes(&async |fs| {
            durable_file(fs, "/x/a", b"A").await;
            fs.create_dir_all(p("/y")).await.unwrap();
            fs.sync_dir(p("/")).await.unwrap();
            fs.rename(p("/x/a"), p("/y/a")).await.unwrap();
            fs.create_new(p("/x/a")).await.unwrap();
            fs.sync_dir(p(synced)).await.unwrap();
        });
        assert!(
            seen.iter()
                .all(|files| files.iter().any(|(_, content)| content == "A"))
        );
    }
}

#[test]
fn a_file_put_there_by_hand_is_durable_whatever_was_there() {
    block_on(async {
        let fs = InMemoryFileSystem::new(1);
        fs.create_new(p("/a")).await.unwrap();
        fs.create_new(p("/other")).await.unwrap();
        fs.delete_file("/a").unwrap();
        fs.write_file("/d/a", *b"x").unwrap();
        fs.power_loss(Keep::All);
        assert_eq!(fs.files(), [p("/d/a"), p("/other")]);
        assert!(fs.delete_file("/a").is_err());
    });
}
