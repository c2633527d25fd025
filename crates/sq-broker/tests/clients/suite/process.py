"""A client process: what it prints, when it is ready, how long it may take."""

import subprocess
import threading
import time
from collections import deque

from . import lines

PIPE = subprocess.PIPE


class ClientFailed(Exception):
    """The client's process failed, or did not end in time; the text has the end of its standard error."""


class Client:
    """Runs a command; its lines are read as they come, so that it never waits for a full pipe.

    `R offset record` lines go to `records`, `A index offset` lines to `acks`, `E index reason` lines to `errors`,
    `W offset` lines to `watermarks`.
    """

    def __init__(self, name, command, environment, stdin=subprocess.DEVNULL):
        self.name = name
        self.records, self.acks, self.errors, self.watermarks = [], [], [], []
        self.ready = threading.Event()
        self._said = deque(maxlen=12)
        self._process = subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._said.extend, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self):
        for line in self._process.stdout:
            kind, _, rest = line.partition("\t")
            if kind == "R":
                offset, _, record = rest.partition("\t")
                self.records.append((int(offset), lines.from_line(record)))
            elif kind == "A":
                index, offset = rest.split("\t")
                self.acks.append((int(index), int(offset)))
            elif kind == "E":
                index, reason = rest.rstrip("\n").split("\t")
                self.errors.append((int(index), reason))
            elif kind == "W":
                self.watermarks.append(int(rest))
            elif line == "READY\n":
                self.ready.set()
            else:
                self._said.append(f"not understood: {line[:200]}")

    def running(self):
        return self._process.poll() is None

    def fail(self, why):
        return ClientFailed(f"{self.name}: {why}\n" + "".join(self._said)[-2000:])

    def wait_ready(self, timeout):
        """Until it says that it waits at the end of the partition."""
        until = time.monotonic() + timeout
        while not self.ready.wait(0.2):
            if not self.running():
                raise self.fail(f"exit {self._process.returncode} before it was ready")
            if time.monotonic() > until:
                raise self.fail(f"not ready after {timeout} s")

    def wait_acks(self, count, timeout):
        """Until it has had `count` acknowledgements in all."""
        until = time.monotonic() + timeout
        while len(self.acks) < count:
            if not self.running():
                raise self.fail(f"exit {self._process.returncode} after {len(self.acks)} acknowledgements")
            if time.monotonic() > until:
                raise self.fail(f"{len(self.acks)} of {count} acknowledgements after {timeout} s")
            time.sleep(0.02)

    def finish(self, timeout):
        """Until it ends by itself, with exit code 0."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self.fail(f"still running after {timeout} s") from None
        for reader in self._readers:
            reader.join(timeout)
        if code:
            raise self.fail(f"exit {code}")
        return self

    def end_input(self):
        self._process.stdin.close()

    def kill(self):
        if self.running():
            self._process.kill()
            self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
