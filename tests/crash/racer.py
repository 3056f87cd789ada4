"""One of several writer processes that race on a table: writes until its time is over, with random pauses."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

from snapshot.errors import TableStoreError
from tablestore.compact import compact
from tablestore.opened import OpenedTable
from tablestore.write import Writer
from tests.parts import Change, publisher_of, rows_of, run_here, write

KEYS = 60


def race(path: str, name: str, seconds: float, rows: int, pause: float, results: Any) -> None:
    """Write batches of the same keys as everybody; tell at the end how many rows were written."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    dice = random.Random(name)
    table = OpenedTable.open(path)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    writer.recover_once()
    results.send((name, "ready", 0))
    results.recv()
    written, batch, until = 0, 0, time.monotonic() + seconds
    while time.monotonic() < until:
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
    results.send((name, "done", written))


def fold_again_and_again(path: str, seconds: float, results: Any) -> None:
    """Compact while others write and read."""
    table = OpenedTable.open(path)
    results.send(("compactor", "ready", 0))
    results.recv()
    until, folds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        folds += compact(table, run_here) is not None
        time.sleep(0.3)
    results.send(("compactor", "done", folds))


def read_again_and_again(path: str, seconds: float, results: Any) -> None:
    """Read snapshots twice while others write and compact; a snapshot is the same each time."""
    dice = random.Random(path)
    results.send(("reader", "ready", 0))
    results.recv()
    until, seen = time.monotonic() + seconds, {}
    while time.monotonic() < until:
        table = OpenedTable.open(path)
        newest = table.newest_visible()
        for snapshot in {newest, dice.randint(0, newest)}:
            rows = rows_of(table, snapshot)
            if seen.setdefault(snapshot, rows) != rows:
                results.send(("reader", f"snapshot {snapshot} changed", 0))
    results.send(("reader", "done", len(seen)))
