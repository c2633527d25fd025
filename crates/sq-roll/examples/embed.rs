//! A log whose segments follow each other without a wait: `cargo run --example embed`.

use std::sync::Arc;

use sq_roll::{Driver, Epoch, Limits, LocalSource, Node, RollSettings, RollingWriter, Start};
use sq_sim::{OsFileSystem, SystemClock};
use sq_storage::log::{AppendThreads, Executor, Log, LogConfig};
use sq_storage::{MaintenanceMode, TopicName, WalConfig, WalWriter};

const SEGMENT_BYTES: u64 = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let config = WalConfig {
        max_segment_bytes: SEGMENT_BYTES,
        maintenance: MaintenanceMode::Handed,
        ..WalConfig::new(dir.path())
    };
    let fs = Arc::new(OsFileSystem::inline());
    let writer = WalWriter::new(Arc::clone(&fs), config, TopicName::new("orders")?, 0).await?;

    let node = Node::new(Arc::new(SystemClock), 4);
    let settings = RollSettings::new(Limits::bytes(SEGMENT_BYTES));
    let start = Start::resume(&writer, Epoch(1));
    let source = Arc::new(LocalSource);
    let chores = writer.maintenance();
    let (writer, driver) = RollingWriter::new(writer, start, source, &node, settings, fs);
    let rolls = writer.handle();
    let driver = tokio::spawn(Driver::run(driver));
    let chores =
        tokio::spawn(async move { while chores.wait().await && chores.run().await.is_ok() {} });

    let config = LogConfig {
        executor: Executor::Threads(AppendThreads::start(1)?),
        ..LogConfig::default()
    };
    let log = Log::new(writer, config);
    for n in 0..8_000_u32 {
        log.append(None, &[b'x'; 1000], &[], u64::from(n)).await?;
    }
    for record in rolls.records() {
        println!(
            "{} at {}: ready in {:?}, waited {:?}, gap {:?} where {:?} is usual",
            record.to,
            record.end,
            record.prepared_in(),
            record.waited,
            record.producer_gap.unwrap_or_default(),
            record.usual_gap.unwrap_or_default(),
        );
    }
    log.close().await?;
    driver.await?;
    Ok(chores.await?)
}
