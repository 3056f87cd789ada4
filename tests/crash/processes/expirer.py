"""The process that dies while it expires snapshots."""

from __future__ import annotations

import os

from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tests.crash.kill_points import KillPoint, set_trap
from tests.harness.local_writes import run_here


def expire_and_die(path: str, keep_last: int, point: str, hit: int) -> None:
    """Expire, and die where ``point`` is reached for the ``hit``-th time; else end with 0."""
    set_trap(KillPoint(point, hit))
    table = TableContext.open(path)
    expire(table, rules_of(table, "0 s", keep_last))
    os._exit(0)


def compact_and_die(path: str, point: str, hit: int) -> None:
    """Compact, and die likewise."""
    set_trap(KillPoint(point, hit))
    compact(TableContext.open(path), run_here)
    os._exit(0)
