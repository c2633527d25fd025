//! The one binary, `sq`.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use sq_broker::cli::{RollCommand, SegmentCommand, ServeArgs, TopicCommand};
use sq_sim::OsFileSystem;
use tracing_subscriber::EnvFilter;

/// Threads that may block in the file system at a time.
const BLOCKING_THREADS: usize = 64;

/// A segmented log broker that speaks the Kafka protocol.
#[derive(Debug, Parser)]
#[command(name = "sq", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker.
    Serve(ServeArgs),
    /// Create, list, describe and delete topics.
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Show how logs went from segment to segment.
    #[command(subcommand)]
    Roll(RollCommand),
    /// Look into segment files.
    #[command(subcommand)]
    Segment(SegmentCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("SQ_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(run(cli.command)),
        Err(error) => {
            tracing::error!(%error, "the runtime can't be started");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => args.run().await,
        Command::Topic(command) => command.run().await,
        Command::Roll(command) => command.run().await,
        Command::Segment(command) => command.run(Arc::new(OsFileSystem::inline())).await,
    }
}
