//! okaywal, whose files are recycled once they were checkpointed.

use std::io;
use std::path::Path;

use anyhow::Result;
use okaywal::{
    Configuration, Entry, EntryId, LogManager, ReadChunkResult, SegmentReader, WriteAheadLog,
};

use super::subject::DurableLog;

/// How much a file holds before it is checkpointed, and what it is allocated with: as much as it
/// takes in a run, so that no checkpoint falls into one.
const FILE_BYTES: u32 = 2 << 30;

#[derive(Debug)]
pub(super) struct Okaywal(WriteAheadLog);

impl Okaywal {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let log = Configuration::default_for(dir)
            .checkpoint_after_bytes(FILE_BYTES.into())
            .open(Reader::default())?;
        Ok(Self(log))
    }
}

impl DurableLog for Okaywal {
    fn append(&self, _caller: usize, record: &[u8]) -> Result<()> {
        let mut entry = self.0.begin_entry()?;
        entry.write_chunk(record)?;
        entry.commit()?;
        Ok(())
    }

    fn append_all(&self, _caller: usize, records: &[&[u8]]) -> Result<()> {
        let mut entry = self.0.begin_entry()?;
        for record in records {
            entry.write_chunk(record)?;
        }
        entry.commit()?;
        Ok(())
    }
}

/// Reads what is recovered, and checks it.
#[derive(Debug, Default)]
struct Reader {
    bytes: usize,
}

impl LogManager for Reader {
    fn recover(&mut self, entry: &mut Entry<'_>) -> io::Result<()> {
        while let ReadChunkResult::Chunk(mut chunk) = entry.read_chunk()? {
            self.bytes += chunk.read_all()?.len();
            if !chunk.check_crc()? {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }

    fn checkpoint_to(
        &mut self,
        _last: EntryId,
        _entries: &mut SegmentReader,
        _wal: &WriteAheadLog,
    ) -> io::Result<()> {
        Ok(())
    }
}
