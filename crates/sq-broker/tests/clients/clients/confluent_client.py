"""confluent-kafka, the Python binding of librdkafka."""

import sys
import threading

from command import PATIENCE, Pace, acknowledge, load_value, ready, refused, run, show, watermark
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


def create(bootstrap, topic, partitions, settings):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    for outcome in admin.create_topics([new], request_timeout=PATIENCE).values():
        outcome.result(PATIENCE)


def delete(bootstrap, topic):
    for outcome in AdminClient({"bootstrap.servers": bootstrap}).delete_topics([topic]).values():
        outcome.result(PATIENCE)


def purge(bootstrap, topic, offset):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (outcome,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    watermark(outcome.result(PATIENCE).low_watermark)


def producer(bootstrap, idempotent, **more):
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "acks": "all" if idempotent else "1",
            "batch.size": 16384,
            "linger.ms": 5,
            **more,
        }
    )


def produce(bootstrap, topic, codec, idempotent, records):
    client = producer(bootstrap, idempotent, **{"compression.type": codec, "delivery.timeout.ms": PATIENCE * 1000})
    failures = []

    def delivered(index):
        def report(error, message):
            if error:
                failures.append(f"record {index}: {error}")
            else:
                acknowledge(index, message.offset())

        return report

    for index, record in enumerate(records):
        fields = {"key": record.key, "value": record.value, "headers": list(record.headers)}
        while True:
            try:
                client.produce(topic, partition=0, timestamp=record.timestamp, on_delivery=delivered(index), **fields)
                break
            except BufferError:
                client.poll(0.1)
        client.poll(0)
    left = client.flush(PATIENCE)
    if left or failures:
        sys.exit(f"{left} left in the queue; {failures[:3]}")


def consume(bootstrap, topic, start, count):
    # The library insists on a group's name; with `assign` it joins none.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 32768,
        }
    )
    offset = 0 if start == "lost" else OFFSET_BEGINNING
    if start == "end":
        _, offset = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE)
    consumer.assign([TopicPartition(topic, 0, offset)])
    seen, waiting = 0, start == "end"
    while seen < count:
        message = consumer.poll(PATIENCE)
        if message is None:
            sys.exit(f"no record for {PATIENCE} s after {seen}")
        if message.error():
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            if waiting:
                # From here on its fetches wait at the broker.
                waiting = False
                ready()
            continue
        show(message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers())
        seen += 1
    consumer.close()


def load(bootstrap, topic, partition, name, idempotent):
    """Produces until its standard input ends, over every loss of the broker.

    Without idempotence it does not retry either: a record that it sent twice could rightly be there twice.
    """
    more = {} if idempotent else {"retries": 0}
    client = producer(bootstrap, idempotent, **more, **{"queue.buffering.max.messages": 1000})
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()

    def delivered(sequence):
        def report(error, message):
            if error is None:
                acknowledge(sequence, message.offset())
            elif idempotent and error.fatal():
                sys.exit(f"fatal: {error}")
            else:
                refused(sequence, error.name())

        return report

    sequence, pace = 0, Pace()
    while not stop.is_set():
        try:
            client.produce(topic, load_value(name, sequence), partition=partition, on_delivery=delivered(sequence))
            sequence += 1
            client.poll(pace.wait_seconds(sequence))
        except BufferError:
            client.poll(0.05)
    left = client.flush(PATIENCE)
    if left:
        sys.exit(f"{left} records neither acknowledged nor refused after {PATIENCE} s")


run(create=create, delete=delete, purge=purge, produce=produce, consume=consume, load=load)
