"""`sq serve` as a process of its own, on a free port and a data directory that outlives it."""

import signal
import socket
import subprocess
import time

from .wire import Connection


class BrokerFailed(Exception):
    """The broker did not start, or did not end as it should; the text has the end of its log."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    def __init__(self, sq, data_dir, log_path):
        self.sq, self.data_dir, self.log_path = sq, data_dir, log_path
        # Chosen once: after a restart clients come back to the address that they know.
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process = None

    def start(self, timeout=30):
        self.spawn()
        self.wait_ready(timeout)
        return self

    def spawn(self):
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [self.sq, "serve", "--listen", self.address, "--data-dir", str(self.data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, timeout):
        """Until it answers a request."""
        until = time.monotonic() + timeout
        while True:
            if self._process.poll() is not None:
                raise self._fail(f"exit {self._process.returncode} at start")
            try:
                with Connection(self.port, timeout=5) as connection:
                    connection.api_versions()
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise self._fail(f"no answer {timeout} s after its start: {error}") from None
                time.sleep(0.01)

    def check_alive(self):
        if self._process.poll() is not None:
            raise self._fail(f"it ended in the middle of the run, exit {self._process.returncode}")

    def kill(self):
        """SIGKILL: no handler runs, nothing is flushed."""
        if self._process.poll() is not None:
            raise self._fail(f"it had already ended, exit {self._process.returncode}")
        self._process.kill()
        self._process.wait()

    def stop(self, timeout=30):
        """SIGTERM, upon which it has to end with exit code 0."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise self._fail(f"still running {timeout} s after SIGTERM") from None
        if code:
            raise self._fail(f"exit {code} after SIGTERM")

    def discard(self):
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def tool(self, *words):
        """Runs a `sq` command; returns what it printed."""
        done = subprocess.run([self.sq, *words], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            said = done.stdout[-1000:] + done.stderr[-1000:]
            raise BrokerFailed(f"sq {' '.join(words)}: exit {done.returncode}\n{said}")
        return done.stdout

    def create_topic(self, topic, partitions, settings):
        configs = [word for setting in settings for word in ("--config", setting)]
        self.tool("topic", "create", topic, "--partitions", str(partitions), "--bootstrap", self.address, *configs)

    def segments(self, topic, partition=0):
        return sum(1 for _ in (self.data_dir / topic / str(partition)).glob("*.wal"))

    def _fail(self, why):
        tail = self.log_path.read_bytes()[-2000:].decode(errors="replace")
        return BrokerFailed(f"sq serve: {why}\n{tail}")
