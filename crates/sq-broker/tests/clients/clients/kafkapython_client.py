"""kafka-python, pure Python."""

import sys
import threading

from command import PATIENCE, Pace, acknowledge, load_value, ready, refused, run, show, watermark
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic


def create(bootstrap, topic, partitions, settings):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)], timeout_ms=PATIENCE * 1000)
    admin.close()


def delete(bootstrap, topic):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_topics([topic])
    admin.close()


def purge(bootstrap, topic, offset):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    partition = TopicPartition(topic, 0)
    watermark(admin.delete_records({partition: offset}, timeout_ms=PATIENCE * 1000)[partition]["low_watermark"])
    admin.close()


def producer(bootstrap, idempotent, **more):
    return KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=idempotent,
        acks="all" if idempotent else 1,
        batch_size=16384,
        linger_ms=5,
        **more,
    )


def produce(bootstrap, topic, codec, idempotent, records):
    client = producer(bootstrap, idempotent, compression_type=None if codec == "none" else codec)
    pending = [
        client.send(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    client.flush(PATIENCE)
    for index, future in enumerate(pending):
        acknowledge(index, future.get(PATIENCE).offset)
    client.close()


def consume(bootstrap, topic, start, count):
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=32768,
        consumer_timeout_ms=PATIENCE * 1000,
        auto_offset_reset="earliest",
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    if start == "end":
        consumer.seek_to_end(partition)
        consumer.position(partition)
        # One fetch that comes back empty: the next ones wait at the broker.
        if consumer.poll(timeout_ms=1):
            sys.exit("a record behind the end")
        ready()
    elif start == "lost":
        consumer.seek(partition, 0)
    else:
        consumer.seek_to_beginning(partition)
    seen = 0
    for message in consumer:
        show(message.offset, message.timestamp, message.key, message.value, message.headers)
        seen += 1
        if seen == count:
            break
    else:
        sys.exit(f"no record for {PATIENCE} s after {seen}")
    consumer.close()


def load(bootstrap, topic, partition, name, idempotent):
    """Produces until its standard input ends; see the confluent-kafka adapter for what it retries."""
    client = producer(bootstrap, idempotent, **({} if idempotent else {"retries": 0}))
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()

    window = threading.Semaphore(1000)

    def send(sequence):
        if not window.acquire(timeout=PATIENCE):
            sys.exit(f"nothing acknowledged or refused for {PATIENCE} s")
        future = client.send(topic, partition=partition, value=load_value(name, sequence))
        future.add_both(lambda _: window.release())
        future.add_callback(lambda metadata: acknowledge(sequence, metadata.offset))
        future.add_errback(lambda error: refused(sequence, type(error).__name__))

    sequence, pace = 0, Pace()
    while not stop.wait(pace.wait_seconds(sequence)):
        send(sequence)
        sequence += 1
    client.flush(PATIENCE)
    client.close()


run(create=create, delete=delete, purge=purge, produce=produce, consume=consume, load=load)
