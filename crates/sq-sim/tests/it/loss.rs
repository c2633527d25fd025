//! What a power loss does to the bytes of a file.

use std::collections::BTreeSet;

use sq_sim::{
    ContentFate, EntryFate, FileFate, FileSystem, InMemoryFileSystem, Keep, LengthFate,
    PathPattern, PowerLoss, SectorFate,
};

use crate::{b, block_on, durable_file, p};

const SECTOR: usize = 512;

fn loss(content: ContentFate, length: LengthFate) -> PowerLoss {
    PowerLoss::new(FileFate::new(content).with_length(length), EntryFate::Lost)
}

fn all(fate: SectorFate) -> ContentFate {
    ContentFate::Sectors(vec![fate])
}

/// What is left of a durable file of `old` bytes over which `new` was written at `offset`.
fn after(seed: u64, old: &[u8], offset: u64, new: &[u8], loss: impl Into<PowerLoss>) -> Vec<u8> {
    let fs = InMemoryFileSystem::new(seed);
    block_on(async {
        let file = durable_file(&fs, "/a", old).await;
        file.write_at(offset, &b(new)).await.unwrap();
    });
    fs.power_loss(loss);
    let left = fs.read_file("/a").unwrap();
    assert_eq!(fs.read_durable("/a").unwrap(), left);
    left
}

#[test]
fn a_sector_is_old_new_zero_garbage_or_torn() {
    let (old, new) = ([b'o'; 4 * SECTOR], [b'n'; SECTOR]);
    let one = |seed, fate| {
        let left = after(seed, &old, 1024, &new, loss(all(fate), LengthFate::New));
        assert!(left[..1024] == old[..1024] && left[1536..] == old[1536..]);
        left[1024..1536].to_vec()
    };
    assert_eq!(one(1, SectorFate::Old), old[..512]);
    assert_eq!(one(1, SectorFate::New), new);
    assert_eq!(one(1, SectorFate::Zero), [0; 512]);
    let garbage = one(1, SectorFate::Garbage);
    assert!(garbage.iter().collect::<BTreeSet<_>>().len() > 100);
    assert_ne!(garbage, one(2, SectorFate::Garbage));
    let mut prefixes = BTreeSet::new();
    let mut suffixes = BTreeSet::new();
    for seed in 0..200 {
        let torn = one(seed, SectorFate::Torn);
        let edges: Vec<_> = (1..SECTOR).filter(|&i| torn[i - 1] != torn[i]).collect();
        assert_eq!(edges.len(), 1, "one tear");
        if torn[0] == b'n' {
            prefixes.insert(edges[0])
        } else {
            suffixes.insert(edges[0])
        };
    }
    assert!(prefixes.len() > 50 && suffixes.len() > 50);
}

#[test]
fn a_sector_may_hold_an_earlier_of_several_writes() {
    let seen: BTreeSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let fs = InMemoryFileSystem::new(seed);
            block_on(async {
                let file = durable_file(&fs, "/a", b"000").await;
                file.write_at(0, &b(b"11")).await.unwrap();
                file.write_at(1, &b(b"2")).await.unwrap();
                // Back to its first value: the disk may still have the one between.
                file.write_at(0, &b(b"0")).await.unwrap();
            });
            fs.power_loss(loss(all(SectorFate::Earlier), LengthFate::Old));
            fs.read_file("/a").unwrap()
        })
        .collect();
    let expected: [&[u8]; 4] = [b"000", b"110", b"120", b"020"];
    assert_eq!(seen, expected.into_iter().map(<[u8]>::to_vec).collect());
}

/// Frames share sectors: what was durable in a sector that a later write touched must survive, and
/// so must bytes that recovery rewrites in place with the value they have.
#[test]
fn durable_bytes_beside_new_ones_and_rewritten_ones_stay() {
    let old: Vec<u8> = (0..100).collect();
    let mut new = old[40..60].to_vec();
    new[10..].fill(200);
    for seed in 0..500 {
        let keep = Keep::ALL[usize::try_from(seed % 5).unwrap()];
        let left = after(seed, &old, 40, &new, keep);
        assert!(
            left[..50] == old[..50] && left[60..] == old[60..],
            "seed {seed}, {keep:?}"
        );
    }
}

