"""What must hold of a log whose broker was killed: pure functions over what was acknowledged, seen and read."""

from typing import NamedTuple

_SHOWN = 8


class Observed(NamedTuple):
    """A batch that a tailing reader was given while the broker was being killed."""

    base_offset: int
    last_offset: int
    digest: int


class Ledger(NamedTuple):
    """`acks`: `(producer, sequence)` to `(partition, offset)`; `idempotent`: the names of those that are."""

    acks: dict
    idempotent: set


def problems_of(log, ledger, digests, observed):
    """`log`: partition to `(producer, sequence)` by offset, `None` for bytes that no producer sent.

    `digests`: partition to `{base offset: (last offset, digest)}` of the batches there. `observed`: partition to
    what a reader had seen there before.
    """
    problems = []
    for where, records in log.items():
        problems += _once(where, records)
        problems += _in_order(where, records, ledger.idempotent)
    problems += _kept(log, ledger.acks)
    for where, batches in observed.items():
        problems += _as_seen(where, digests[where], batches)
    return problems[:_SHOWN]


def _once(where, records):
    """No record is there twice: idempotent producers may send again, the others were told not to."""
    first = {}
    for offset, record in enumerate(records):
        if record is None:
            yield f"{where} at {offset}: bytes that no producer sent"
        elif first.setdefault(record, offset) != offset:
            yield f"{where} at {offset}: {record} is also at {first[record]}"


def _in_order(where, records, idempotent):
    last = {}
    for offset, record in enumerate(records):
        if record is None or record[0] not in idempotent:
            continue
        name, sequence = record
        if sequence <= last.get(name, -1):
            yield f"{where} at {offset}: {record} behind sequence {last[name]}"
        last[name] = sequence


def _kept(log, acks):
    for record, (where, offset) in acks.items():
        records = log[where]
        there = records[offset] if offset < len(records) else "nothing"
        if there != record:
            yield f"{where} at {offset}: {record} was acknowledged there, {there} is there"


def _as_seen(where, digests, observed):
    for batch in observed:
        there = digests.get(batch.base_offset)
        if there != (batch.last_offset, batch.digest):
            yield f"{where} at {batch.base_offset}: a reader saw another batch there before ({batch}, now {there})"
