"""The demo's publisher service, and a writer without Spark that is killed: ``python _flights_service.py PATH``.

The writer corrects the delays of one day and kills itself with SIGKILL after the snapshot is committed and before its
first record is published.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from _flights_writer import die_instead_of_publishing

from tablestore import Snapshot, TableStore, open_local

WAIT_SECONDS = 60.0


class Service:
    """A running ``tablestore serve``."""

    def __init__(self, address: str, path: str) -> None:
        self._address = address
        self._path = path

    @property
    def published(self) -> int:
        """The newest snapshot in the log, from the service's metrics."""
        found = re.search(r"^tablestore_published_snapshot\{.*\} (\d+)", self._get("metrics"), re.MULTILINE)
        return int(found[1]) if found else -1

    def page(self) -> str:
        """Return the page of the table."""
        return self._get(f"table?path={quote(self._path)}")

    def _get(self, page: str) -> str:
        with urllib.request.urlopen(self._address + page, timeout=10) as answer:
            return str(answer.read().decode())


@contextmanager
def serving(path: str) -> Iterator[Service]:
    """Run ``tablestore serve`` for a table."""
    command = [sys.executable, "-m", "tablestore", "serve", path, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/", process.stdout.readline())
            assert found is not None
            yield Service(found[0], path)
        finally:
            process.terminate()


def leave_behind(flights: TableStore) -> Snapshot:
    """Run the writer that is killed, and return the snapshot that it left."""
    ran = subprocess.run([sys.executable, __file__, flights.path], check=False, stdout=subprocess.DEVNULL)
    if ran.returncode != -signal.SIGKILL:
        msg = f"The writer without Spark ended with {ran.returncode}, and was to be killed."
        raise SystemExit(msg)
    (left,) = flights.snapshots(limit=1)
    if left.operation != "update":
        msg = f"The writer without Spark was to leave an update, and left {left}."
        raise SystemExit(msg)
    return left


def seconds_until_published(service: Service, snapshot: Snapshot) -> float:
    """Return how long after its commit a snapshot was in the log."""
    end = time.monotonic() + WAIT_SECONDS
    while service.published < snapshot.id:
        if time.monotonic() > end:
            msg = f"Snapshot {snapshot.id} is not in the log after {WAIT_SECONDS:.0f} s."
            raise SystemExit(msg)
        time.sleep(0.02)
    return time.time() - snapshot.timestamp_ms / 1000


def main(path: str) -> None:
    flights = open_local(path)
    flights.recover()
    die_instead_of_publishing()
    flights.update("day = DATE '2013-01-01'", {"dep_delay": "greatest(dep_delay, 0)"})


if __name__ == "__main__":
    main(sys.argv[1])