#[test]
fn a_run_of_sectors_meets_one_fate() {
    let old = vec![b'o'; 64 * SECTOR];
    let new = vec![b'n'; 64 * SECTOR];
    let fates = ContentFate::Sectors(vec![SectorFate::Old, SectorFate::New]);
    let longest = (0..100)
        .map(|seed| {
            let left = after(seed, &old, 0, &new, loss(fates.clone(), LengthFate::New));
            let sectors: Vec<u8> = left.chunks(SECTOR).map(|s| s[0]).collect();
            sectors
                .chunk_by(|a, b| a == b)
                .map(<[u8]>::len)
                .max()
                .unwrap()
        })
        .max();
    // By fair coins alone a run of 16 in 64 comes about once in 2,500 tries.
    assert!(longest >= Some(16));
}

/// Length and content reach the disk apart.
#[test]
fn length_and_content_are_resolved_apart() {
    let grown = |content, length| after(1, b"12", 2, b"345", loss(content, length));
    assert_eq!(grown(ContentFate::Old, LengthFate::New), b"12\0\0\0");
    assert_eq!(grown(ContentFate::New, LengthFate::Old), b"12");
    assert_eq!(grown(ContentFate::New, LengthFate::New), b"12345");
    assert_eq!(grown(ContentFate::Old, LengthFate::Old), b"12");
    let seen: BTreeSet<_> = (0..100)
        .map(|seed| after(seed, b"12", 2, b"345", Keep::Sectors).len())
        .collect();
    assert_eq!(seen, BTreeSet::from([2, 3, 4, 5]));
}

#[test]
fn a_cut_that_was_not_synced_may_not_have_happened() {
    let cut_and_grown = |length| {
        let fs = InMemoryFileSystem::new(1);
        block_on(async {
            let file = durable_file(&fs, "/a", b"abcdef").await;
            file.set_len(2).await.unwrap();
            file.write_at(4, &b(b"E")).await.unwrap();
        });
        fs.power_loss(loss(ContentFate::New, length));
        fs.read_file("/a").unwrap()
    };
    assert_eq!(cut_and_grown(LengthFate::Old), b"abcdEf");
    assert_eq!(cut_and_grown(LengthFate::New), b"ab\0\0E");
}

#[test]
fn bytes_that_were_cut_off_are_at_risk_no_more() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"").await;
        file.write_at(0, &b(b"gone")).await.unwrap();
        file.set_len(0).await.unwrap();
        file.set_len(4).await.unwrap();
    });
    fs.power_loss(loss(all(SectorFate::Garbage), LengthFate::New));
    assert_eq!(fs.read_file("/a").unwrap(), [0; 4]);
}

#[test]
fn a_prefix_is_what_was_written_up_to_a_moment() {
    let seen: BTreeSet<Vec<u8>> = (0..300)
        .map(|seed| {
            let fs = InMemoryFileSystem::new(seed);
            block_on(async {
                let file = durable_file(&fs, "/a", b"....").await;
                file.write_at(2, &b(b"22")).await.unwrap();
                file.write_at(0, &b(b"11")).await.unwrap();
                file.set_len(3).await.unwrap();
            });
            fs.power_loss(Keep::Prefix);
            fs.read_file("/a").unwrap()
        })
        .collect();
    let moments: [&[u8]; 6] = [b"....", b"..2.", b"..22", b"1.22", b"1122", b"112"];
    assert_eq!(seen, moments.into_iter().map(<[u8]>::to_vec).collect());
}

/// Two appended pages reached the disk in the wrong order, and opening the log failed.
#[test]
fn a_test_can_say_which_bytes_survive() {
    let second_page = std::iter::once(4096..9000).collect();
    let left = after(
        1,
        b"",
        0,
        &[b'x'; 8338],
        loss(ContentFate::NewIn(second_page), LengthFate::New),
    );
    assert!(left[..4096] == [0; 4096] && left[4096..] == [b'x'; 4242]);
}

