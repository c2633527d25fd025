//! One record in flight.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use crate::batch::batch;
use crate::floor::{Floor, FloorRound};
use crate::librdkafka;
use crate::stats::{Latencies, Summary, median};
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;
use crate::wire::{Connection, produce_frame};

/// Requests before those that are measured.
const WARM_UP: usize = 200;

const TOPIC: &str = "single";

#[derive(Clone, Copy)]
struct Round {
    floor: FloorRound,
    raw: Summary,
    client: Summary,
    client_alone: Summary,
}

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let broker = bench.broker("single")?;
    let bootstrap = broker.address().to_string();
    let mut connection = Connection::open(broker.address())?;
    connection.create_topic(TOPIC, 1, &[])?;
    let frame = produce_frame(TOPIC, batch(&[&bench.value])?)?;
    let mut floor = Floor::create(bench.run.dir())?;
    let mock = librdkafka::mock()?;
    let time = Duration::from_secs_f64(bench.args.seconds);
    let mut rounds = Vec::new();
    for _ in 0..bench.args.rounds {
        bench.run.step("floor");
        let floor = floor.round(&bench.value, time)?;
        bench.run.step("one record in flight, raw connection");
        let raw = raw(&mut connection, &frame, time)?;
        bench.run.step("one record in flight, librdkafka");
        let client = librdkafka::one_at_a_time(&bootstrap, TOPIC, &bench.value, time)?;
        bench
            .run
            .step("one record in flight, librdkafka's own broker");
        let alone = mock.bootstrap_servers();
        let client_alone = librdkafka::one_at_a_time(&alone, TOPIC, &bench.value, time)?;
        rounds.push(Round {
            floor,
            raw,
            client,
            client_alone,
        });
    }
    report(&rounds, table);
    Ok(())
}

fn raw(connection: &mut Connection, frame: &[u8], time: Duration) -> Result<Summary> {
    for _ in 0..WARM_UP {
        connection.produce(frame)?;
    }
    let mut latencies = Latencies::new()?;
    let begun = now();
    let mut last = begun;
    while last.duration_since(begun) < time {
        connection.produce(frame)?;
        let done = now();
        latencies.record(done.duration_since(last));
        last = done;
    }
    Ok(latencies.summary())
}

fn report(rounds: &[Round], table: &mut Table) {
    let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
    let floor = FloorRound::median(&rounds.iter().map(|r| r.floor).collect::<Vec<_>>());
    let appends = crate::table::write(floor.appends_per_second, Unit::PerSecond);
    let us = Unit::Microseconds;
    let beyond = |round: Summary| format!("p99.9 {:.0} us, max {:.0} us", round.p999, round.max);
    let all =
        |get: fn(&Round) -> Summary| Summary::median(&rounds.iter().map(get).collect::<Vec<_>>());
    table.push(
        Row::new("the floor: pwrite and fdatasync, zeroed file, p50")
            .figure(floor.latency.p50, us)
            .note(format!("{appends}; {}", beyond(floor.latency))),
    );
    table.push(Row::new("the floor, p99").figure(floor.latency.p99, us));
    table.push(
        Row::new("one in flight, raw connection, p50")
            .beside(floor.latency.p50, us)
            .figure(of(|r| r.raw.p50), us)
            .judge(
                of(|r| r.raw.p50 / r.floor.latency.p50),
                Unit::Times,
                Target::AtMost(1.7),
            )
            .note(beyond(all(|r| r.raw))),
    );
    table.push(
        Row::new("one in flight, raw connection, p99")
            .beside(floor.latency.p99, us)
            .figure(of(|r| r.raw.p99), us)
            .judge(
                of(|r| r.raw.p99 / r.floor.latency.p99),
                Unit::Times,
                Target::AtMost(2.0),
            ),
    );
    table.push(
        Row::new("one in flight, librdkafka, p50; beside: its own mock broker")
            .beside(of(|r| r.client_alone.p50), us)
            .figure(of(|r| r.client.p50), us)
            .ratio(of(|r| r.client.p50 / r.client_alone.p50))
            .note(beyond(all(|r| r.client))),
    );
    table.push(
        Row::new("one in flight, librdkafka, p99; beside: its own mock broker")
            .beside(of(|r| r.client_alone.p99), us)
            .figure(of(|r| r.client.p99), us)
            .ratio(of(|r| r.client.p99 / r.client_alone.p99))
            .note(beyond(all(|r| r.client_alone))),
    );
}
