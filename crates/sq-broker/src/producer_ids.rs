//! Producer ids, handed out from durable blocks.

use std::ops::Range;

use sq_sim::FileSystem;
use tokio::sync::Mutex;

use crate::meta::{MetaError, Metadata};

/// Ids taken from the metadata at a time, as many as Kafka takes. What is left of a block when the
/// broker stops is never used.
const BLOCK: u32 = 1_000;

/// A supply of producer ids that nobody has had.
#[derive(Debug)]
pub struct ProducerIds<F: FileSystem> {
    meta: Metadata<F>,
    block: Mutex<Range<i64>>,
}

impl<F: FileSystem> ProducerIds<F> {
    /// A supply that draws on the metadata.
    pub fn new(meta: Metadata<F>) -> Self {
        Self {
            meta,
            block: Mutex::new(0..0),
        }
    }

    /// The next id.
    ///
    /// # Errors
    /// The metadata gave no further block.
    pub async fn next(&self) -> Result<i64, MetaError> {
        let mut block = self.block.lock().await;
        if block.is_empty() {
            *block = self.meta.allocate_producer_ids(BLOCK).await?;
        }
        block.next().ok_or(MetaError::ProducerIdsExhausted)
    }
}
