"""The records that a client is given: deterministic from a seed, within what that client can say."""

import random
from dataclasses import dataclass

from .lines import Record

_TEXT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@dataclass(frozen=True)
class Traits:
    """What a client's interface can express. The defaults are all that the record format has."""

    binary: bool = True
    timestamps: bool = True
    null_header_values: bool = True
    repeated_headers: bool = True
    # What a record without a key may have for a value, besides bytes.
    keyless: tuple = ("null", "empty")
    # Records in a row that share headers and one way of reading an empty field; 1 is no limit.
    run: int = 1


def _payload(rng, size, traits):
    """Most of it compresses well; the rest does so by a quarter, or not at all where a codec only finds repeats."""
    if rng.random() < 0.6:
        token = bytes(rng.choices(_TEXT, k=rng.randint(4, 24)))
        data = (token * (size // len(token) + 1))[:size]
    else:
        data = rng.randbytes(size).translate(_TEXT * 4)
    if traits.binary and size:
        # Every byte value turns up, zero and the delimiters of text tools among them.
        at = rng.randrange(size)
        data = data[:at] + rng.randbytes(min(16, size - at)) + data[at + 16 :]
    return data


def _value_size(rng):
    draw = rng.random()
    if draw < 0.90:
        return rng.randint(1, 600)
    if draw < 0.985:
        return rng.randint(600, 4096)
    return rng.randint(4096, 32768)


def _optional(rng, size, traits, empties):
    """A null, an empty or a full field; `empties` names which of the first two may occur."""
    draw = rng.random()
    if draw < 0.06 and "null" in empties:
        return None
    if draw > 0.96 and "empty" in empties:
        return b""
    return _payload(rng, size, traits)


def _headers(rng, traits):
    names = ["trace", "h", "längd", "content-type", "x" * 60] if traits.binary else ["trace", "h", "type"]
    chosen = [rng.choice(names) for _ in range(rng.choice([0, 0, 1, 2, 4]))]
    if not traits.repeated_headers:
        chosen = list(dict.fromkeys(chosen))
    empties = {"null", "empty"} if traits.null_header_values else {"empty"}
    return tuple((name, _optional(rng, rng.randint(1, 60), traits, empties)) for name in chosen)


def generate(seed, count, traits, base_ms):
    """`count` records; timestamps lie around `base_ms` and do not only ascend."""
    rng = random.Random(seed)
    records = []
    large = {count // 3: 300_000, count // 2: 100_000}
    headers, empties = (), {"null", "empty"}
    for index in range(count):
        if index % traits.run == 0:
            headers = _headers(rng, traits)
            if traits.run > 1:
                empties = {rng.choice(["null", "empty"])}
        key = None if rng.random() < 0.1 else _optional(rng, rng.randint(1, 40), traits, empties)
        allowed = empties if key is not None else empties & set(traits.keyless)
        if index in large:
            allowed = set()
        value = _optional(rng, large.get(index) or _value_size(rng), traits, allowed)
        timestamp = base_ms + index * 3 + rng.randint(-2000, 2000) if traits.timestamps else None
        records.append(Record(timestamp, key, value, headers))
    return records
