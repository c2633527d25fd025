"""Records deleted through each client's own admin interface, with a kill of the broker right behind the answer."""

import time

from . import compare, wire
from .clients import ENVIRONMENT, KINDS
from .lines import Record
from .process import Client

SEGMENT_BYTES = 16384
PATIENCE = 120
BATCHES, BATCH = 12, 50
RECORDS = BATCHES * BATCH
# Within the first segment and a batch, within a later one, below the start, and all there is.
OFFSETS = (7, RECORDS // 2 + 7, 3, -1)


class Purge:
    def __init__(self, broker, kind):
        self.broker, self.kind = broker, kind
        self.topic = f"{kind.name}-purged"
        base_ms = int(time.time() * 1000)
        self.records = [Record(base_ms + at, b"%d" % at, b"%d " % at * 60, ()) for at in range(RECORDS)]

    def problems(self):
        self.broker.create_topic(self.topic, 1, [f"segment.bytes={SEGMENT_BYTES}"])
        with wire.Connection(self.broker.port) as connection:
            for first in range(0, RECORDS, BATCH):
                connection.produce(self.topic, 0, self.records[first : first + BATCH])
        problems, start = [], 0
        for offset in OFFSETS:
            start = max(start, offset) if offset >= 0 else RECORDS
            said = self._client(self.kind, "purge", str(offset)).watermarks
            self.broker.kill()
            self.broker.start()
            expected = [start] if self.kind.tells_watermark else []
            if said != expected:
                problems.append(f"up to {offset}: the answer is {said}, expected {expected}")
            problems += self._begins_at(start)
        return problems

    def _begins_at(self, start):
        with wire.Connection(self.broker.port) as connection:
            found = tuple(connection.list_offset(self.topic, 0, at) for at in (-2, -1))
            if found != (start, RECORDS):
                yield f"the log holds {found}, expected {start} to {RECORDS}"
            try:
                connection.fetch(self.topic, 0, start - 1)
                yield f"{start - 1} is deleted, and was fetched"
            except wire.WireError as error:
                if not str(error).endswith("error 1"):
                    yield f"{start - 1} is deleted, and answered with {error}"
        if start == RECORDS:
            return
        reader = KINDS[self.kind.start_reader or self.kind.name]
        left = list(enumerate(self.records))[start:]
        for at in ("start", "lost"):
            read = self._client(reader, "consume", at, str(len(left))).records
            for problem in compare.records(left, read, (0, 0)):
                yield f"{reader.name} from the {at}: {problem}"

    def _client(self, kind, verb, *words):
        command = [*kind.command, verb, self.broker.address, self.topic, *words]
        with Client(f"{kind.name} {verb} {self.topic}", command, ENVIRONMENT) as client:
            return client.finish(PATIENCE)
