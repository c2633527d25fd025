"""One cell of the matrix: one client, one codec, idempotent or not, on a topic of its own."""

import time
from dataclasses import dataclass

from . import compare, dataset, lines, wire
from .clients import ENVIRONMENT, KINDS
from .lines import Record
from .process import Client, ClientFailed

SEGMENT_BYTES = 65536
# "Dozens of rolls": a cell with fewer segments shows too little.
LEAST_SEGMENTS = 25
PATIENCE = 120
# Records of somebody else at the start of each log, so that its end is not its start.
PREFACE = 7


@dataclass
class Outcome:
    """What a cell showed: for each check the problems found."""

    checks: dict
    segments: int = 0
    seconds: float = 0.0
    stored: bytes = b""

    def passed(self):
        return sum(1 for problems in self.checks.values() if not problems)

    def failed(self):
        return len(self.checks) - self.passed()


class Cell:
    def __init__(self, broker, kind, codec, idempotent, seed, count, scratch):
        self.broker, self.kind, self.codec, self.idempotent = broker, kind, codec, idempotent
        self.topic = f"{kind.name}-{codec}-{'idempotent' if idempotent else 'plain'}"
        self.clock = [int(time.time() * 1000) - 1000, 0]
        base_ms = self.clock[0] - 3_600_000
        self.records = dataset.generate(f"{seed}/{self.topic}", count, kind.traits, base_ms)
        self.preface = [Record(base_ms + at, b"preface", str(at).encode(), ()) for at in range(PREFACE)]
        self.dataset_path = scratch / f"{self.topic}.records"

    def run(self):
        began = time.monotonic()
        outcome = Outcome({})
        try:
            self._run(outcome.checks)
            outcome.segments = self.broker.segments(self.topic)
            outcome.checks["rolls"] = (
                [] if outcome.segments >= LEAST_SEGMENTS else [f"{outcome.segments} segments: no dozens of rolls"]
            )
        except (ClientFailed, wire.WireError, OSError) as error:
            outcome.checks["run"] = [str(error)]
        self.dataset_path.unlink(missing_ok=True)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _run(self, checks):
        checks["create"] = self._create()
        with wire.Connection(self.broker.port) as connection:
            connection.produce(self.topic, 0, self.preface)
        tail_kind = KINDS[self.kind.tail_reader or self.kind.name]
        with self._consume(tail_kind, "end", len(self.records)) as tail:
            tail.wait_ready(PATIENCE)
            checks["acks"] = compare.acks(len(self.records), PREFACE, self._produce())
            self.clock[1] = int(time.time() * 1000) + 1000
            tailed = tail.finish(PATIENCE).records
        checks["tail"] = self._compare(tailed, PREFACE)
        start_kind = KINDS[self.kind.start_reader or self.kind.name]
        with self._consume(start_kind, "start", PREFACE + len(self.records)) as start:
            checks["start"] = self._compare(start.finish(PATIENCE).records, 0)
        batches = wire.read_all(self.broker.port, self.topic)
        checks["stored"] = self._compare([record for batch in batches for record in batch.records], 0)
        # The first batch is the preface.
        checks["batches"] = compare.stored(batches[1:], self.codec, self.idempotent)

    def _create(self):
        settings = [f"segment.bytes={SEGMENT_BYTES}"]
        if self.kind.creates:
            self._client(self.kind, "create", self.broker.address, self.topic, "1", *settings).finish(PATIENCE)
        else:
            self.broker.create_topic(self.topic, 1, settings)
        if f"segment.bytes={SEGMENT_BYTES}" in self._describe():
            return []
        return [f"segment.bytes is not what {self.kind.name} asked for:\n{self._describe()}"]

    def _describe(self):
        said = self.broker.tool("topic", "describe", self.topic, "--bootstrap", self.broker.address)
        return said.replace(" = ", "=")

    def _produce(self):
        lines.write_file(self.dataset_path, self.records)
        words = (self.broker.address, self.topic, self.codec, "1" if self.idempotent else "0")
        with open(self.dataset_path, "rb") as records:
            with self._client(self.kind, "produce", *words, stdin=records) as client:
                return client.finish(PATIENCE).acks

    def _consume(self, kind, start, count):
        return self._client(kind, "consume", self.broker.address, self.topic, start, str(count))

    def _client(self, kind, verb, *words, **more):
        return Client(f"{kind.name} {verb} {self.topic}", [*kind.command, verb, *words], ENVIRONMENT, **more)

    def _compare(self, got, first):
        expected = list(enumerate(self.preface + self.records))
        return compare.records(expected[first:], got, self.clock)
