"""kcat, as a person would use it: records on its standard input, and a format for what it prints.

kcat gives every record of one run the same headers and reads an empty field either as empty or, with -Z, as null,
so a data set is sent in as many runs as it takes.
"""

import itertools
import re
import subprocess
import sys
import threading

from command import PATIENCE, acknowledge, ready, run

from suite import lines

_END = "\x01<end>\x01\n"
_ACK = re.compile(r"Message delivered to partition \d+ \(offset (\d+)\)")


def _mode(record):
    """What a record asks for: `True` that empty means null, `False` that it does not, `None` either."""
    if record.value is None:
        return True
    if record.value == b"" or record.key == b"":
        return False
    return None


def _runs(records):
    """Longest stretches that one run of kcat can send."""
    stretch, mode = [], None
    for record in records:
        wanted = _mode(record)
        clash = wanted is not None and mode is not None and wanted != mode
        if stretch and (clash or record.headers != stretch[0].headers):
            yield stretch, mode
            stretch, mode = [], None
        stretch.append(record)
        mode = mode if wanted is None else wanted
    yield stretch, mode


def _header(name, value):
    return ["-H", name if value is None else f"{name}={value.decode()}"]


def produce(bootstrap, topic, codec, idempotent, records):
    index = 0
    for stretch, empty_is_null in _runs(records):
        text = b"".join(
            (b"" if record.key is None else record.key + b":") + (record.value or b"") + b"\n" for record in stretch
        )
        headers = itertools.chain.from_iterable(_header(*header) for header in stretch[0].headers)
        done = subprocess.run(
            ["kcat", "-P", "-vvv", "-b", bootstrap, "-t", topic, "-p", "0", "-K", ":", "-z", codec]
            + ["-X", f"enable.idempotence={'true' if idempotent else 'false'}"]
            + ["-X", f"acks={'all' if idempotent else '1'}", "-X", "batch.size=16384"]
            + (["-Z"] if empty_is_null else [])
            + list(headers),
            input=text,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
        said = done.stderr.decode(errors="replace")
        offsets = _ACK.findall(said)
        if done.returncode or len(offsets) != len(stretch):
            sys.exit(f"{len(offsets)} of {len(stretch)} delivered, exit {done.returncode}: {said[-500:]}")
        for offset in offsets:
            acknowledge(index, int(offset))
            index += 1


def _field(size, text):
    return None if int(size) < 0 else text.encode()


def consume(bootstrap, topic, start, count):
    kcat = subprocess.Popen(
        ["kcat", "-C", "-u", "-b", bootstrap, "-t", topic, "-p", "0", "-c", str(count)]
        + ["-o", "end" if start == "end" else "beginning", "-f", "%o %T %K %S %k %s %h" + _END],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    threading.Thread(target=_watch, args=(kcat, start), daemon=True).start()
    for line in kcat.stdout:
        offset, timestamp, key_size, value_size, key, value, headers = line.removesuffix(_END).split(" ")
        pairs = (pair.split("=") for pair in headers.split(",") if pair)
        record = lines.Record(
            int(timestamp),
            _field(key_size, key),
            _field(value_size, value),
            tuple((name, None if value == "NULL" else value.encode()) for name, value in pairs),
        )
        print(f"R\t{offset}\t{lines.to_line(record)}")
    if kcat.wait(PATIENCE):
        sys.exit(f"kcat: exit {kcat.returncode}")


def _watch(kcat, start):
    for line in kcat.stderr:
        if start == "end" and "Reached end of topic" in line:
            start = ""
            ready()
        sys.stderr.write(line)


run(produce=produce, consume=consume)
