//! librdkafka, as a program that uses it would.

mod many;

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DefaultProducerContext, Producer as _, ProducerContext,
    ThreadedProducer,
};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientContext, mocking::MockCluster};
use sq_sim::Instant;

use crate::stats::{Latencies, Summary};
use crate::time::now;
use many::Messages;

/// How long an answer is waited for before a run counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// How long a producer with a full queue rests. The library's own polling would spin instead: it
/// rounds less than a millisecond down to nothing.
const PAUSE: Duration = Duration::from_micros(500);

/// Records before those whose latency is measured.
const WARM_UP: usize = 200;

/// Counts the records that failed.
#[derive(Debug, Default)]
struct Failures(AtomicU64);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Says when the library reported each record, and whether it was stored.
#[derive(Debug)]
struct Reports(SyncSender<(Instant, bool)>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        // An error means that the run has failed and nobody listens.
        let _ = self.0.send((now(), result.is_ok()));
    }
}

/// What a run of a producer or consumer gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

/// One of the library's settings.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    key: String,
    value: String,
}

impl FromStr for Setting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("not KEY=VALUE")?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

pub(crate) fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("socket.nagle.disable", "true");
    config
}

/// The library's own broker, which stores nothing: what is measured against it is the client.
pub(crate) fn mock() -> Result<MockCluster<'static, DefaultProducerContext>> {
    MockCluster::new(1).context("no mock broker")
}

/// One record in flight: the latency of each, for `duration`.
pub(crate) fn one_at_a_time(
    bootstrap: &str,
    topic: &str,
    value: &[u8],
    duration: Duration,
) -> Result<Summary> {
    let (reports, reported) = sync_channel(1);
    let producer: ThreadedProducer<Reports> = config(bootstrap)
        .set("acks", "all")
        .set("linger.ms", "0")
        .create_with_context(Reports(reports))?;
    // From before the record is handed to the library to when the library reports it; this thread's
    // own waking up comes after.
    let send = || -> Result<Duration> {
        let record = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(0)
            .payload(value);
        let begun = now();
        producer.send(record).map_err(|(error, _)| error)?;
        let (done, stored) = reported.recv_timeout(PATIENCE)?;
        ensure!(stored, "a record failed");
        Ok(done.duration_since(begun))
    };
    // The first few find the broker and open the connection.
    for _ in 0..WARM_UP {
        send()?;
    }
    let mut latencies = Latencies::new()?;
    let begun = now();
    while now().duration_since(begun) < duration {
        latencies.record(send()?);
    }
    Ok(latencies.summary())
}

/// Sends `records` as fast as the client can, in batches, and waits until all are acknowledged.
pub(crate) fn batched(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    value: &[u8],
    records: u64,
) -> Result<Transfer> {
    let producer: BaseProducer<Failures> = config(bootstrap)
        .set("acks", "all")
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", "200000")
        // Millions of calls that say "stored" are work that few programs ask for: that all are
        // stored is known when the queue is empty and none has failed.
        .set("delivery.report.only.error", "true")
        .create_with_context(Failures::default())?;
    producer.client().fetch_metadata(Some(topic), PATIENCE)?;
    let begun = now();
    let mut partition = 0;
    for sent in 0..records {
        // A stretch of records for each partition in turn, so that batches are full.
        if sent % 2_000 == 0 {
            partition = (partition + 1) % partitions;
        }
        let mut record = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(partition)
            .payload(value);
        loop {
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    thread::park_timeout(PAUSE);
                }
                Err((error, _)) => return Err(error.into()),
            }
        }
    }
    while producer.in_flight_count() > 0 {
        ensure!(now().duration_since(begun) < 10 * PATIENCE, "no end of it");
        thread::park_timeout(PAUSE);
    }
    let took = now().duration_since(begun);
    // Errors are reported here, if there were any.
    producer.poll(Duration::ZERO);
    let failed = producer.context().0.load(Ordering::Relaxed);
    ensure!(failed == 0, "{failed} records failed");
    Ok(Transfer {
        records,
        bytes: records * value.len() as u64,
        took,
    })
}

/// When each record of partition 0 below offset `end` came to a consumer that is at the tail. `end` can
/// be set to less once it is known to be.
pub(crate) fn arrivals(bootstrap: &str, topic: &str, end: &AtomicU64) -> Result<Vec<Instant>> {
    let consumer: BaseConsumer = config(bootstrap)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("fetch.wait.max.ms", "500")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, 0, Offset::Beginning)?;
    consumer.assign(&assignment)?;
    let mut arrived = Vec::new();
    let mut last = now();
    while (arrived.len() as u64) < end.load(Ordering::Relaxed) {
        let polled = consumer.poll(Duration::from_millis(100));
        let at = now();
        ensure!(at.duration_since(last) < PATIENCE, "nothing came");
        let Some(message) = polled else { continue };
        let message = message?;
        last = at;
        ensure!(
            usize::try_from(message.offset())? == arrived.len(),
            "offset {} came where {} was to",
            message.offset(),
            arrived.len()
        );
        arrived.push(at);
    }
    Ok(arrived)
}

/// Reads partition 0 from `from` on, until it has had the record before offset `end`. The time runs
/// from the first record on: what comes before is the client's search for the broker. `settings` go over
/// those that a consumer has here.
pub(crate) fn consume(
    bootstrap: &str,
    topic: &str,
    from: u64,
    end: u64,
    settings: &[Setting],
) -> Result<Transfer> {
    let mut config = config(bootstrap);
    config
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("fetch.message.max.bytes", "10485760")
        .set("queued.max.messages.kbytes", "262144")
        .set("fetch.wait.max.ms", "100");
    for Setting { key, value } in settings {
        config.set(key, value);
    }
    let consumer: BaseConsumer = config.create()?;
    let mut assignment = TopicPartitionList::new();
    let first = Offset::Offset(i64::try_from(from)?);
    assignment.add_partition_offset(topic, 0, first)?;
    consumer.assign(&assignment)?;
    let mut messages = Messages::of(&consumer)?;
    let mut begun = None;
    let (mut next, mut bytes) = (from, 0);
    while next < end {
        messages.take(PATIENCE, |offset, len| {
            begun.get_or_insert_with(now);
            ensure!(
                u64::try_from(offset)? == next,
                "offset {offset} came where {next} was to"
            );
            next += 1;
            bytes += len as u64;
            Ok(())
        })?;
    }
    let took = begun.map_or(Duration::ZERO, |begun| now().duration_since(begun));
    Ok(Transfer {
        records: next - from,
        bytes,
        took,
    })
}
