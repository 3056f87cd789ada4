"""One of several writer processes that race on a table: writes until its time is over, with random pauses."""

from __future__ import annotations

import logging
import pickle
import random
import time
from pathlib import Path
from typing import Any

from snapshot.errors import TableStoreError
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.write.metrics import Measured, observe
from tablestore.write.writer import Writer
from tests.crash.matrix.audit import committed
from tests.harness.local_writes import Archive, Change, publisher_of, rows_of, run_here, write

KEYS = 60
KEEP_LAST = 30
READ_BACK = 10


class Fences:
    """Counts how often another publisher took the log over from a writer of this process."""

    count = 0

    def measured(self, measured: Measured) -> None:
        """Ignore an operation that succeeded."""

    def counted(self, path: str, what: str) -> None:
        """Count a fence."""
        self.count += what == "fence"

    def failed(self, path: str, kind: str) -> None:
        """Ignore an error: the writer reports it."""


def race(path: str, name: str, seconds: float, batches: float, rows: int, pause: float, results: Any) -> None:
    """Write batches of the same keys as the other writers; report fences and written rows at the end."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    fences = Fences()
    observe(fences)
    dice = random.Random(name)
    table = TableContext.open(path)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    writer.recover_once()
    results.send((name, "ready", 0))
    results.recv()
    written, batch, until = 0, 0, time.monotonic() + seconds
    while batch < batches and time.monotonic() < until:
        batch += 1
        changes: list[Change] = [
            (dice.randrange(KEYS), None if dice.random() < 0.2 else f"{name}.{batch}.{n}") for n in range(rows)
        ]
        try:
            made = write(writer, changes)
        except TableStoreError as error:
            results.send((name, f"{type(error).__name__}: {error}", 0))
            continue
        written += made.rows if made is not None else 0
        if pause:
            time.sleep(dice.uniform(0, pause))
    publisher.discard()
    results.send((name, "fenced", fences.count))
    results.send((name, "done", written))


def fold_again_and_again(path: str, seconds: float, results: Any) -> None:
    """Compact while others write and read."""
    table = TableContext.open(path)
    results.send(("compactor", "ready", 0))
    results.recv()
    until, folds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        folds += compact(table, run_here) is not None
        time.sleep(0.3)
    results.send(("compactor", "done", folds))


def expire_again_and_again(path: str, partitions: int, seconds: float, results: Any) -> None:
    """Expire while others write, compact and read; what is about to go is kept for the auditor, in a file."""
    archive: Archive = {}
    results.send(("expirer", "ready", 0))
    results.recv()
    until, gone = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        committed(Path(path), partitions, key=True, archive=archive)
        table = TableContext.open(path)
        gone += expire(table, rules_of(table, "0 s", KEEP_LAST)).snapshots
        time.sleep(0.2)
    archive_of(path).write_bytes(pickle.dumps(archive))
    results.send(("expirer", "done", gone))


def archive_of(path: str) -> Path:
    """Name the file in which an expiry keeps what has gone."""
    return Path(f"{path}.archive")


def read_again_and_again(path: str, seconds: float, results: Any) -> None:
    """Read snapshots twice while others write and compact; a snapshot is the same each time."""
    dice = random.Random(path)
    results.send(("reader", "ready", 0))
    results.recv()
    until, seen = time.monotonic() + seconds, {}
    while time.monotonic() < until:
        table = TableContext.open(path)
        newest = table.newest_visible()
        # Older ones may expire while they are read.
        for snapshot in {newest, dice.randint(max(table.files.oldest(), newest - READ_BACK), newest)}:
            rows = rows_of(table, snapshot)
            if seen.setdefault(snapshot, rows) != rows:
                results.send(("reader", f"snapshot {snapshot} changed", 0))
    results.send(("reader", "done", len(seen)))
