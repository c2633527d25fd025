//! Writing to the active segment's file, and what a failure there means for it.

use bytes::{Bytes, BytesMut};
use sq_sim::{DurableWriteError, FileSystem};

use super::super::spare;
use super::WalWriter;
use crate::error::{Error, Result};
use crate::frame::{FRAME_HEADER_LEN, FrameHeader, FrameKind};
use crate::reserve::is_out_of_space;

/// Each write ends at a multiple of this, padded with zeros: a partial page that is not in the cache
/// would first be read back.
const PAGE_LEN: usize = 4096;

/// What a write is padded with: at most a page and what has to follow the last frame.
static ZEROS: [u8; 2 * PAGE_LEN] = [0; 2 * PAGE_LEN];

impl<F: FileSystem> WalWriter<F> {
    /// Writes buffers of `bytes` bytes at the segment's position, padded to the page, and moves the
    /// position behind them. The padding is added to the buffers for as long as that takes.
    pub(super) async fn write(
        &mut self,
        buffers: &mut Vec<Bytes>,
        bytes: u64,
        sync: bool,
    ) -> Result<()> {
        let (Some(file), Some(segment)) = (&self.active_segment, &self.segment) else {
            return Ok(());
        };
        let position = self.segment_position;
        let end = position + bytes;
        let count = buffers.len();
        let padded = match segment.recycled {
            // What an earlier segment left follows right behind.
            Some(_) => spare::end_of_zeros(end),
            None => end.next_multiple_of(PAGE_LEN as u64),
        };
        if let Some(zeros) = usize::try_from(padded - end)
            .ok()
            .and_then(|len| ZEROS.get(..len))
            && !zeros.is_empty()
        {
            buffers.push(Bytes::from_static(zeros));
        }
        self.write_under_way = true;
        let written = if sync {
            file.write_and_sync_at(position, buffers).await
        } else {
            file.write_at(position, buffers)
                .await
                .map_err(DurableWriteError::Write)
        };
        buffers.truncate(count);
        let error = match written {
            Ok(()) => {
                self.write_under_way = false;
                self.has_unsynced_write = !sync;
                self.segment_position += bytes;
                return Ok(());
            }
            Err(error) => error,
        };
        let path = segment.path.clone();
        self.unsynced.leave_remains();
        match error {
            DurableWriteError::Write(source) => {
                // What was written of it is overwritten by the next frame; cutting it off as well
                // leaves nothing behind a shorter one.
                let cut = is_out_of_space(&source) && file.set_len(position).await.is_ok();
                self.backlog.ahead().cut(position);
                self.write_under_way = false;
                if !cut {
                    self.poison();
                }
                Err(Error::Write {
                    path,
                    position,
                    source,
                })
            }
            DurableWriteError::Sync(source) => {
                self.write_under_way = false;
                self.poison();
                Err(Error::Sync { path, source })
            }
        }
    }

    /// Writes a mark where no frame says yet that the last records are committed. Call it when the
    /// partition was idle for a moment, so that damage can be told from a tear after a crash. The
    /// mark is not synced: losing it loses no record.
    ///
    /// # Errors
    /// As for [`append`](Self::append), and with the same consequences for the file.
    pub async fn mark(&mut self) -> Result<()> {
        self.write_mark(false).await
    }

    /// Makes what was written without a sync durable: a mark, or frames.
    pub(super) async fn sync_file(&mut self) -> Result<()> {
        let (Some(file), Some(segment)) = (&self.active_segment, &self.segment) else {
            return Ok(());
        };
        if !self.has_unsynced_write {
            return Ok(());
        }
        self.write_under_way = true;
        let synced = file.sync_data().await;
        self.write_under_way = false;
        let path = segment.path.clone();
        if let Err(source) = synced {
            self.poison();
            return Err(Error::Sync { path, source });
        }
        self.has_unsynced_write = false;
        Ok(())
    }

    pub(super) async fn write_mark(&mut self, sync: bool) -> Result<()> {
        self.retire_if_abandoned();
        self.sync().await?;
        let Some(segment) = self.segment.clone() else {
            return Ok(());
        };
        if self.told_committed >= self.next_offset || self.segment_is_empty() {
            return Ok(());
        }
        let header = FrameHeader {
            segment_id: segment.id,
            base_offset: self.next_offset,
            committed_before: self.next_offset,
            max_timestamp_ms: -1,
            append_time_ms: self.clock.wall_ms(),
            record_count: 0,
            leader_epoch: 0,
            ordinal: segment.ordinal,
            kind: FrameKind::Mark,
        };
        let end = self.segment_position + FRAME_HEADER_LEN as u64;
        if !self.backlog.make_way(end).await {
            self.fill_active();
            return Ok(());
        }
        let mut buffer = BytesMut::with_capacity(FRAME_HEADER_LEN);
        header
            .encode(&[], &mut buffer)
            .map_err(|e| Error::TooLarge {
                bytes: e.0,
                limit: u32::MAX as usize,
            })?;
        self.write(&mut vec![buffer.freeze()], FRAME_HEADER_LEN as u64, sync)
            .await?;
        self.told_committed = self.next_offset;
        Ok(())
    }
}
