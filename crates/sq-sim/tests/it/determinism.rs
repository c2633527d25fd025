//! A run is its seed.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use sq_sim::{
    Effect, Errno, Fault, FileHandle, FileSystem, InMemoryFileSystem, Keep, OpKind, SyncFailure,
};

use crate::block_on;

/// Three hundred operations on a few files under random faults, with a crash now and then; the
/// operations follow a counter, everything else the seed.
async fn run(seed: u64) -> (String, Vec<Vec<u8>>) {
    let fs = InMemoryFileSystem::new(seed);
    fs.inject(Fault::new(Effect::Fail(Errno::Io)).one_in(10).always());
    fs.inject(
        Fault::new(Effect::FailSync(SyncFailure::Torn))
            .one_in(5)
            .always(),
    );
    let mut handles: Vec<Box<dyn FileHandle>> = Vec::new();
    for i in 0..300_u64 {
        let path = PathBuf::from(format!("/{}", i % 7));
        let outcome: io::Result<()> = match i % 11 {
            0 | 5 => fs
                .create_new(&path)
                .await
                .map(|handle| handles.push(handle)),
            1 => {
                fs.rename(&path, &PathBuf::from(format!("/{}", i % 5)))
                    .await
            }
            2 => fs.sync_dir("/".as_ref()).await,
            _ => match handles.last() {
                Some(file) if i % 3 > 0 => {
                    let data = Bytes::from(vec![u8::try_from(i % 251).unwrap(); 700]);
                    file.write_at(i * 13 % 4000, &[data]).await
                }
                Some(file) => file.sync_data().await,
                None => Ok(()),
            },
        };
        if i % 100 == 99 || outcome.is_err_and(|e| e.kind() == io::ErrorKind::Other) {
            fs.power_loss(Keep::Mixed);
            handles.clear();
        }
    }
    let contents = fs
        .files()
        .iter()
        .map(|path| fs.read_file(path).unwrap())
        .collect();
    (fs.trace_text(), contents)
}

#[test]
fn the_same_seed_gives_the_same_run_byte_for_byte() {
    let runs: Vec<_> = (0..20).map(|seed| block_on(run(seed))).collect();
    let again: Vec<_> = (0..20).map(|seed| block_on(run(seed))).collect();
    assert!(runs == again);
    assert!(runs.windows(2).all(|pair| pair[0] != pair[1]));
    let text = &runs[0].0;
    assert!(text.contains("PowerLoss") && text.contains(&format!("{:?}", OpKind::SyncDir)));
}
