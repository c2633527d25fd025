"""What must hold of what a client read and of what the broker stored. Every function returns the problems found."""

from .wire import CODECS, compress

_SHOWN = 4


def _brief(record):
    def cut(field):
        return field if field is None or len(field) <= 24 else field[:24] + b"..." + str(len(field)).encode()

    headers = [(name, cut(value)) for name, value in record.headers]
    return f"ts={record.timestamp} key={cut(record.key)} value={cut(record.value)} headers={headers}"


def records(expected, got, clock_window):
    """`expected` and `got` are lists of `(offset, Record)`; they must be the same, in the same order.

    Where an expected record has no timestamp the one that came must lie in `clock_window`, milliseconds.
    """
    problems = []
    if len(expected) != len(got):
        problems.append(f"{len(expected)} records expected, {len(got)} came")
    for (offset, wanted), (at, came) in zip(expected, got, strict=False):
        if offset != at:
            problems.append(f"offset {offset} expected, {at} came")
        if wanted.timestamp is None and clock_window[0] <= came.timestamp <= clock_window[1]:
            wanted = wanted._replace(timestamp=came.timestamp)
        if wanted != came:
            problems.append(f"at {at}: expected {_brief(wanted)}, came {_brief(came)}")
        if len(problems) >= _SHOWN:
            break
    return problems


def acks(count, first_offset, got):
    """`got` is a list of `(index, offset)`: record i of a lone producer belongs at `first_offset + i`."""
    by_index = dict(got)
    problems = []
    if len(got) != count or len(by_index) != count:
        problems.append(f"{count} acknowledgements expected, {len(got)} came, of {len(by_index)} records")
    for index, offset in sorted(by_index.items()):
        if offset != first_offset + index:
            problems.append(f"record {index} acknowledged at {offset}, expected {first_offset + index}")
        if len(problems) >= _SHOWN:
            break
    return problems


def stored(batches, codec, idempotent):
    """The codec bits, producer ids and sequences that the broker stored.

    A client may leave a batch alone that compression does not shorten, so such a batch may carry codec 0; it is
    compressed here to see whether that holds, and three batches of four must carry the codec's own bits.
    """
    problems, compressed = [], 0
    sequences = {}
    for batch in batches:
        if batch.codec == CODECS[codec]:
            compressed += 1
        elif batch.codec != 0 or _shrinks(codec, batch.plain):
            problems.append(
                f"batch at {batch.base_offset}: codec bits {batch.codec}, expected {CODECS[codec]} ({codec})"
            )
        problems += _sequence(batch, sequences) if idempotent else _no_producer(batch)
    if compressed < 0.75 * len(batches):
        problems.append(f"{compressed} of {len(batches)} batches carry the bits of {codec}")
    return problems[:_SHOWN]


def _shrinks(codec, plain):
    """Clearly: beyond what two encoders and two framings of one codec may differ by."""
    return len(compress(codec, plain)) + 64 < 0.95 * len(plain)


def _no_producer(batch):
    if batch.producer_id != -1:
        yield f"batch at {batch.base_offset}: producer {batch.producer_id} where none was asked for"


def _sequence(batch, sequences):
    """A client that runs several times has an id for each time, and each counts from 0."""
    expected = sequences.get(batch.producer_id, 0)
    sequences[batch.producer_id] = expected + len(batch.records)
    if batch.producer_id < 0 or batch.base_sequence != expected:
        yield (
            f"batch at {batch.base_offset}: producer {batch.producer_id}, sequence {batch.base_sequence}, "
            f"expected an id and sequence {expected}"
        )
