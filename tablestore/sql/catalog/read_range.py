"""What changed in a store table between two snapshots, as options ``incremental-between`` of a hint say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import COMMIT_VERSION, SEQ
from tablestore.options.read_options import timestamp_millis
from tablestore.table.store import TableStore

BETWEEN: Final = "incremental-between"
BETWEEN_TIMES: Final = "incremental-between-timestamp"
BETWEEN_MODE: Final = "incremental-between-scan-mode"
RANGE_OPTIONS: Final = (BETWEEN, BETWEEN_TIMES, BETWEEN_MODE)
_MODES: Final = ("auto", "delta", "changelog")
_ENDS: Final = 2


@dataclass(frozen=True)
class ReadRange:
    """A range of snapshots: those after the first one, up to the last one.

    Attributes:
        first: a snapshot's id or a tag; or a time, as text.
        last: the same.
        times: whether they are times.
    """

    first: str
    last: str
    times: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadRange | None:
        """Parse the options of a hint; None if there is no range among them.

        Raises:
            InvalidInputError: an option is not valid.
        """
        mode = given.get(BETWEEN_MODE, _MODES[0]).lower()
        if mode == "diff":
            msg = (
                f"option '{BETWEEN_MODE}'='diff' is not supported: use SELECT * FROM t /*+ OPTIONS('snapshot' = '2') "
                "*/ EXCEPT SELECT * FROM t /*+ OPTIONS('snapshot' = '1') */."
            )
            raise InvalidInputError(msg)
        if mode not in _MODES:
            msg = f"option '{BETWEEN_MODE}': expected one of {', '.join(_MODES)}, got '{mode}'."
            raise InvalidInputError(msg)
        named = [name for name in (BETWEEN, BETWEEN_TIMES) if name in given]
        if len(named) != 1:
            if not named and BETWEEN_MODE not in given:
                return None
            msg = f"expected one of the options '{BETWEEN}' and '{BETWEEN_TIMES}', got {' and '.join(named) or 'none'}."
            raise InvalidInputError(msg)
        ends = [each.strip() for each in given[named[0]].split(",")]
        if len(ends) != _ENDS or not all(ends):
            what = "times" if named[0] == BETWEEN_TIMES else "snapshots or tags"
            msg = f"option '{named[0]}': expected two {what}, such as '1,3', got '{given[named[0]]}'."
            raise InvalidInputError(msg)
        return cls(ends[0], ends[1], named[0] == BETWEEN_TIMES)

    def changes(self, table: TableStore) -> DataFrame:
        """Return the changes: the table's columns, ``_change_type`` and ``_commit_version``.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            DataLostError: the snapshots in between have expired.
            InvalidInputError: the last snapshot is older than the first.
        """
        if not self.times:
            return _changes(table, self.first, self.last)
        snapshots = table.snapshots()
        first_ms, last_ms = (timestamp_millis(_time(end)) for end in (self.first, self.last))
        oldest = snapshots[-1]
        before = max((each.id for each in snapshots if each.timestamp_ms <= first_ms), default=None)
        through = max((each.id for each in snapshots if each.timestamp_ms <= last_ms), default=oldest.id)
        if before is None and last_ms >= oldest.timestamp_ms:
            return rows_then_changes(table, oldest.id, through)
        return _changes(table, oldest.id if before is None else before, max(through, before or 0))

    def rows(self, table: TableStore) -> DataFrame:
        """Return the rows that were written in the range and not deleted in it; of a key, the newest row."""
        changes, key = self.changes(table), table.primary_key
        if key:
            columns = [F.col(backquoted(name)) for name in key]
            # Of the two rows of an update, the name of the new one sorts first.
            newest = Window.partitionBy(*columns).orderBy(F.col(COMMIT_VERSION).desc(), F.col(CHANGE_TYPE))
            changes = changes.withColumn(SEQ, F.row_number().over(newest)).where(F.col(SEQ) == 1)
        stays = (RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type)
        return changes.where(F.col(CHANGE_TYPE).isin(*stays)).select(*map(backquoted, table.schema.names))


def rows_then_changes(table: TableStore, first: int, last: int | None = None) -> DataFrame:
    """Return the rows of a snapshot, as inserts, and the changes since then: up to another one, or all."""
    changes = _changes(table, first, last)
    return inserted(table, snapshot=first).select(*map(backquoted, changes.columns)).union(changes)


def _changes(table: TableStore, first: int | str, last: int | str | None) -> DataFrame:
    names = (*table.schema.names, CHANGE_TYPE, COMMIT_VERSION)
    return table.changes(first, last).select(*map(backquoted, names))


def inserted(table: TableStore, **snapshot: Any) -> DataFrame:
    """Return the rows of a snapshot as inserts, with ``_change_type`` and ``_commit_version``, which is 0."""
    rows = table.read(**snapshot).withColumn(CHANGE_TYPE, F.lit(RowKind.INSERT.change_type))
    return rows.withColumn(COMMIT_VERSION, F.lit(0).cast("long"))


def _time(text: str) -> str | int:
    return int(text) if text.isdigit() else text
