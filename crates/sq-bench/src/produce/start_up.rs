//! From starting the process to the first answer: empty, and after a crash with much data.

use anyhow::{Result, ensure};

use super::{Bench, RECORD_BYTES};
use crate::broker::Broker;
use crate::librdkafka;
use crate::stats::median;
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;
use crate::wire::Connection;

const TOPIC: &str = "much";

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let mut empty = Vec::new();
    for round in 0..bench.args.rounds {
        bench.run.step("start-up, empty");
        let broker = bench.broker(&format!("empty-{round}"))?;
        empty.push(broker.start_up.as_secs_f64() * 1e3);
    }
    let ms = median(empty);
    table.push(
        Row::new("start-up to the first answer, empty")
            .figure(ms, Unit::Milliseconds)
            .judge(ms, Unit::Milliseconds, Target::AtMost(25.0)),
    );
    bench.run.step("much data");
    let mut broker = fill(bench)?;
    let (mut answer_ms, mut all_ms) = (Vec::new(), Vec::new());
    for _ in 0..bench.args.rounds {
        bench.run.step("start-up after kill -9");
        let ends = touch(bench, &broker)?;
        broker.kill()?;
        let begun = now();
        broker = bench.broker(TOPIC)?;
        answer_ms.push(broker.start_up.as_secs_f64() * 1e3);
        // An answer for a partition waits until it is open.
        let found = end_offsets(bench, &broker)?;
        all_ms.push(now().duration_since(begun).as_secs_f64() * 1e3);
        ensure!(found == ends, "{found:?} after the crash, {ends:?} before");
    }
    let (answer_ms, all_ms) = (median(answer_ms), median(all_ms));
    let args = bench.args;
    let what = format!(
        "{} segments, {:.1} GiB, {} partitions, after kill -9",
        args.start_up_segments,
        crate::stats::float(args.start_up_bytes) / f64::from(1 << 30),
        args.start_up_partitions
    );
    table.push(
        Row::new(format!("start-up to the first answer, {what}"))
            .figure(answer_ms, Unit::Milliseconds)
            .judge(answer_ms, Unit::Milliseconds, Target::AtMost(250.0))
            .note(format!("every partition answers after {all_ms:.1} ms")),
    );
    Ok(())
}

/// A broker with as much data in as many segments as was asked for.
fn fill(bench: &Bench<'_>) -> Result<Broker> {
    let args = bench.args;
    let partitions = i32::try_from(args.start_up_partitions)?;
    let segment_bytes = (args.start_up_bytes / args.start_up_segments.max(1)).max(1 << 20);
    let broker = bench.broker(TOPIC)?;
    let mut connection = Connection::open(broker.address())?;
    let settings = [("segment.bytes", segment_bytes.to_string())];
    connection.create_topic(TOPIC, partitions, &settings)?;
    let records = args.start_up_bytes / RECORD_BYTES as u64;
    let bootstrap = broker.address().to_string();
    librdkafka::batched(&bootstrap, TOPIC, partitions, &bench.value, records)?;
    Ok(broker)
}

/// Writes a little to every partition, so that each has something that a crash leaves open.
fn touch(bench: &Bench<'_>, broker: &Broker) -> Result<Vec<u64>> {
    let partitions = i32::try_from(bench.args.start_up_partitions)?;
    let bootstrap = broker.address().to_string();
    let records = 2_000 * u64::from(bench.args.start_up_partitions);
    librdkafka::batched(&bootstrap, TOPIC, partitions, &bench.value, records)?;
    end_offsets(bench, broker)
}

fn end_offsets(bench: &Bench<'_>, broker: &Broker) -> Result<Vec<u64>> {
    let mut connection = Connection::open(broker.address())?;
    (0..i32::try_from(bench.args.start_up_partitions)?)
        .map(|partition| connection.end_offset(TOPIC, partition))
        .collect()
}