/// The old segment's tail is lost and the new segment's bytes survive: only where files meet their
/// fates independently can a recovery without that case be caught.
#[test]
fn files_meet_their_fates_independently() {
    let run = |seed, keep: Keep| {
        let fs = InMemoryFileSystem::new(seed);
        block_on(async {
            let old = durable_file(&fs, "/old", b"").await;
            let new = durable_file(&fs, "/new", b"").await;
            old.write_at(0, &b(&[1; 700])).await.unwrap();
            new.write_at(0, &b(&[2; 700])).await.unwrap();
        });
        fs.power_loss(keep);
        let whole = |path, value| fs.read_file(path).unwrap() == vec![value; 700];
        (whole("/old", 1), whole("/new", 2))
    };
    for keep in [Keep::Prefix, Keep::Sectors, Keep::Mixed] {
        let first = (0..1000).find(|&seed| run(seed, keep) == (false, true));
        assert!(first.is_some(), "{keep:?}");
    }
    let seen: BTreeSet<_> = (0..1000).map(|seed| run(seed, Keep::Mixed)).collect();
    assert_eq!(seen.len(), 4);
    let none: BTreeSet<_> = (0..100).map(|seed| run(seed, Keep::None)).collect();
    assert_eq!(none, BTreeSet::from([(false, false)]));
}

#[test]
fn a_file_can_have_a_fate_of_its_own() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        for path in ["/d/old", "/d/new"] {
            durable_file(&fs, path, b"")
                .await
                .write_at(0, &b(b"x"))
                .await
                .unwrap();
        }
        fs.rename(p("/d/new"), p("/d/renamed")).await.unwrap();
    });
    let lost = PowerLoss::from(Keep::None);
    fs.power_loss(lost.with_file(
        PathPattern::EndsWith("renamed".into()),
        FileFate::new(ContentFate::New),
    ));
    assert_eq!(fs.read_file("/d/old").unwrap(), b"");
    assert_eq!(fs.read_file("/d/new").unwrap(), b"x");
}

#[test]
fn names_can_be_gone_through_exhaustively() {
    let left = |bits| {
        let fs = InMemoryFileSystem::new(1);
        block_on(async {
            durable_file(&fs, "/a", b"").await;
            fs.create_new(p("/b")).await.unwrap();
            fs.rename(p("/a"), p("/c")).await.unwrap();
            assert_eq!(fs.unsynced_names(), 2);
        });
        fs.power_loss(PowerLoss::from(Keep::None).with_entries(EntryFate::These(bits)));
        fs.files()
    };
    assert_eq!(left(0b00), [p("/a")]);
    assert_eq!(left(0b01), [p("/a"), p("/b")]);
    assert_eq!(left(0b10), [p("/c")]);
    assert_eq!(left(0b11), [p("/b"), p("/c")]);
}

#[test]
fn closing_a_file_makes_nothing_durable() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        file.write_at(0, &b(b"new")).await.unwrap();
        drop(file);
        fs.create_new(p("/b")).await.unwrap();
    });
    fs.power_loss(Keep::None);
    assert_eq!(
        (fs.read_file("/a").unwrap(), fs.files()),
        (b"old".to_vec(), vec!["/a".into()])
    );
}

#[test]
fn a_process_crash_keeps_the_page_cache_until_the_power_goes_too() {
    let fs = InMemoryFileSystem::new(1);
    block_on(async {
        let file = durable_file(&fs, "/a", b"old").await;
        file.write_at(0, &b(b"new")).await.unwrap();
        fs.rename(p("/a"), p("/b")).await.unwrap();
    });
    fs.process_crash();
    assert_eq!(fs.read_file("/b").unwrap(), b"new");
    fs.process_crash();
    fs.power_loss(Keep::None);
    assert_eq!(
        (fs.read_file("/a").unwrap(), fs.files()),
        (b"old".to_vec(), vec!["/a".into()])
    );
}
