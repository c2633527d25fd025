#!/usr/bin/env python3
"""The client suite: every client library against a real broker with small segments.

    run.py [--sq PATH] [--client NAME ...] [--codec NAME ...] [--seed N] [--records N]

Its last line is `N passed, N failed`; it exits with 1 where anything failed.
"""

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
from pathlib import Path

from suite import self_check, wire
from suite.broker import Broker, BrokerFailed
from suite.cell import Cell
from suite.clients import CODECS, KINDS, TOOLS
from suite.process import ClientFailed
from suite.purge import Purge

MODES = (("plain", False), ("idempotent", True))


def arguments():
    parser = argparse.ArgumentParser(description="Client libraries against a real broker.")
    parser.add_argument("--sq", type=Path, default=TOOLS.parent / "release" / "sq", help="the binary under test")
    parser.add_argument("--client", action="append", choices=KINDS, help="only this one; may be repeated")
    parser.add_argument("--codec", action="append", choices=CODECS, help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--records", type=int, default=10_000, help="records in each cell")
    return parser.parse_args()


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def add(self, passed, failed):
        self.passed += passed
        self.failed += failed

    def check(self, name, problems):
        """One check outside the matrix."""
        self.add(int(not problems), int(bool(problems)))
        print(f"{name}: {'ok' if not problems else 'FAILED'}", flush=True)
        show(problems)


def show(problems):
    for problem in problems:
        print("    " + str(problem).replace("\n", "\n    "), flush=True)


def run_cell(broker, kind, codec, mode, options, scratch, tally):
    outcome = Cell(broker, kind, codec, mode[1], options.seed, options.records, scratch).run()
    tally.add(outcome.passed(), outcome.failed())
    verdict = "ok" if not outcome.failed() else "FAILED"
    print(
        f"{kind.name} {codec} {mode[0]}: {verdict}, {outcome.passed()} checks passed, "
        f"{outcome.segments} segments, {outcome.seconds:.1f} s",
        flush=True,
    )
    for check, problems in outcome.checks.items():
        show(f"{check}: {problem}" for problem in problems)
    return outcome


def print_matrix(outcomes, kinds, columns):
    print("\nsegments of each cell's log, or what failed")
    print("".join([f"{'':16}"] + [f"{codec + ('+i' if idempotent else ''):>10}" for codec, (_, idempotent) in columns]))
    for kind in kinds:
        row = [outcomes[kind.name, codec, mode[0]] for codec, mode in columns]
        shown = [str(one.segments) if not one.failed() else "FAILED" for one in row]
        print("".join([f"{kind.name:16}"] + [f"{text:>10}" for text in shown]), flush=True)
    print("(+i: idempotent)\n")


def check_purges(broker, kinds, tally):
    for kind in kinds:
        if not kind.purges:
            continue
        try:
            problems = Purge(broker, kind).problems()
        except (BrokerFailed, ClientFailed, wire.WireError, OSError) as error:
            problems = [error]
        tally.check(f"{kind.name} deletes records, and a kill brings none back", problems)
        broker.check_alive()


def digest(broker, topic):
    whole = hashlib.sha256()
    for batch in wire.read_all(broker.port, topic, decode=False):
        whole.update(batch.raw)
    return whole.digest()


def check_restart(broker, topics, tally):
    """Stopped in order, the logs on disk are sound, and served again they are the same bytes."""
    before = {topic: digest(broker, topic) for topic in topics}
    problems = []
    try:
        broker.stop()
        tally.check("stops at SIGTERM with exit code 0", [])
        broker.tool("segment", "verify", str(broker.data_dir))
        tally.check("sq segment verify finds nothing", [])
        broker.start()
        problems = [f"{topic} differs" for topic in topics if digest(broker, topic) != before[topic]]
        broker.stop()
    except (BrokerFailed, wire.WireError, OSError) as error:
        problems.append(str(error))
    tally.check(f"after a restart the {len(topics)} logs are the same bytes", problems)


def main():
    options = arguments()
    kinds = [KINDS[name] for name in options.client or KINDS]
    columns = [(codec, mode) for codec in options.codec or CODECS for mode in MODES]
    print(f"seed {options.seed}", flush=True)
    tally = Tally()
    noticed, missed = self_check.run()
    tally.add(noticed, 0)
    tally.check(f"self-check: {noticed} comparisons judge rightly", missed)
    TOOLS.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=TOOLS))
    broker = Broker(str(options.sq), scratch / "data", scratch / "sq.log")
    outcomes = {}
    try:
        broker.start()
        for kind in kinds:
            for codec, mode in columns:
                outcome = run_cell(broker, kind, codec, mode, options, scratch, tally)
                outcomes[kind.name, codec, mode[0]] = outcome
                broker.check_alive()
        print_matrix(outcomes, kinds, columns)
        check_purges(broker, kinds, tally)
        topics = ["-".join(key) for key, outcome in outcomes.items() if not outcome.failed()]
        check_restart(broker, topics, tally)
    except BrokerFailed as error:
        tally.check("the broker runs", [error])
    finally:
        broker.discard()
    if tally.failed:
        print(f"the broker's log and data are kept in {scratch}")
    else:
        shutil.rmtree(scratch)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
