//! Whatever is done to a file, a power loss leaves only what the model allows.

use bytes::Bytes;
use proptest::prelude::*;
use sq_sim::{Effect, Fault, FileHandle, FileSystem, InMemoryFileSystem, Keep, SyncFailure};

use crate::{block_on, p};

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
    FailedSync(SyncFailure),
    Crash,
    PowerLoss(Keep),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u64..3000, prop::collection::vec(1_u8..4, 1..1200))
            .prop_map(|(offset, data)| Step::Write(offset, data)),
        2 => (0_u64..3000).prop_map(Step::SetLen),
        3 => Just(Step::Sync),
        1 => prop::sample::select(&SyncFailure::ALL[..]).prop_map(Step::FailedSync),
        1 => Just(Step::Crash),
        2 => prop::sample::select(&Keep::ALL[..]).prop_map(Step::PowerLoss),
    ]
}

/// What is known of one byte: the value that is durable, if that is certain.
type Certain = Vec<Option<u8>>;

struct Run {
    fs: InMemoryFileSystem,
    file: Box<dyn FileHandle>,
    cached: Vec<u8>,
    durable: Certain,
    /// The shortest the file was since it was last certain.
    least_len: usize,
    /// Whether no sync has failed since: what it did to cache and disk is not followed here.
    cache_certain: bool,
}

impl Run {
    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Write(offset, data) => {
                let start = usize::try_from(*offset).unwrap();
                let end = start + data.len();
                self.file
                    .write_at(*offset, &[Bytes::copy_from_slice(data)])
                    .await
                    .unwrap();
                self.cached.resize(self.cached.len().max(end), 0);
                self.cached.splice(start..end, data.iter().copied());
                for (position, &byte) in (start..end).zip(data) {
                    if let Some(known) = self.durable.get_mut(position)
                        && *known != Some(byte)
                    {
                        *known = None;
                    }
                }
            }
            Step::SetLen(len) => {
                self.file.set_len(*len).await.unwrap();
                let len = usize::try_from(*len).unwrap();
                self.cached.resize(len, 0);
                self.durable.truncate(len);
                self.least_len = self.least_len.min(len);
            }
            Step::Sync => {
                self.file.sync_data().await.unwrap();
                if self.cache_certain {
                    self.settle();
                }
            }
            Step::FailedSync(failure) => {
                self.fs.inject(Fault::new(Effect::FailSync(*failure)));
                self.file.sync_data().await.unwrap_err();
                self.cache_certain = false;
                self.cached = self.fs.read_file("/a").unwrap();
            }
            Step::Crash => {
                self.fs.process_crash();
                self.file = self.fs.open(p("/a")).await.unwrap();
            }
            Step::PowerLoss(keep) => {
                self.fs.power_loss(*keep);
                self.file = self.fs.open(p("/a")).await.unwrap();
                self.check_loss(*keep)?;
                self.cached = self.fs.read_file("/a").unwrap();
                self.settle();
                self.cache_certain = true;
            }
        }
        prop_assert_eq!(&self.fs.read_file("/a").unwrap(), &self.cached);
        Ok(())
    }

    fn settle(&mut self) {
        self.durable = self.cached.iter().copied().map(Some).collect();
        self.least_len = self.cached.len();
    }

    fn check_loss(&self, keep: Keep) -> Result<(), TestCaseError> {
        let left = self.fs.read_file("/a").unwrap();
        prop_assert_eq!(&left, &self.fs.read_durable("/a").unwrap());
        if keep == Keep::All && self.cache_certain {
            prop_assert_eq!(&left, &self.cached);
        }
        if self.cache_certain {
            prop_assert!(left.len() >= self.least_len);
        }
        for (position, known) in self.durable.iter().enumerate() {
            if let Some(byte) = known {
                prop_assert_eq!(left.get(position), Some(byte), "durable byte {}", position);
            }
        }
        Ok(())
    }
}

proptest! {
    /// Bytes that were synced and not changed since are there after any power loss; a read sees
    /// what was written; everything stays if all is kept.
    #[test]
    fn durable_bytes_are_durable(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..40)
    ) {
        block_on(async {
            let fs = InMemoryFileSystem::new(seed);
            fs.write_file("/a", *b"").unwrap();
            let file = fs.open(p("/a")).await.unwrap();
            let mut run = Run {
                fs,
                file,
                cached: Vec::new(),
                durable: Vec::new(),
                least_len: 0,
                cache_certain: true,
            };
            for step in &steps {
                run.take(step).await?;
            }
            Ok::<(), TestCaseError>(())
        })?;
    }

    /// With nothing kept the file is as at its last sync, byte for byte.
    #[test]
    fn nothing_kept_is_the_last_sync(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..40)
    ) {
        block_on(async {
            let fs = InMemoryFileSystem::new(seed);
            fs.write_file("/a", *b"").unwrap();
            let file = fs.open(p("/a")).await.unwrap();
            let mut synced = Vec::new();
            for step in &steps {
                match step {
                    Step::Write(offset, data) => {
                        file.write_at(*offset, &[Bytes::copy_from_slice(data)]).await.unwrap();
                    }
                    Step::SetLen(len) => file.set_len(*len).await.unwrap(),
                    Step::Sync => {
                        file.sync_data().await.unwrap();
                        synced = fs.read_file("/a").unwrap();
                    }
                    Step::FailedSync(_) | Step::Crash | Step::PowerLoss(_) => {}
                }
            }
            prop_assert_eq!(&fs.read_durable("/a").unwrap(), &synced);
            fs.power_loss(Keep::None);
            prop_assert_eq!(&fs.read_file("/a").unwrap(), &synced);
            Ok(())
        })?;
    }
}
