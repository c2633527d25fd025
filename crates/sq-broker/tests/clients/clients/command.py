"""The command line that the Python adapters share; `../README.md` describes it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from suite import lines, payload  # noqa: E402

PATIENCE = 60
load_value = payload.value
Pace = payload.Pace


def ready():
    print("READY", flush=True)


def watermark(low):
    print(f"W\t{low}")


def show(offset, timestamp, key, value, headers):
    record = lines.Record(timestamp, key, value, tuple(headers or ()))
    sys.stdout.write(f"R\t{offset}\t{lines.to_line(record)}\n")


def acknowledge(index, offset):
    sys.stdout.write(f"A\t{index}\t{offset}\n")


def refused(sequence, reason):
    sys.stdout.write(f"E\t{sequence}\t{reason}\n")


def run(**commands):
    """Calls `commands[argv[1]]` with the other arguments; settings of `create` come as a dict."""
    name, *arguments = sys.argv[1:]
    if name == "create":
        bootstrap, topic, partitions, *settings = arguments
        commands[name](bootstrap, topic, int(partitions), dict(pair.split("=", 1) for pair in settings))
    elif name == "produce":
        bootstrap, topic, codec, idempotent = arguments
        records = [lines.from_line(line) for line in sys.stdin]
        commands[name](bootstrap, topic, codec, idempotent == "1", records)
    elif name == "consume":
        bootstrap, topic, start, count = arguments
        commands[name](bootstrap, topic, start, int(count))
    elif name == "purge":
        bootstrap, topic, offset = arguments
        commands[name](bootstrap, topic, int(offset))
    elif name == "load":
        # Acknowledgements are read as they come.
        sys.stdout.reconfigure(line_buffering=True)
        bootstrap, topic, partition, producer, idempotent = arguments
        commands[name](bootstrap, topic, int(partition), producer, idempotent == "1")
    else:
        commands[name](*arguments)
    sys.stdout.flush()
