"""A record as a line of text, the one format that every adapter reads and writes.

    timestamp TAB key TAB value TAB name=value,name=value

Byte fields and header names are in hexadecimal; null is `-`, so that it stays apart from empty.
"""

from typing import NamedTuple


class Record(NamedTuple):
    """A record; `timestamp` is `None` where the client sets its own."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple


def _text(field):
    return "-" if field is None else bytes(field).hex()


def _bytes(text):
    return None if text == "-" else bytes.fromhex(text)


def to_line(record):
    headers = ",".join(f"{name.encode().hex()}={_text(value)}" for name, value in record.headers)
    timestamp = 0 if record.timestamp is None else record.timestamp
    return f"{timestamp}\t{_text(record.key)}\t{_text(record.value)}\t{headers}"


def from_line(line):
    timestamp, key, value, headers = line.rstrip("\n").split("\t")
    pairs = (header.split("=") for header in headers.split(",") if header)
    return Record(
        int(timestamp),
        _bytes(key),
        _bytes(value),
        tuple((bytes.fromhex(name).decode(), _bytes(value)) for name, value in pairs),
    )


def write_file(path, records):
    with open(path, "w", encoding="ascii") as out:
        out.writelines(to_line(record) + "\n" for record in records)
