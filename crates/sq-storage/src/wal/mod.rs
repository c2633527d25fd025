//! A partition's log: a chain of segment files with continuous offsets.

mod adoption;
mod ahead;
mod batch;
mod cache;
mod chain;
mod config;
mod index;
mod index_file;
mod lru;
mod maintenance;
pub mod manifest;
#[cfg(feature = "mutants")]
pub mod mutants;
mod payload;
mod prepared;
mod reader;
mod recovery;
mod removal;
pub mod retention;
mod rewrite;
mod scan;
mod scrub;
pub mod segment;
mod state;
mod tail;
mod truncate;
mod writer;
mod zeroing;

pub(crate) use batch::Framed;
pub use batch::{ActiveSegment, Batch, ClosedSegment};
pub use cache::SegmentCache;
pub use chain::Damage;
pub use config::{MaintenanceMode, Rotation, SegmentIds, SyncPolicy, WalConfig};
pub use maintenance::Maintenance;
pub use payload::Payload;
pub use prepared::{Preparation, Prepared, Preparer};
pub use reader::{LogReader, SegmentInfo, StoredFrame};
pub use recovery::{RecoveryReport, UnacknowledgedTail};
pub use removal::{Removal, remove_file_in_steps};
pub use retention::Retention;
pub use scrub::{Scrub, ScrubFinding, ScrubTotals};
pub(crate) use state::lock;
pub use tail::TailCache;
pub use writer::WalWriter;
pub use zeroing::Zeroing;
