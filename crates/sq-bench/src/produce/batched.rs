//! As many records as one librdkafka producer sends, in batches; then with a consumer at the tail.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bench, RECORD_BYTES};
use crate::broker::Broker;
use crate::floor::{Floor, FloorRound};
use crate::librdkafka;
use crate::machine::Pid;
use crate::stats::{median, per_second};
use crate::table::{Row, Table, Target, Unit};
use crate::tail::Tail;
use crate::wire::Connection;

/// Twice what Apache Kafka does with a sync before each acknowledgement, on the machine whose disk
/// took 10,964 appends of 1 KiB a second.
const RECORDS_PER_SECOND: f64 = 836_000.0;
const APPENDS_PER_SECOND: f64 = 10_964.0;

/// What one stretch of producing gave, and which part of a core each process took for it.
#[derive(Clone, Copy)]
struct Produced {
    records_per_second: f64,
    producer: f64,
    broker: f64,
    consumer: f64,
}

#[derive(Clone, Copy)]
struct Round {
    floor: FloorRound,
    floor_large: FloorRound,
    alone: Produced,
    mock_per_second: f64,
    with_tail: Produced,
}

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let broker = bench.broker("batched")?;
    let idle = broker.pid().memory()?;
    let mut connection = Connection::open(broker.address())?;
    let mut floor = Floor::create(bench.run.dir())?;
    let time = Duration::from_secs_f64(bench.args.seconds / 4.0);
    let mock = librdkafka::mock()?;
    let large = vec![0x5a; 1 << 20];
    let mut rounds = Vec::new();
    for round in 0..bench.args.rounds {
        bench.run.step("floor");
        let floor_small = floor.round(&bench.value, time)?;
        let floor_large = floor.round(&large, time)?;
        bench.run.step("batched");
        let topic = format!("alone-{round}");
        connection.create_topic(&topic, 1, &[])?;
        let alone = produce(bench, &broker, &mut connection, &topic, false)?;
        bench.run.step("batched, librdkafka's own broker");
        let mock_run = librdkafka::batched(
            &mock.bootstrap_servers(),
            &topic,
            1,
            &bench.value,
            bench.args.records,
        )?;
        bench.run.step("batched, with a consumer at the tail");
        let topic = format!("tailed-{round}");
        connection.create_topic(&topic, 1, &[])?;
        let with_tail = produce(bench, &broker, &mut connection, &topic, true)?;
        rounds.push(Round {
            floor: floor_small,
            floor_large,
            alone,
            mock_per_second: per_second(mock_run.records, mock_run.took),
            with_tail,
        });
        bench.run.step("clean up");
    }
    let loaded = broker.pid().memory()?;
    report(&rounds, table);
    table.push(
        Row::new("memory, idle")
            .figure(idle.now_mib, Unit::Mebibytes)
            .judge(idle.now_mib, Unit::Mebibytes, Target::AtMost(15.0)),
    );
    table.push(
        Row::new("memory, at most under that load")
            .figure(loaded.peak_mib, Unit::Mebibytes)
            .judge(loaded.peak_mib, Unit::Mebibytes, Target::AtMost(200.0))
            .note(format!("{:.1} MiB when it is over", loaded.now_mib)),
    );
    Ok(())
}

fn produce(
    bench: &Bench<'_>,
    broker: &Broker,
    connection: &mut Connection,
    topic: &str,
    with_tail: bool,
) -> Result<Produced> {
    let bootstrap = broker.address().to_string();
    let records = bench.args.records;
    let tail = with_tail
        .then(|| Tail::start(&bootstrap, topic, records))
        .transpose()?;
    let broker_before = broker.pid().cpu_time()?;
    let producer_before = Pid::this().cpu_time()?;
    let run = librdkafka::batched(&bootstrap, topic, 1, &bench.value, records)?;
    let producer = Pid::this().cpu_time()?.saturating_sub(producer_before);
    let of_broker = broker.pid().cpu_time()?.saturating_sub(broker_before);
    let consumer = tail.map(Tail::finish).transpose()?.unwrap_or_default();
    let end = connection.end_offset(topic, 0)?;
    ensure!(
        end == records,
        "{records} records were acknowledged, there are {end}"
    );
    let share = |time: Duration| time.as_secs_f64() / run.took.as_secs_f64();
    Ok(Produced {
        records_per_second: per_second(run.records, run.took),
        producer: share(producer),
        broker: share(of_broker),
        consumer: share(consumer),
    })
}

fn report(rounds: &[Round], table: &mut Table) {
    let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
    let floor = of(|r| r.floor.appends_per_second);
    let large = of(|r| r.floor_large.appends_per_second) * f64::from(1 << 20) / 1e6;
    let alone = of(|r| r.alone.records_per_second);
    let bytes = alone * float_record() / 1e6;
    table.push(
        Row::new("batched, one producer; ratio: to the floor's 1 KiB appends")
            .beside(floor, Unit::PerSecond)
            .figure(alone, Unit::PerSecond)
            .judge(
                of(|r| r.alone.records_per_second / r.floor.appends_per_second),
                Unit::Times,
                Target::AtLeast(RECORDS_PER_SECOND / APPENDS_PER_SECOND),
            )
            .note(format!(
                "{bytes:.0} MB/s, the disk takes {large:.0}; {}",
                shares(|r| r.alone, rounds)
            )),
    );
    table.push(
        Row::new("batched, as a plain figure")
            .figure(alone, Unit::PerSecond)
            .judge(alone, Unit::PerSecond, Target::AtLeast(RECORDS_PER_SECOND)),
    );
    table.push(
        Row::new("batched; beside: to librdkafka's own mock broker")
            .beside(of(|r| r.mock_per_second), Unit::PerSecond)
            .figure(alone, Unit::PerSecond)
            .ratio(of(|r| r.alone.records_per_second / r.mock_per_second)),
    );
    table.push(
        Row::new("batched, a consumer at the tail; beside: without")
            .beside(alone, Unit::PerSecond)
            .figure(of(|r| r.with_tail.records_per_second), Unit::PerSecond)
            .judge(
                of(|r| r.with_tail.records_per_second / r.alone.records_per_second),
                Unit::Times,
                Target::AtLeast(0.8),
            )
            .note(shares(|r| r.with_tail, rounds)),
    );
}

fn float_record() -> f64 {
    crate::stats::float(RECORD_BYTES as u64)
}

/// Which part of one core each process takes.
fn shares(get: fn(&Round) -> Produced, rounds: &[Round]) -> String {
    let of =
        |part: fn(&Produced) -> f64| 100.0 * median(rounds.iter().map(|round| part(&get(round))));
    let (producer, broker) = (of(|p| p.producer), of(|p| p.broker));
    let consumer = of(|p| p.consumer);
    let consumer = if consumer > 0.0 {
        format!(", consumer {consumer:.0} %")
    } else {
        String::new()
    };
    format!("of a core: producer {producer:.0} %, broker {broker:.0} %{consumer}")
}
