"""The row kinds of a change, in the numbering of Flink's ``RowKind``, and their names in Delta's change feed."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

KIND = "_kind"
"""Name of the int8 column with the row kind of a change, in change files and in memory."""

CHANGE_TYPE = "_change_type"
"""Name of the string column with the row kind in the rows that users write and read (Delta change data feed)."""


class RowKind(IntEnum):
    """The kind of a change to a row."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def change_type(self) -> str:
        """The name of this kind in the ``_change_type`` column."""
        return CHANGE_TYPE_NAMES[self.value]

    @property
    def sign(self) -> str:
        """The name of this kind in Flink, such as ``+I``."""
        return SIGNS[self.value]


TRUNCATE: Final = 4
"""Kind of the log record that deletes all rows (``store/truncate_changes.py``); no row of a file has it."""

CHANGE_TYPE_NAMES: tuple[str, str, str, str] = ("insert", "update_preimage", "update_postimage", "delete")
"""The ``_change_type`` of each row kind, indexed by its number."""

ADDED: Final = (RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type)
"""The ``_change_type`` of rows that come with a change; rows of the other kinds go."""

SIGNS: tuple[str, str, str, str] = ("+I", "-U", "+U", "-D")
"""Flink's short names of the row kinds, in the same order."""
