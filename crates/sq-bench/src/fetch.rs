//! `fetch`: a broker's fetch path, for a consumer that catches up with what is in the page cache.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::pread;

use crate::batch::value;
use crate::broker::{self, Broker};
use crate::librdkafka::{self, Setting};
use crate::machine::Pid;
use crate::stand_in::StandIn;
use crate::stats::{float, median};
use crate::table::{Row, Table, Target, Unit};
use crate::time::now;
use crate::wire::Connection;

const TOPIC: &str = "fetch";
const RECORD_BYTES: usize = 1024;

/// Bytes of one raw fetch, and of one read of a file.
const AT_A_TIME: u32 = 8 << 20;

/// What `fetch` can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: broker::Args,
    /// Rounds of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Records to catch up with.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// A setting of librdkafka's consumer, over those that it has here.
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
}

/// What one way of reading gave: its speed, and which part of a core each process took for it.
#[derive(Clone, Copy)]
struct Reading {
    megabytes_per_second: f64,
    client: f64,
    server: f64,
}

#[derive(Clone, Copy)]
struct Round {
    plain: f64,
    raw: Reading,
    client: Reading,
    client_alone: Reading,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (sq, run) = args.broker.begin(1 + 4 * args.rounds as u64)?;
    run.step("write what is to be read");
    let data_dir = run.dir().join("data");
    let broker = Broker::start(&sq, &data_dir)?;
    let bootstrap = broker.address().to_string();
    let mut connection = Connection::open(broker.address())?;
    connection.create_topic(TOPIC, 1, &[])?;
    librdkafka::batched(&bootstrap, TOPIC, 1, &value(RECORD_BYTES), args.records)?;
    let stand_in = StandIn::start(broker.address(), args.records)?;
    let partition = data_dir.join(TOPIC).join("0");
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        run.step("plain reads of the files");
        let plain = plain(&partition)?;
        run.step("raw fetches");
        let raw = measured(broker.pid(), || raw(&mut connection, args.records))?;
        run.step("librdkafka");
        let consume = |from: &str| {
            let run = librdkafka::consume(from, TOPIC, 0, args.records, &args.settings)?;
            Ok((run.bytes, run.took))
        };
        let client = measured(broker.pid(), || consume(&bootstrap))?;
        run.step("librdkafka, answers from memory");
        let client_alone = measured(stand_in.pid(), || consume(&stand_in.address))?;
        rounds.push(Round {
            plain,
            raw,
            client,
            client_alone,
        });
    }
    let mut table = Table::new("fetch: catching up, records of 1 KiB, warm");
    report(&rounds, &mut table);
    let load = run.finish()?;
    crate::run::print(&table, &load)
}

/// What `read` takes, in bytes and time, and how busy it keeps both processes.
fn measured(server: Pid, read: impl FnOnce() -> Result<(u64, Duration)>) -> Result<Reading> {
    let server_before = server.cpu_time()?;
    let client_before = Pid::this().cpu_time()?;
    let begun = now();
    let (bytes, took) = read()?;
    let whole = now().duration_since(begun);
    let client = Pid::this().cpu_time()?.saturating_sub(client_before);
    let of_server = server.cpu_time()?.saturating_sub(server_before);
    let share = |time: Duration| time.as_secs_f64() / whole.as_secs_f64();
    Ok(Reading {
        megabytes_per_second: float(bytes) / 1e6 / took.as_secs_f64(),
        client: share(client),
        server: share(of_server),
    })
}

/// Fetches everything over one connection, and looks at the batches' headers only.
fn raw(connection: &mut Connection, records: u64) -> Result<(u64, Duration)> {
    let begun = now();
    let (mut bytes, mut next) = (0, 0);
    while next < records {
        let fetched = connection.fetch(TOPIC, next, AT_A_TIME.cast_signed())?;
        let behind = fetched.next_offset.context("nothing was fetched")?;
        ensure!(behind > next, "the same batches came again");
        bytes += fetched.bytes;
        next = behind;
    }
    Ok((bytes, now().duration_since(begun)))
}

/// Reads the partition's files through once: the speed of the page cache, in MB/s.
fn plain(partition: &Path) -> Result<f64> {
    let mut buffer = vec![0; AT_A_TIME as usize];
    let begun = now();
    let mut bytes = 0;
    for path in crate::machine::files(partition)? {
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut at = 0;
        loop {
            let read = pread(&file, &mut buffer, at)? as u64;
            if read == 0 {
                break;
            }
            at += read;
        }
        bytes += at;
    }
    Ok(float(bytes) / 1e6 / now().duration_since(begun).as_secs_f64())
}

fn report(rounds: &[Round], table: &mut Table) {
    let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
    let unit = Unit::MegabytesPerSecond;
    let plain = of(|r| r.plain);
    let shares = |get: fn(&Round) -> Reading| {
        let part = |part: fn(&Reading) -> f64| {
            100.0 * median(rounds.iter().map(|round| part(&get(round))))
        };
        format!(
            "of a core: client {:.0} %, server {:.0} %",
            part(|r| r.client),
            part(|r| r.server)
        )
    };
    table.push(Row::new("plain reads of the files, from the page cache").figure(plain, unit));
    let raw = of(|r| r.raw.megabytes_per_second);
    table.push(
        Row::new("catching up, raw fetches; beside: plain reads")
            .beside(plain, unit)
            .figure(raw, unit)
            .ratio(of(|r| r.raw.megabytes_per_second / r.plain))
            .note(shares(|r| r.raw)),
    );
    let client = of(|r| r.client.megabytes_per_second);
    table.push(
        Row::new("catching up, librdkafka; beside: raw fetches")
            .beside(raw, unit)
            .figure(client, unit)
            .ratio(of(|r| {
                r.client.megabytes_per_second / r.raw.megabytes_per_second
            }))
            .judge(client, unit, Target::AtLeast(2_300.0))
            .note(shares(|r| r.client)),
    );
    limit(rounds, shares(|r| r.client_alone), table);
}

/// What the client does with a server that has next to nothing to do.
fn limit(rounds: &[Round], shares: String, table: &mut Table) {
    let of = |get: fn(&Round) -> f64| median(rounds.iter().map(get));
    let unit = Unit::MegabytesPerSecond;
    let alone = of(|r| r.client_alone.megabytes_per_second);
    table.push(
        Row::new("librdkafka's own limit: the same answers, from memory")
            .figure(alone, unit)
            .note(shares),
    );
    table.push(
        Row::new("catching up, librdkafka; beside: its own limit")
            .beside(alone, unit)
            .figure(of(|r| r.client.megabytes_per_second), unit)
            .judge(
                of(|r| r.client.megabytes_per_second / r.client_alone.megabytes_per_second),
                Unit::Times,
                Target::AtLeast(0.9),
            ),
    );
}
