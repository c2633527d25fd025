"""A check that cannot fail shows nothing: each comparison is fed one wrong thing at a time and must complain."""

from . import compare, dataset, wire
from .kill_check import Ledger, Observed, problems_of
from .lines import Record, from_line, to_line

_WINDOW = (0, 1 << 60)


def _swap(items, at, item):
    return items[:at] + [item] + items[at + 1 :]


def _wrong_readings(good):
    """Readings of `good`, a list of `(offset, Record)`, each with one thing wrong."""
    offset, record = good[5]
    other = record._replace(value=(record.value or b"") + b"!")
    yield "a record is missing", good[:5] + good[6:]
    yield "the last record is missing", good[:-1]
    yield "a record came twice", good[:6] + good[5:]
    yield "two records changed places", _swap(_swap(good, 5, good[6]), 6, good[5])
    yield "an offset is off by one", _swap(good, 5, (offset + 1, record))
    yield "a value has another byte", _swap(good, 5, (offset, other))
    yield "a null value became empty", [(at, one._replace(value=one.value or b"")) for at, one in good]
    yield "an empty value became null", [(at, one._replace(value=one.value or None)) for at, one in good]
    yield "a null key became empty", [(at, one._replace(key=one.key or b"")) for at, one in good]
    yield "an empty key became null", [(at, one._replace(key=one.key or None)) for at, one in good]
    yield "headers are lost", [(at, one._replace(headers=())) for at, one in good]
    yield "headers are turned round", [(at, one._replace(headers=one.headers[::-1])) for at, one in good]
    yield (
        "null header values became empty",
        [(at, one._replace(headers=tuple((name, value or b"") for name, value in one.headers))) for at, one in good],
    )
    yield "a timestamp moved", _swap(good, 5, (offset, record._replace(timestamp=record.timestamp + 1)))


def _of_records():
    records = dataset.generate("self-check", 2000, dataset.Traits(), 1_700_000_000_000)
    good = [(7 + at, record) for at, record in enumerate(records)]
    yield "the right records pass", not compare.records(good, good, _WINDOW)
    yield "the line format keeps them", [from_line(to_line(record)) for record in records] == records
    for story, wrong in _wrong_readings(good):
        yield f"records: {story}", bool(compare.records(good, wrong, _WINDOW))
    unstamped = [(at, record._replace(timestamp=None)) for at, record in good]
    yield "records: a timestamp outside the run", bool(compare.records(unstamped, good, (0, 1)))


def _of_acks():
    good = [(at, 7 + at) for at in range(100)]
    yield "the right acknowledgements pass", not compare.acks(100, 7, good)
    yield "acks: one is missing", bool(compare.acks(100, 7, good[:-1]))
    yield "acks: one came twice", bool(compare.acks(100, 7, good + good[:1]))
    yield "acks: one has another offset", bool(compare.acks(100, 7, _swap(good, 50, (50, 58))))


def _of_batches():
    records = [Record(1000 + at, b"k", b"some value " * 40, ()) for at in range(5)]
    raw = wire.encode_batch(records)
    (batch,) = wire.split(raw)
    yield "a batch is read as it was written", [record for _, record in batch.records] == records
    yield "batches: the right ones pass", not compare.stored([batch], "none", False)
    yield "batches: not compressed", bool(compare.stored([batch], "gzip", False))
    yield "batches: another codec", bool(compare.stored([batch._replace(codec=2)], "gzip", False))
    yield "batches: no producer id", bool(compare.stored([batch], "none", True))
    stamped = batch._replace(producer_id=9, producer_epoch=0, base_sequence=0)
    yield "batches: the right sequences pass", not compare.stored([stamped], "none", True)
    yield "batches: a sequence is left out", bool(compare.stored([stamped._replace(base_sequence=1)], "none", True))
    yield "batches: a producer id unasked", bool(compare.stored([stamped], "none", False))
    flipped = bytearray(raw)
    flipped[-1] ^= 1
    try:
        wire.split(bytes(flipped))
        caught = False
    except wire.WireError:
        caught = True
    yield "batches: a flipped bit", caught


def _of_kills():
    where = ("topic", 0)
    log = {where: [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)]}
    batch = wire.split(wire.encode_batch([Record(1, None, b"v", ())]))[0]
    digests = {where: {0: (0, hash(batch.raw))}}
    seen = {where: [Observed(0, 0, hash(batch.raw))]}

    def ledger(acks, idempotent=("a",)):
        return Ledger({(name, seq): (where, offset) for name, seq, offset in acks}, set(idempotent))

    good = [("a", 0, 0), ("b", 0, 1), ("a", 1, 2)]
    yield "kill: the right log passes", not problems_of(log, ledger(good), digests, seen)
    cases = {
        "an acknowledged record is gone": ({where: log[where][:2]}, good),
        "an acknowledged record is elsewhere": (log, [("a", 0, 1)]),
        "a record is there twice": ({where: log[where] + [("b", 0)]}, good),
        "an idempotent record is there twice, unacknowledged": ({where: log[where] + [("a", 2)]}, good),
        "idempotent records changed places": ({where: [("a", 1), ("a", 0)]}, []),
        "bytes that nobody sent": ({where: log[where] + [None]}, good),
    }
    for story, (wrong, acks) in cases.items():
        yield f"kill: {story}", bool(problems_of(wrong, ledger(acks), digests, seen))
    other = {where: [Observed(0, 0, hash(b"other"))]}
    yield "kill: a reader saw another record there", bool(problems_of(log, ledger(good), digests, other))
    beyond = {where: [Observed(9, 9, 1)]}
    yield "kill: a reader saw a record that is gone", bool(problems_of(log, ledger(good), digests, beyond))


def run():
    """`(passed, [what did not notice])`."""
    results = [result for part in (_of_records, _of_acks, _of_batches, _of_kills) for result in part()]
    return sum(1 for _, good in results if good), [story for story, good in results if not good]
