"""A writer process that may be killed: writes numbered batches, each exactly once however often it is started."""

from __future__ import annotations

import os
import random
import signal

from snapshot.store.commit import CommitId
from tablestore.context import TableContext
from tablestore.write.writer import Writer
from tests.crash.kill_points import KillPoint, set_trap
from tests.harness.local_writes import Change, publisher_of, write

KEYS = 40


def changes_of(batch: int, rows: int) -> list[Change]:
    """Make a batch's changes; the same for the same number."""
    dice = random.Random(batch)
    return [(dice.randrange(KEYS), None if dice.random() < 0.2 else f"{batch}.{n}") for n in range(rows)]


def run(path: str, writer_name: str, batches: range, rows: int, point: str, hit: int, *, stop: bool = False) -> None:
    """Write batches until done or dead; with ``stop``, fall asleep at the point (SIGSTOP) in place of dying there."""
    set_trap(KillPoint(point, hit, _stop if stop else None))
    table = TableContext.open(path)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    for batch in batches:
        commit_id = CommitId(writer_name, batch, durable=True)
        writer.recover_once()
        if not writer.publish_landed(commit_id):
            write(writer, changes_of(batch, rows), commit_id)
    publisher.discard()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
