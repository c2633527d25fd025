//! How what runs on a simulated file system comes to an end.

use super::{InMemoryFileSystem, Keep};

/// The ways in which a machine or a process can stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The process dies; what the page cache holds stays readable.
    Process,
    /// The power goes, and of what was not synced this is kept.
    Power(Keep),
    /// The process first, and later the power, before anything else was done.
    ProcessThenPower(Keep),
}

impl Stop {
    /// Each of them, with every way of keeping.
    pub const ALL: [Self; 8] = [
        Self::Process,
        Self::Power(Keep::None),
        Self::Power(Keep::All),
        Self::Power(Keep::Prefix),
        Self::Power(Keep::Sectors),
        Self::Power(Keep::Mixed),
        Self::ProcessThenPower(Keep::None),
        Self::ProcessThenPower(Keep::Mixed),
    ];

    /// Stops what runs on `fs`. Its handles are dead from now on; open files anew.
    pub fn strike(self, fs: &InMemoryFileSystem) {
        match self {
            Self::Process => fs.process_crash(),
            Self::Power(keep) => fs.power_loss(keep),
            Self::ProcessThenPower(keep) => {
                fs.process_crash();
                fs.power_loss(keep);
            }
        }
    }
}
