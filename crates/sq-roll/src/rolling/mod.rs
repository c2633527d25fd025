//! A log's writer whose segments follow each other by the state machine.

mod calls;
mod driver;
mod follow;
mod handle;
mod history;
mod record;
mod settings;
mod shared;
mod stall;
mod writer;

pub use driver::Driver;
pub use handle::RollHandle;
pub use record::{Mark, RollRecord};
pub use settings::{Mode, RollSettings};
pub use writer::RollingWriter;
