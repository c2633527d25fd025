//! How a log rolls.

use std::time::Duration;

use crate::{Limits, Patience, SlackSettings};

/// When a successor is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// At the soft mark, so that it is ready at the cap.
    #[default]
    Anticipatory,
    /// At the cap, where appends then wait for it: what brokers do that do not look ahead. To compare
    /// with. It differs in [`Limits::reactive`] and in nothing else.
    Reactive,
}

/// How a log rolls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RollSettings {
    /// When a successor is asked for.
    pub mode: Mode,
    /// The caps of a segment. Its soft marks are sized by `slack`.
    pub limits: Limits,
    /// How the soft mark is placed.
    pub slack: SlackSettings,
    /// How requests to the source are repeated.
    pub patience: Patience,
    /// How long appends wait where there is no room and no successor. Then they fail, each at once, with
    /// [`Error::NoSuccessor`](sq_storage::Error::NoSuccessor), until there is.
    pub longest_wait: Duration,
    /// What the jitter of the caps is drawn from.
    pub seed: u64,
    /// How many records of rolls are kept.
    pub kept_records: usize,
}

impl RollSettings {
    /// Anticipatory rolls at these caps, with a wait of at most 5 seconds and 128 records kept.
    pub fn new(limits: Limits) -> Self {
        Self {
            mode: Mode::Anticipatory,
            limits,
            slack: SlackSettings::default(),
            patience: Patience::default(),
            longest_wait: Duration::from_secs(5),
            seed: 0,
            kept_records: 128,
        }
    }
}
