"""Processes that die while they expire snapshots or combine change files."""

from __future__ import annotations

import os

from tablestore.context import TableContext
from tablestore.maintenance.compact import compact_if_due
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tests.crash.kill_points import KillPoint, set_trap
from tests.harness.local_writes import run_here


def expire_and_die(path: str, keep_last: int, point: str, hit: int) -> None:
    """Expire, and die where ``point`` is reached for the ``hit``-th time; else end with 0."""
    set_trap(KillPoint(point, hit))
    table = TableContext.open(path)
    expire(table, rules_of(table, "0 s", keep_last))
    os._exit(0)


def compact_if_due_and_die(path: str, point: str) -> None:
    """Compact or combine change files as after a write, and die where ``point`` is reached; else end with 0."""
    set_trap(KillPoint(point, 1))
    compact_if_due(TableContext.open(path), run_here)
    os._exit(0)
