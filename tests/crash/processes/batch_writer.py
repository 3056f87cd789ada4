"""A local writer that may be killed: writes numbered batches, each exactly once however often it is started."""

from __future__ import annotations

import random

from snapshot.row_kind import CHANGE_TYPE
from tablestore import open_local
from tests.crash.kill_points import KillPoint, fall_asleep, set_trap
from tests.harness.local_writes import Change

KEYS = 40


def changes_of(batch: int, rows: int) -> list[Change]:
    """Make a batch's changes; the same for the same number."""
    dice = random.Random(batch)
    return [(dice.randrange(KEYS), None if dice.random() < 0.2 else f"{batch}.{n}") for n in range(rows)]


def run(path: str, writer_name: str, batches: range, rows: int, point: str, hit: int, *, stop: bool = False) -> None:
    """Write batches until done or dead; with ``stop``, fall asleep at the point (SIGSTOP) in place of dying there."""
    set_trap(KillPoint(point, hit, fall_asleep if stop else None))
    with open_local(path) as table:
        for batch in batches:
            changes = changes_of(batch, rows)
            data = [
                {"id": key, "v": value, CHANGE_TYPE: "delete" if value is None else "insert"} for key, value in changes
            ]
            table.write(data, batch=(writer_name, batch))
