//! The commands of `sq`.
//!
//! Each is a clap subcommand whose `run` gives the exit code: 0, or 1 with a line on standard error
//! that says why. (A mistake on the command line itself is clap's, and 2.)

mod client;
mod roll;
mod segment;
mod serve;
mod topic;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

pub use client::{Client, ClientError};
pub use roll::RollCommand;
pub use segment::{SegmentCommand, SegmentError};
pub use serve::{ServeArgs, ServeError};
pub use topic::{Broker, TopicCommand, TopicError};

/// Writes what a command has to say, and gives its exit code.
fn finish<E: Display>(output: &[u8], result: Result<(), E>) -> ExitCode {
    // A reader that has read enough (`| head`) is no failure.
    let _ = std::io::stdout()
        .write_all(output)
        .and_then(|()| std::io::stdout().flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "sq: {error}");
            ExitCode::FAILURE
        }
    }
}
