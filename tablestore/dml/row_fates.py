"""The effect of a statement on the rows of each key, and the resulting change, as SQL for Spark and for DuckDB.

A statement may move rows to other keys, so the change of a key depends on all rows that had the key or are to have it.
"""

from __future__ import annotations

from enum import IntEnum

from snapshot.row_kind import KIND, RowKind
from snapshot.staging.stage import AMBIGUOUS, TAKEN


class Fate(IntEnum):
    """The effect on a single row, before other rows with the same key are taken into account."""

    CHANGED = 10
    """The row gets new values and keeps its key."""
    ARRIVED = 11
    """A row arrives under this key: a new row, or one that had another key."""
    DELETED = 12
    LEFT = 13
    """The row moves to another key."""
    STAYS = 14


def change_of_fate(keys: str) -> str:
    """Return SQL for the row kind of the change that a row makes under its key; NULL if it makes none.

    It is invalid if two rows would have the same key (``TAKEN``), or if a row is changed more than once
    (``AMBIGUOUS``).

    Args:
        keys: the key columns, quoted and separated by commas. ``_kind`` has each row's ``Fate``.
    """

    def count(fate: Fate) -> str:
        return f"sum(CASE WHEN {KIND} = {int(fate)} THEN 1 ELSE 0 END) OVER (PARTITION BY {keys})"

    changed, arrived, left = count(Fate.CHANGED), count(Fate.ARRIVED), count(Fate.LEFT)
    gone = f"CASE WHEN {count(Fate.DELETED)} > 0 THEN 1 ELSE 0 END"
    is_there = f"({changed} > 0 OR ({count(Fate.STAYS)} > 0 AND {gone} = 0 AND {left} = 0))"
    return (
        f"CASE WHEN {changed} + {left} + {gone} > 1 THEN {AMBIGUOUS} "
        f"WHEN {arrived} > 1 OR ({arrived} = 1 AND {is_there}) THEN {TAKEN} "
        f"WHEN {KIND} IN ({int(Fate.CHANGED)}, {int(Fate.ARRIVED)}) THEN {int(RowKind.UPDATE_AFTER)} "
        f"WHEN {KIND} IN ({int(Fate.DELETED)}, {int(Fate.LEFT)}) AND {arrived} = 0 THEN {int(RowKind.DELETE)} END"
    )
