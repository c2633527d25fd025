//! The `rdkafka` adapter of the client suite; `../README.md` has the protocol that it speaks.

mod lines;

use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_executor::block_on;
use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use lines::Record;

type Outcome<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(60);

/// Prints each acknowledgement as it comes, and counts what failed.
#[derive(Default)]
struct Acks {
    failed: AtomicUsize,
}

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        match result {
            Ok(message) => println!("A\t{index}\t{}", message.offset()),
            Err((error, _)) => {
                eprintln!("record {index}: {error}");
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn base(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

fn create(bootstrap: &str, topic: &str, partitions: &str, settings: &[String]) -> Outcome<()> {
    let admin: AdminClient<DefaultClientContext> = base(bootstrap).create()?;
    let mut new = NewTopic::new(topic, partitions.parse()?, TopicReplication::Fixed(1));
    for setting in settings {
        let (key, value) = setting.split_once('=').ok_or("a setting is KEY=VALUE")?;
        new = new.set(key, value);
    }
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    for answer in block_on(admin.create_topics([&new], &options))? {
        answer.map_err(|(name, code)| format!("{name}: {code}"))?;
    }
    Ok(())
}

fn delete(bootstrap: &str, topic: &str) -> Outcome<()> {
    let admin: AdminClient<DefaultClientContext> = base(bootstrap).create()?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    for answer in block_on(admin.delete_topics(&[topic], &options))? {
        answer.map_err(|(name, code)| format!("{name}: {code}"))?;
    }
    Ok(())
}

fn purge(bootstrap: &str, topic: &str, offset: &str) -> Outcome<()> {
    let admin: AdminClient<DefaultClientContext> = base(bootstrap).create()?;
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::from_raw(offset.parse()?))?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let answers = block_on(admin.delete_records(&offsets, &options))?;
    for answer in answers.elements() {
        answer.error()?;
        let Offset::Offset(watermark) = answer.offset() else {
            return Err(format!("the low watermark is {:?}", answer.offset()).into());
        };
        println!("W\t{watermark}");
    }
    Ok(())
}

fn produce(bootstrap: &str, topic: &str, codec: &str, idempotent: &str) -> Outcome<()> {
    let idempotent = idempotent == "1";
    let producer: ThreadedProducer<Acks> = base(bootstrap)
        .set("compression.type", codec)
        .set(
            "enable.idempotence",
            if idempotent { "true" } else { "false" },
        )
        .set("acks", if idempotent { "all" } else { "1" })
        .set("batch.size", "16384")
        .set("linger.ms", "5")
        .set("delivery.timeout.ms", "60000")
        .create_with_context(Acks::default())?;
    for (index, line) in std::io::stdin().lock().lines().enumerate() {
        let record = Record::parse(&line?)?;
        send(&producer, topic, index, &record)?;
    }
    producer.flush(PATIENCE)?;
    std::io::stdout().flush()?;
    match producer.context().failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        failed => Err(format!("{failed} records failed").into()),
    }
}

fn send(
    producer: &ThreadedProducer<Acks>,
    topic: &str,
    index: usize,
    record: &Record,
) -> Outcome<()> {
    let mut base = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, index)
        .partition(0)
        .timestamp(record.timestamp)
        .headers(record.owned_headers());
    if let Some(key) = &record.key {
        base = base.key(key);
    }
    if let Some(value) = &record.value {
        base = base.payload(value);
    }
    loop {
        match producer.send(base) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                base = back;
                producer.poll(Duration::from_millis(50));
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}

fn consume(bootstrap: &str, topic: &str, from: &str, count: &str) -> Outcome<()> {
    let count: usize = count.parse()?;
    // `assign` asks for a group's name, and joins none.
    let consumer: BaseConsumer = base(bootstrap)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set("fetch.message.max.bytes", "32768")
        .create()?;
    let (low, high) = consumer.fetch_watermarks(topic, 0, PATIENCE)?;
    let at = match from {
        "end" => high,
        "lost" => 0,
        _ => low,
    };
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, 0, Offset::Offset(at))?;
    consumer.assign(&assignment)?;
    let mut out = std::io::stdout().lock();
    let mut seen = 0;
    let mut ready = from != "end";
    while seen < count {
        match consumer.poll(PATIENCE) {
            None => return Err(format!("no record for {PATIENCE:?} after {seen}").into()),
            // The end of the partition was reached: from here on fetches wait at the broker.
            Some(Err(KafkaError::PartitionEOF(_))) => {
                if !std::mem::replace(&mut ready, true) {
                    writeln!(out, "READY")?;
                    out.flush()?;
                }
            }
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(message)) => {
                writeln!(
                    out,
                    "R\t{}\t{}",
                    message.offset(),
                    Record::of(&message).line()
                )?;
                seen += 1;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create", bootstrap, topic, partitions, ..] => {
            create(bootstrap, topic, partitions, &arguments[4..])
        }
        ["delete", bootstrap, topic] => delete(bootstrap, topic),
        ["purge", bootstrap, topic, offset] => purge(bootstrap, topic, offset),
        ["produce", bootstrap, topic, codec, idempotent] => {
            produce(bootstrap, topic, codec, idempotent)
        }
        ["consume", bootstrap, topic, from, count] => consume(bootstrap, topic, from, count),
        _ => Err("usage: create|delete|purge|produce|consume BOOTSTRAP TOPIC ...".into()),
    }
}
