"""A Kafka client of a few requests, written from the protocol guide and sharing no code with a client under test.

It sees what client libraries hide: a stored batch's attributes, producer id, sequence and checksum.
"""

import gzip
import socket
import struct
from typing import NamedTuple

import cramjam
import crc32c

from .lines import Record

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_BATCH = struct.Struct(">qiibIhiqqqhii")
_XERIAL = b"\x82SNAPPY\x00"


class WireError(Exception):
    """The broker answered with an error code, or with bytes that cannot be read."""


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    codec: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    raw: bytes
    # The records' bytes as the producer laid them before compression.
    plain: bytes
    records: list


def _string(text):
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class Connection:
    """One connection with one request in flight."""

    def __init__(self, port, timeout=30):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._correlation = 0

    def close(self):
        self._stream.close()
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _read(self, size):
        data = self._stream.read(size)
        if len(data) != size:
            raise ConnectionError("the broker closed the connection")
        return data

    def _call(self, api, version, body):
        self._correlation += 1
        header = struct.pack(">hhi", api, version, self._correlation) + _string("sq-suite")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        (correlation,) = struct.unpack_from(">i", answer)
        if correlation != self._correlation:
            raise WireError(f"answer {correlation} to request {self._correlation}")
        return answer[4:]

    def api_versions(self):
        """ApiVersions 0: `{api: (lowest, highest)}`."""
        answer = self._call(18, 0, b"")
        error, count = struct.unpack_from(">hi", answer)
        if error:
            raise WireError(f"ApiVersions: error {error}")
        rows = (struct.unpack_from(">hhh", answer, 6 + 6 * row) for row in range(count))
        return {api: (low, high) for api, low, high in rows}

    def list_offset(self, topic, partition, timestamp):
        """ListOffsets 1; −2 asks for the earliest offset, −1 for the next one to be written."""
        body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">iiq", 1, partition, timestamp)
        answer = self._call(2, 1, body)
        error, _, offset = struct.unpack_from(">hqq", answer, 4 + 2 + len(topic) + 4 + 4)
        if error:
            raise WireError(f"ListOffsets of {topic}-{partition}: error {error}")
        return offset

    def produce(self, topic, partition, records):
        """Produce 3 with acks=all, one uncompressed batch without a producer id; returns its base offset."""
        batch = encode_batch(records)
        body = struct.pack(">hhii", -1, -1, 30_000, 1) + _string(topic)
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        answer = self._call(0, 3, body)
        error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(topic) + 4 + 4)
        if error:
            raise WireError(f"Produce to {topic}-{partition}: error {error}")
        return offset

    def fetch(self, topic, partition, offset, max_bytes=1 << 20, max_wait_ms=0):
        """Fetch 10, the lowest that may carry zstd, without a session: the high watermark and the raw batches."""
        body = struct.pack(">iiiibiii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1, 1) + _string(topic)
        body += struct.pack(">iiiqqii", 1, partition, -1, offset, -1, max_bytes, 0)
        answer = self._call(1, 10, body)
        _, error, _, topics = struct.unpack_from(">ihii", answer)
        if error or topics != 1:
            raise WireError(f"Fetch of {topic}-{partition} at {offset}: error {error}, {topics} topics")
        at = 14 + 2 + len(topic) + 4
        _, error, watermark, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
        at += 34 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        if error:
            raise WireError(f"Fetch of {topic}-{partition} at {offset}: error {error}")
        return watermark, answer[at + 4 : at + 4 + max(size, 0)]


def read_all(port, topic, partition=0, start=0, decode=True):
    """Every batch of a partition from `start` to the end it had when asked.

    Offsets must go on without a gap, and each checksum must fit; the rest is for the caller to judge.
    """
    batches = []
    with Connection(port) as connection:
        end = connection.list_offset(topic, partition, -1)
        while start < end:
            _, data = connection.fetch(topic, partition, start)
            got = split(data, decode)
            if not got:
                raise WireError(f"{topic}-{partition}: nothing at {start}, yet the log ends at {end}")
            for batch in got:
                if batch.base_offset != start:
                    raise WireError(f"{topic}-{partition}: asked for {start}, got a batch at {batch.base_offset}")
                start = batch.last_offset + 1
                batches.append(batch)
    return batches


def split(data, decode=True):
    """The whole batches in `data`; what a size limit cut at the end is left."""
    batches, at = [], 0
    while at + _BATCH.size <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        raw = data[at : at + 12 + length]
        if len(raw) < 12 + length:
            break
        batches.append(_batch(raw, decode))
        at += 12 + length
    return batches


def _batch(raw, decode):
    (base, _, _, magic, crc, attributes, last_delta, first_ts, _, pid, epoch, sequence, count) = _BATCH.unpack_from(raw)
    if magic != 2:
        raise WireError(f"batch at {base}: magic {magic}")
    if crc32c.crc32c(raw[21:]) != crc:
        raise WireError(f"batch at {base}: its checksum does not fit")
    codec = attributes & 7
    plain = _decompress(codec, raw[_BATCH.size :]) if decode else b""
    records = _records(plain, base, first_ts, count) if decode else []
    if decode and [offset for offset, _ in records] != list(range(base, base + last_delta + 1)):
        raise WireError(f"batch at {base}: its records' offsets do not run to {base + last_delta}")
    return Batch(base, base + last_delta, codec, pid, epoch, sequence, raw, plain, records)


def _decompress(codec, data):
    if codec == CODECS["none"]:
        return data
    if codec == CODECS["gzip"]:
        return gzip.decompress(data)
    if codec == CODECS["snappy"]:
        return _unsnappy(data)
    if codec == CODECS["lz4"]:
        return bytes(cramjam.lz4.decompress(data))
    if codec == CODECS["zstd"]:
        return bytes(cramjam.zstd.decompress(data))
    raise WireError(f"codec {codec}")


def compress(codec, data):
    """As a client would with that codec; the framing may differ by some bytes."""
    encode = {
        "none": bytes,
        "gzip": gzip.compress,
        "snappy": cramjam.snappy.compress_raw,
        "lz4": cramjam.lz4.compress,
        "zstd": cramjam.zstd.compress,
    }[codec]
    return bytes(encode(data))


def _unsnappy(data):
    """Raw snappy, or the block framing of the Java library that Kafka took over."""
    if not data.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(data))
    plain, at = b"", 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        plain += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return plain


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _field(data, at):
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _records(data, base, first_ts, count):
    records, at = [], 0
    for _ in range(count):
        length, at = _varint(data, at)
        end = at + length
        timestamp, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        key, at = _field(data, at)
        value, at = _field(data, at)
        headers, at = _header_list(data, at)
        if at != end:
            raise WireError(f"record {base + delta}: {end - at} bytes left over")
        records.append((base + delta, Record(first_ts + timestamp, key, value, headers)))
    if at != len(data):
        raise WireError(f"batch at {base}: {len(data) - at} bytes after its last record")
    return records


def _header_list(data, at):
    count, at = _varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _field(data, at)
        value, at = _field(data, at)
        headers.append((name.decode(), value))
    return tuple(headers), at


def _put(value):
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _put_field(field):
    return _put(-1) if field is None else _put(len(field)) + field


def encode_batch(records):
    """An uncompressed batch, without a producer id, at base offset 0."""
    first = records[0].timestamp
    body = b""
    for delta, record in enumerate(records):
        fields = b"\0" + _put(record.timestamp - first) + _put(delta)
        fields += _put_field(record.key) + _put_field(record.value) + _put(len(record.headers))
        fields += b"".join(_put_field(name.encode()) + _put_field(value) for name, value in record.headers)
        body += _put(len(fields)) + fields
    last, latest, count = len(records) - 1, max(record.timestamp for record in records), len(records)
    tail = struct.pack(">hiqqqhii", 0, last, first, latest, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail
