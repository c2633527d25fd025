//! sq beside the disk's own speed, other logs and real clients.
//!
//! Each command prints one table. What is compared is measured in turn, in rounds, never at the same
//! time, and a ratio is the median of the rounds' ratios: absolute figures drift from hour to hour.

mod batch;
mod broker;
mod fetch;
mod floor;
mod librdkafka;
mod machine;
mod produce;
mod roll;
mod run;
mod stand_in;
mod stats;
mod table;
mod tail;
mod time;
mod wal;
mod wire;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures sq: its log beside the disk and other logs, its broker beside the disk and its clients.
#[derive(Debug, Parser)]
#[command(name = "sq-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A broker's produce path, memory and start-up.
    Produce(produce::Args),
    /// A broker's fetch path.
    Fetch(fetch::Args),
    /// A broker's segment rolls, as its clients see them.
    Roll(roll::Args),
    /// A log beside the disk's own speed and beside other logs.
    Wal(wal::Args),
    /// A log that is written by a process of its own, to be killed.
    #[command(hide = true)]
    Fill(wal::FillArgs),
    /// A broker that answers fetches from memory, in a process of its own, for `fetch`.
    #[command(hide = true)]
    StandIn(stand_in::Args),
    /// A consumer in a process of its own, for the other commands.
    #[command(hide = true)]
    Tail(tail::Args),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Produce(args) => produce::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Roll(args) => roll::run(&args),
        Command::Wal(args) => wal::run(&args),
        Command::Fill(args) => wal::fill(&args),
        Command::StandIn(args) => stand_in::run(&args),
        Command::Tail(args) => tail::run(&args),
    }
}
