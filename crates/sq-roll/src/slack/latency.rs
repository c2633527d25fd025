//! How long preparations take.

use std::collections::VecDeque;
use std::time::Duration;

/// How many preparations are remembered. What they cost drifts, so older ones say nothing.
const REMEMBERED: usize = 1024;
/// Fewer than these say little.
const ENOUGH: usize = 8;

/// The times from request to ready of the last preparations, including how long they waited for their
/// turn. One for each node is best: a partition rolls too seldom to learn from itself.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    last: VecDeque<Duration>,
    /// The same, in order.
    sorted: Vec<Duration>,
    /// How long something took that a preparation waits for.
    hint: Option<Duration>,
}

impl Latencies {
    /// Takes a preparation into account.
    pub fn observe(&mut self, latency: Duration) {
        if self.last.len() == REMEMBERED
            && let Some(oldest) = self.last.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.last.push_back(latency);
        let at = self.sorted.partition_point(|other| *other < latency);
        self.sorted.insert(at, latency);
    }

    /// Something took so long that a preparation waits for as well, and so takes at least as long. It
    /// counts until enough preparations were observed.
    pub fn hint(&mut self, latency: Duration) {
        self.hint = Some(latency);
    }

    /// The time to be ready for; `None` before the first observation or hint. That is the given
    /// percentile, up to twice where it is more than the usual one: what has a long tail has seldom shown
    /// all of it.
    pub(super) fn expected(&self, percentile: f64) -> Option<Duration> {
        let observed = self.percentile(0.5).zip(self.percentile(percentile));
        let observed = observed.map(|(usual, high)| {
            let tail = high.as_secs_f64() / usual.as_secs_f64().max(1e-9);
            high.mul_f64(tail.clamp(1.0, 2.0))
        });
        if self.are_enough() {
            observed
        } else {
            observed.max(self.hint)
        }
    }

    pub(super) fn are_enough(&self) -> bool {
        self.last.len() >= ENOUGH
    }

    /// The shortest time that this share of them did not exceed; `None` before the first.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "there are 1,024 at most"
    )]
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let rank = (share.clamp(0.0, 1.0) * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied()
    }
}
