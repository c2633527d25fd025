//! A steady producer and a consumer at the tail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdkafka::ClientContext;
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use sq_sim::Instant;

use super::RECORD_BYTES;
use crate::batch::value;
use crate::librdkafka::{PATIENCE, arrivals, config};
use crate::time::now;

/// How many appends are made at the end of a run with a pause before each.
const IDLE_APPENDS: usize = 500;

/// The pause before each of those.
const IDLE: Duration = Duration::from_micros(5_500);

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) records: u64,
    /// Records a second.
    pub(super) rate: u64,
}

/// What was seen of it. Latencies and gaps are in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// When each record was sent since the first was, and its latency, by offset.
    pub(super) acknowledged: Vec<(f64, f64)>,
    /// The time between the arrival of each record at the consumer and that of the one before.
    pub(super) tail_gaps: Vec<f64>,
    /// The latency of records that nothing was sent before for 5 ms.
    pub(super) after_idleness: Vec<f64>,
    /// Records that were not stored: each would have been sent again.
    pub(super) errors: u64,
}

/// When a record was reported, which, and where it is stored.
struct Report {
    sequence: usize,
    offset: Option<u64>,
    at: Instant,
}

struct Reports(Sender<Report>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, sequence: usize) {
        let at = now();
        let offset = result
            .as_ref()
            .ok()
            .and_then(|m| u64::try_from(m.offset()).ok());
        // An error means that the run has failed and nobody listens.
        let _ = self.0.send(Report {
            sequence,
            offset,
            at,
        });
    }
}

pub(super) fn run(bootstrap: &str, topic: &str, load: Load) -> Result<Seen> {
    let (reports, reported) = channel();
    let producer: ThreadedProducer<Reports> = config(bootstrap)
        .set("acks", "all")
        .set("linger.ms", "0")
        // Every error is to be seen, not only those that outlast the client's patience.
        .set("retries", "0")
        .create_with_context(Reports(reports))?;
    producer.client().fetch_metadata(Some(topic), PATIENCE)?;
    let payload = value(RECORD_BYTES);
    let total = load.records + IDLE_APPENDS as u64;
    let end = Arc::new(AtomicU64::new(total));
    let consumer = {
        let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
        let end = Arc::clone(&end);
        let consumer = thread::Builder::new().name("consumer".to_owned());
        consumer.spawn(move || arrivals(&bootstrap, &topic, &end))?
    };
    let mut begun_at = Vec::new();
    let send = |begun_at: &mut Vec<Instant>| -> Result<()> {
        let sequence = begun_at.len();
        begun_at.push(now());
        let record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, sequence)
            .partition(0)
            .payload(&payload);
        producer.send(record).map_err(|(error, _)| error)?;
        Ok(())
    };
    let begun = now();
    for n in 0..load.records {
        wait_until(begun + Duration::from_micros(n * 1_000_000 / load.rate));
        send(&mut begun_at)?;
    }
    let mut seen = Seen::default();
    seen.acknowledged
        .resize(usize::try_from(load.records)?, (f64::NAN, f64::NAN));
    let mut answered = 0;
    while answered < load.records {
        let report = reported.recv_timeout(PATIENCE).context("no answer")?;
        answered += 1;
        let Some(sent_at) = begun_at.get(report.sequence) else {
            continue;
        };
        let latency = micros(report.at.duration_since(*sent_at));
        let place = report
            .offset
            .and_then(|offset| usize::try_from(offset).ok());
        match place.and_then(|place| seen.acknowledged.get_mut(place)) {
            Some(place) => *place = (micros(sent_at.duration_since(begun)), latency),
            None => seen.errors += 1,
        }
    }
    for _ in 0..IDLE_APPENDS {
        wait_until(now() + IDLE);
        send(&mut begun_at)?;
        let report = reported.recv_timeout(PATIENCE).context("no answer")?;
        ensure!(report.offset.is_some(), "a record failed");
        let sent_at = begun_at.last().context("nothing sent")?;
        seen.after_idleness
            .push(micros(report.at.duration_since(*sent_at)));
    }
    // Those that failed were never stored.
    end.store(total - seen.errors, Ordering::Relaxed);
    let arrivals = consumer
        .join()
        .map_err(|_| anyhow::anyhow!("the consumer panicked"))??;
    let pairs = arrivals.windows(2).take(seen.acknowledged.len());
    seen.tail_gaps = pairs
        .map(|pair| match pair {
            [before, after] => micros(after.duration_since(*before)),
            _ => f64::NAN,
        })
        .collect();
    // By the offset of the later one.
    seen.tail_gaps.insert(0, f64::NAN);
    Ok(seen)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn wait_until(time: Instant) {
    loop {
        let left = time.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}
