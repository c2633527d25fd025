//! raft-engine, the log of `TiKV`'s Raft groups. Each caller is a group of its own, as there.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use protobuf::descriptor::UninterpretedOption;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::subject::DurableLog;

/// The most callers that there are.
const CALLERS: usize = 64;

/// An entry: any message does that carries an index and bytes.
struct Indexed;

impl MessageExt for Indexed {
    type Entry = UninterpretedOption;

    fn index(entry: &Self::Entry) -> u64 {
        entry.get_positive_int_value()
    }
}

pub(super) struct RaftEngine {
    engine: Engine,
    callers: Vec<Mutex<Caller>>,
}

/// What a caller uses again and again.
#[derive(Default)]
struct Caller {
    batch: LogBatch,
    entries: Vec<UninterpretedOption>,
    next_index: u64,
}

impl RaftEngine {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let engine = Engine::open(Config {
            dir: dir.to_string_lossy().into_owned(),
            // The records are not to be compressed by anyone.
            batch_compression_threshold: ReadableSize(0),
            ..Config::default()
        })?;
        let caller = |group| Caller {
            next_index: engine.last_index(group).map_or(1, |last| last + 1),
            ..Caller::default()
        };
        let callers = (1..=CALLERS as u64).map(|group| Mutex::new(caller(group)));
        Ok(Self {
            callers: callers.collect(),
            engine,
        })
    }
}

impl DurableLog for RaftEngine {
    fn append(&self, caller: usize, record: &[u8]) -> Result<()> {
        self.append_all(caller, &[record])
    }

    fn append_all(&self, caller: usize, records: &[&[u8]]) -> Result<()> {
        let at = caller % CALLERS;
        let Some(state) = self.callers.get(at) else {
            return Ok(());
        };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let Caller {
            batch,
            entries,
            next_index,
        } = &mut *state;
        entries.resize_with(records.len(), UninterpretedOption::new);
        for (entry, record) in entries.iter_mut().zip(records) {
            let bytes = entry.mut_string_value();
            bytes.clear();
            bytes.extend_from_slice(record);
            entry.set_positive_int_value(*next_index);
            *next_index += 1;
        }
        batch.add_entries::<Indexed>(at as u64 + 1, entries)?;
        self.engine.write(batch, true)?;
        Ok(())
    }
}
