"""aiokafka, asyncio."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from command import PATIENCE, Pace, acknowledge, load_value, ready, refused, run, show, watermark


async def create(bootstrap, topic, partitions, settings):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])
    await admin.close()
    for name, code, *text in answer.topic_errors:
        if code:
            sys.exit(f"{name}: error {code} {text}")


async def delete(bootstrap, topic):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()


async def purge(bootstrap, topic, offset):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    partition = TopicPartition(topic, 0)
    watermark((await admin.delete_records({partition: RecordsToDelete(offset)}))[partition])
    await admin.close()


def producer(bootstrap, idempotent, **more):
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=idempotent,
        acks="all" if idempotent else 1,
        max_batch_size=16384,
        linger_ms=5,
        **more,
    )


async def produce(bootstrap, topic, codec, idempotent, records):
    client = producer(bootstrap, idempotent, compression_type=None if codec == "none" else codec)
    await client.start()
    pending = [
        await client.send(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    for index, future in enumerate(pending):
        acknowledge(index, (await asyncio.wait_for(future, PATIENCE)).offset)
    await client.stop()


async def consume(bootstrap, topic, start, count):
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=32768,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    if start == "end":
        await consumer.seek_to_end(partition)
        await consumer.position(partition)
        # One fetch that comes back empty: the next ones wait at the broker.
        if await consumer.getmany(timeout_ms=1):
            sys.exit("a record behind the end")
        ready()
    elif start == "lost":
        consumer.seek(partition, 0)
    else:
        await consumer.seek_to_beginning(partition)
    for _ in range(count):
        message = await asyncio.wait_for(consumer.getone(), PATIENCE)
        show(message.offset, message.timestamp, message.key, message.value, message.headers)
    await consumer.stop()


async def load(bootstrap, topic, partition, name, idempotent):
    """Produces until its standard input ends, with a bounded number of records unacknowledged."""
    client = producer(bootstrap, idempotent)
    await client.start()
    window = asyncio.Semaphore(1000)
    stdin_end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    def report(sequence):
        def done(future):
            window.release()
            if future.exception() is None:
                acknowledge(sequence, future.result().offset)
            else:
                refused(sequence, type(future.exception()).__name__)

        return done

    sequence, pace = 0, Pace()
    while not stdin_end.done():
        await asyncio.sleep(pace.wait_seconds(sequence))
        await window.acquire()
        future = await client.send(topic, partition=partition, value=load_value(name, sequence))
        future.add_done_callback(report(sequence))
        sequence += 1
    await asyncio.wait_for(client.flush(), PATIENCE)
    await client.stop()


def blocking(function):
    return lambda *arguments: asyncio.run(function(*arguments))


run(
    create=blocking(create),
    delete=blocking(delete),
    purge=blocking(purge),
    produce=blocking(produce),
    consume=blocking(consume),
    load=blocking(load),
)
