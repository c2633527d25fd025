//! A replica's fence.

use crate::Epoch;

/// Keeps the frames of deposed leaders out of a replica. Each broker has one for each partition, made
/// durable *before* it answers a newer leader, whether or not it holds a file of that partition.
///
/// It is asked twice about a frame: before it is written, and again before the write is answered, since
/// the fence can be raised while the flush is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    epoch: Epoch,
    #[cfg(feature = "mutants")]
    lacking: Option<crate::mutants::Guard>,
}

impl Fence {
    /// A fence at `epoch`, as it was made durable.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            #[cfg(feature = "mutants")]
            lacking: None,
        }
    }

    /// Frames of older epochs than this are kept out.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a frame that was written in `epoch` may come in, and its flush be answered.
    pub fn admits(&self, epoch: Epoch) -> bool {
        #[cfg(feature = "mutants")]
        if self.lacking == Some(crate::mutants::Guard::Fence) {
            return true;
        }
        epoch >= self.epoch
    }

    /// Raises the fence. `false`: it stands higher already, and whoever asks is deposed. A repeat is
    /// fine. The caller makes it durable before it answers.
    pub fn raise(&mut self, epoch: Epoch) -> bool {
        let current = epoch >= self.epoch;
        if current {
            self.epoch = epoch;
        }
        current
    }

    /// Takes a guard away.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn without(mut self, guard: Option<crate::mutants::Guard>) -> Self {
        self.lacking = guard;
        self
    }
}
