"""The process that dies while it expires snapshots."""

from __future__ import annotations

import os

from tablestore.compact import compact
from tablestore.expire import expire, rules_of
from tablestore.opened import OpenedTable
from tests.doors import Trap, set_trap
from tests.parts import run_here


def expire_and_die(path: str, keep_last: int, point: str, hit: int) -> None:
    """Expire, and die where ``point`` is reached for the ``hit``-th time; else end with 0."""
    set_trap(Trap(point, hit))
    table = OpenedTable.open(path)
    expire(table, rules_of(table, "0 s", keep_last))
    os._exit(0)


def compact_and_die(path: str, point: str, hit: int) -> None:
    """Compact, and die likewise."""
    set_trap(Trap(point, hit))
    compact(OpenedTable.open(path), run_here)
    os._exit(0)
