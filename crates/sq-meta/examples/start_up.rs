//! How long a log of one voter takes to start and to commit, on a real disk: prints a table.
//!
//! `cargo run --release -p sq-meta --example start_up [DIRECTORY]`
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::sync::Arc;
use std::time::Duration;

use sq_meta::{BrokerId, Command, MetaLog, MetaLogConfig};
use sq_sim::{Clock, OsFileSystem, SystemClock};

const STARTS: usize = 20;
const COMMITS: usize = 2000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let dir = tempfile::tempdir_in(parent)?;
    println!(
        "{:32} {:>10} {:>10} {:>10}",
        "", "p50 µs", "p99 µs", "max µs"
    );
    for (name, fs) in [
        ("on the caller's thread", OsFileSystem::inline()),
        ("on the blocking pool", OsFileSystem::blocking_pool()),
    ] {
        let fs = Arc::new(fs);
        let at = |n: usize| dir.path().join(format!("{}-{n}", name.replace(' ', "-")));
        let mut first = Vec::new();
        for n in 0..STARTS {
            let began = SystemClock.now();
            let log = start(&fs, at(n)).await?;
            first.push(began.elapsed());
            log.shut_down().await;
        }
        row("first start", name, first);
        let log = start(&fs, at(0)).await?;
        let mut commits = Vec::new();
        for _ in 0..COMMITS {
            let began = SystemClock.now();
            log.submit(Command::AllocateProducerIds { count: 1 })
                .await?;
            commits.push(began.elapsed());
        }
        row("commit", name, commits);
        drop(log);
        let mut again = Vec::new();
        for _ in 0..STARTS {
            let began = SystemClock.now();
            let log = start(&fs, at(0)).await?;
            again.push(began.elapsed());
            log.shut_down().await;
        }
        row("start with 2,000 commands", name, again);
    }
    Ok(())
}

async fn start(
    fs: &Arc<OsFileSystem>,
    dir: std::path::PathBuf,
) -> Result<MetaLog<OsFileSystem>, sq_meta::StartError> {
    MetaLog::start(Arc::clone(fs), MetaLogConfig::new(BrokerId(0), dir)).await
}

fn row(what: &str, name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: usize| {
        took.get((took.len() - 1) * share / 100)
            .map_or(0, Duration::as_micros)
    };
    println!("{what}, {name}");
    println!("{:32} {:>10} {:>10} {:>10}", "", at(50), at(99), at(100));
}
