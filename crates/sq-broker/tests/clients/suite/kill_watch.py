"""Readers at the tail of each partition while the broker is killed and comes back."""

import threading
import time
import zlib

from . import wire
from .kill_check import Observed


def digest_of(batch):
    """Of the bytes as they were served, the leader epoch included."""
    return zlib.crc32(batch.raw)


class Watch:
    """Follows each partition from its end of now on; over a broken connection it goes on where it was."""

    def __init__(self, port, partitions):
        self._port = port
        self._stop = threading.Event()
        self._observed = {where: [] for where in partitions}
        self._failed = []
        self._threads = []
        for where in partitions:
            with wire.Connection(port) as connection:
                end = connection.list_offset(*where, -1)
            self._threads.append(threading.Thread(target=self._follow, args=(where, end), daemon=True))
        for thread in self._threads:
            thread.start()

    def _follow(self, where, offset):
        while not self._stop.is_set():
            try:
                with wire.Connection(self._port, timeout=10) as connection:
                    while not self._stop.is_set():
                        offset = self._fetch(connection, where, offset)
            except OSError:
                # Killed, and not back yet.
                time.sleep(0.02)
            except wire.WireError as error:
                self._failed.append(f"{where}: {error}")
                return

    def _fetch(self, connection, where, offset):
        _, data = connection.fetch(*where, offset, max_wait_ms=200)
        for batch in wire.split(data, decode=False):
            self._observed[where].append(Observed(batch.base_offset, batch.last_offset, digest_of(batch)))
            if batch.base_offset != offset:
                raise wire.WireError(f"a reader at {offset} was given a batch at {batch.base_offset}")
            offset = batch.last_offset + 1
        return offset

    def stop(self):
        """What was seen; a reader that was refused is a failure."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if self._failed:
            raise wire.WireError("; ".join(self._failed))
        return self._observed
