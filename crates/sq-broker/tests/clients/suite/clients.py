"""Which clients there are, how each is started, and what each can do."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from .dataset import Traits

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parents[3]
TOOLS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "clients"
PYTHON = TOOLS / "venv" / "bin" / "python"
RDKAFKA_TARGET = TOOLS / "rdkafka"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# pip and npm have their packages here, cargo its build; see `install.py`.
ENVIRONMENT = dict(os.environ, SQ_NODE_MODULES=str(TOOLS / "node"), KAFKAJS_NO_PARTITIONER_WARNING="1")


@dataclass(frozen=True)
class Kind:
    name: str
    command: tuple
    traits: Traits = field(default_factory=Traits)
    # Without an interface of its own for it, topics are created with `sq topic create`.
    creates: bool = True
    # Without one to delete records, it is not tried.
    purges: bool = True
    # Whether it tells the low watermark that the broker answers a deletion with.
    tells_watermark: bool = True
    # Who reads from the end and who from the start: itself, unless it can read only as a group's member.
    tail_reader: str = ""
    start_reader: str = ""


def _python(script):
    return (str(PYTHON), str(HERE / "clients" / script))


_JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{TOOLS}/java/classes:{TOOLS}/java/lib/*")

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "kcat",
            _python("kcat_client.py"),
            # It reads text; a line with neither key nor value is no record to it.
            Traits(binary=False, timestamps=False, run=500, keyless=()),
            creates=False,
            purges=False,
        ),
        Kind("rdkafka", (str(RDKAFKA_TARGET / "release" / "sq-client-rdkafka"),)),
        Kind("confluent-kafka", _python("confluent_client.py")),
        Kind(
            "kafka-python",
            _python("kafkapython_client.py"),
            # Its producer refuses a header without a value, and a record without key and value.
            Traits(null_header_values=False, keyless=("empty",)),
        ),
        Kind("aiokafka", _python("aiokafka_client.py"), Traits(keyless=("empty",))),
        Kind("java", (*_JAVA, "SqClient")),
        Kind(
            "kafkajs",
            ("node", str(HERE / "clients" / "kafkajs" / "client.js")),
            # It takes headers as an object: names that come again are put side by side.
            Traits(null_header_values=False, repeated_headers=False),
            tail_reader="confluent-kafka",
            start_reader="java",
            tells_watermark=False,
        ),
    )
}
