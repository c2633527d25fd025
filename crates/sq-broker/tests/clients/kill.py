#!/usr/bin/env python3
"""The kill test: SIGKILL under pipelined load from several producers, then restart on the same data.

    kill.py [--rounds N] [--seed N] [--sq PATH]

Every acknowledged record has to be at its offset afterwards, once. Its last line is `N passed, N failed`.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from suite import payload, wire
from suite.broker import Broker, BrokerFailed
from suite.clients import ENVIRONMENT, KINDS, TOOLS
from suite.kill_check import Ledger, problems_of
from suite.kill_watch import Watch, digest_of
from suite.process import PIPE, Client, ClientFailed

SEGMENT_BYTES = 65536
TOPICS = ("kill-a", "kill-b")
PARTITIONS = tuple((topic, partition) for topic in TOPICS for partition in (0, 1))
# Partition, client, whether idempotent: partitions with one producer and with several.
PRODUCERS = (
    (PARTITIONS[0], "confluent-kafka", True),
    (PARTITIONS[0], "confluent-kafka", False),
    (PARTITIONS[1], "java", True),
    (PARTITIONS[2], "aiokafka", True),
    (PARTITIONS[2], "confluent-kafka", True),
    (PARTITIONS[3], "kafka-python", False),
    (PARTITIONS[3], "java", False),
)
# Each producer has so many records acknowledged before the kill and again after the restart.
LEAST_ACKS = 200
PATIENCE = 90


class Logs:
    """All that the partitions hold, read once: of what was read before only the bytes are compared again."""

    def __init__(self):
        self.records = {where: [] for where in PARTITIONS}
        self.digests = {where: {} for where in PARTITIONS}

    def read(self, broker):
        """Reads everything anew; returns what is no longer as it was."""
        problems = []
        for where in PARTITIONS:
            known, records = self.digests[where], self.records[where]
            now = {}
            for batch in wire.read_all(broker.port, *where, decode=False):
                now[batch.base_offset] = (batch.last_offset, digest_of(batch))
                if batch.base_offset not in known:
                    (decoded,) = wire.split(batch.raw)
                    records += [payload.parse(record.value) for _, record in decoded.records]
            if any(now.get(base) != entry for base, entry in known.items()):
                problems.append(f"{where}: a batch that was read in an earlier round is not the same any more")
            self.digests[where] = now
        return problems


class Kills:
    def __init__(self, broker, seed):
        self.broker, self.random = broker, random.Random(seed)
        self.logs, self.ledger = Logs(), Ledger({}, set())

    def round(self, number):
        """One kill, or two in a row; returns the problems found and one line on what was checked."""
        watch = Watch(self.broker.port, PARTITIONS)
        producers = {}
        try:
            for index, (where, kind, idempotent) in enumerate(PRODUCERS):
                name = f"{number}-{index}-{kind}"
                producers[name] = (where, self._start(name, where, kind, idempotent))
                if idempotent:
                    self.ledger.idempotent.add(name)
            self._wait_acks(producers, dict.fromkeys(producers, 0))
            kills = self._kill()
            self._wait_acks(producers, {name: len(client.acks) for name, (_, client) in producers.items()})
            for _, client in producers.values():
                client.end_input()
            for _, client in producers.values():
                client.finish(PATIENCE)
        finally:
            observed = watch.stop()
            for _, client in producers.values():
                client.kill()
        return self._check(producers, observed, kills)

    def _start(self, name, where, kind, idempotent):
        topic, partition = where
        words = (self.broker.address, topic, str(partition), name, "1" if idempotent else "0")
        return Client(name, [*KINDS[kind].command, "load", *words], ENVIRONMENT, stdin=PIPE)

    @staticmethod
    def _wait_acks(producers, base):
        for name, (_, client) in producers.items():
            client.wait_acks(base[name] + LEAST_ACKS, PATIENCE)

    def _kill(self):
        """Kills at a random moment; every other time once more while it recovers or has just begun to serve."""
        time.sleep(self.random.uniform(0.0, 2.0))
        self.broker.kill()
        kills = 1
        if self.random.random() < 0.5:
            self.broker.spawn()
            time.sleep(self.random.uniform(0.0, 0.4))
            self.broker.kill()
            kills += 1
        self.broker.start()
        return kills

    def _check(self, producers, observed, kills):
        acknowledged = 0
        problems = []
        for name, (where, client) in producers.items():
            for sequence, offset in client.acks:
                if (name, sequence) in self.ledger.acks:
                    problems.append(f"{name}: sequence {sequence} was acknowledged twice")
                self.ledger.acks[name, sequence] = (where, offset)
            acknowledged += len(client.acks)
            if client.errors and name in self.ledger.idempotent:
                problems.append(f"{name}: an idempotent producer gave up: {client.errors[:3]}")
        # What is read is what a recovery brought back, not what the broker remembers.
        self.broker.kill()
        self.broker.start()
        problems += self.logs.read(self.broker)
        problems += problems_of(self.logs.records, self.ledger, self.logs.digests, observed)
        refused = sum(len(client.errors) for _, client in producers.values())
        segments = sum(self.broker.segments(*where) for where in PARTITIONS)
        seen = sum(len(batches) for batches in observed.values())
        said = (
            f"{kills + 1} kills, {acknowledged} records acknowledged and {refused} refused in it, "
            f"{len(self.ledger.acks)} acknowledgements and {seen} batches seen by readers checked, "
            f"{segments} segments"
        )
        return problems, said


def arguments():
    parser = argparse.ArgumentParser(description="SIGKILL under load, then restart.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--sq", type=Path, default=TOOLS.parent / "release" / "sq", help="the binary under test")
    return parser.parse_args()


def finish(broker):
    """Stopped in order, what is on disk has to be sound."""
    broker.stop()
    broker.tool("segment", "verify", str(broker.data_dir))


def main():
    options = arguments()
    print(f"seed {options.seed}", flush=True)
    TOOLS.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="kill-", dir=TOOLS))
    broker = Broker(str(options.sq), scratch / "data", scratch / "sq.log")
    passed = failed = 0
    try:
        broker.start()
        for topic in TOPICS:
            broker.create_topic(topic, 2, [f"segment.bytes={SEGMENT_BYTES}"])
        kills = Kills(broker, options.seed)
        for number in range(1, options.rounds + 1):
            began = time.monotonic()
            problems, said = kills.round(number)
            verdict = "FAILED" if problems else "ok"
            print(f"round {number}: {verdict}, {said}, {time.monotonic() - began:.1f} s", flush=True)
            for problem in problems:
                print(f"    {problem}", flush=True)
            passed, failed = passed + (not problems), failed + bool(problems)
        finish(broker)
        passed += 1
    except (BrokerFailed, ClientFailed, wire.WireError, OSError) as error:
        print(f"FAILED: {error}", flush=True)
        failed += 1
    finally:
        broker.discard()
    if failed:
        print(f"the broker's log and data are kept in {scratch}")
    else:
        shutil.rmtree(scratch)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
