"""What changed in a store table between two snapshots, as ``incremental-between`` and ``scan.mode`` of a hint say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import ADDED, CHANGE_TYPE, RowKind
from snapshot.schema.spark_types import types_in
from snapshot.schema.system_columns import COMMIT_VERSION, SEQ
from snapshot.store.changes import MAINTENANCE
from tablestore.options.read_options import timestamp_millis
from tablestore.table.store import TableStore

BETWEEN: Final = "incremental-between"
BETWEEN_TIMES: Final = "incremental-between-timestamp"
BETWEEN_MODE: Final = "incremental-between-scan-mode"
RANGE_OPTIONS: Final = (BETWEEN, BETWEEN_TIMES, BETWEEN_MODE)
MODE: Final = "scan-mode"
NEWEST_CHANGES: Final = "latest-delta"
"""The mode that reads what changed in the newest snapshot with changes."""
_DIFF: Final = "diff"
_MODES: Final = ("auto", "delta", "changelog", _DIFF)
_ENDS: Final = 2


@dataclass(frozen=True)
class ReadRange:
    """A range of snapshots: those after the first one, up to the last one.

    Attributes:
        first: a snapshot's id or a tag; or a time, as text; empty for the newest snapshot with changes alone.
        last: the same.
        times: whether they are times.
        differs: whether only the rows of the two snapshots are compared, whatever happened in between.
    """

    first: str = ""
    last: str = ""
    times: bool = False
    differs: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadRange | None:
        """Parse the options of a hint; None if there is no range among them.

        Raises:
            InvalidInputError: an option is not valid.
        """
        mode = given.get(BETWEEN_MODE, _MODES[0]).lower()
        if mode not in _MODES:
            msg = f"option '{BETWEEN_MODE}': expected one of {', '.join(_MODES)}, got '{mode}'."
            raise InvalidInputError(msg)
        named = [name for name in (BETWEEN, BETWEEN_TIMES) if name in given]
        if given.get(MODE) == NEWEST_CHANGES:
            if named:
                msg = f"'{MODE}'='{NEWEST_CHANGES}' already selects a range: remove '{named[0]}'."
                raise InvalidInputError(msg)
            return cls()
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
        return cls(ends[0], ends[1], named[0] == BETWEEN_TIMES, mode == _DIFF)

    def changes(self, table: TableStore) -> DataFrame:
        """Return the changes: the table's columns, ``_change_type`` and ``_commit_version``.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            DataLostError: the snapshots in between have expired.
            InvalidInputError: the last snapshot is older than the first; or rows are compared, and have a MAP.
        """
        first, last = self._ends(table)
        if self.differs:
            return _differences(table, first, last)
        return (
            rows_then_changes(table, table.snapshots()[-1].id, last) if first is None else _changes(table, first, last)
        )

    def _ends(self, table: TableStore) -> tuple[int | str | None, int | str]:
        """Return the snapshots between which the range is; None for the first if it begins before the oldest one."""
        if not self.last:
            snapshots = table.snapshots()
            newest = next((each.id for each in snapshots if each.operation not in MAINTENANCE), None)
            return (snapshots[0].id, snapshots[0].id) if newest is None else (newest - 1, newest)
        if not self.times:
            return self.first, self.last
        snapshots = table.snapshots()
        first_ms, last_ms = (timestamp_millis(_time(end)) for end in (self.first, self.last))
        oldest = snapshots[-1]
        before = max((each.id for each in snapshots if each.timestamp_ms <= first_ms), default=None)
        through = max((each.id for each in snapshots if each.timestamp_ms <= last_ms), default=oldest.id)
        if before is None and last_ms >= oldest.timestamp_ms:
            return None, through
        return oldest.id if before is None else before, max(through, before or 0)

    def rows(self, table: TableStore) -> DataFrame:
        """Return the rows that were written in the range and not deleted in it; of a key, the newest row."""
        changes, key = self.changes(table), table.primary_key
        if key:
            columns = [F.col(backquoted(name)) for name in key]
            # Of the two rows of an update, the name of the new one sorts first.
            newest = Window.partitionBy(*columns).orderBy(F.col(COMMIT_VERSION).desc(), F.col(CHANGE_TYPE))
            changes = changes.withColumn(SEQ, F.row_number().over(newest)).where(F.col(SEQ) == 1)
        return changes.where(F.col(CHANGE_TYPE).isin(*ADDED)).select(*map(backquoted, table.schema.names))


def rows_then_changes(table: TableStore, first: int, last: int | str | None = None) -> DataFrame:
    """Return the rows of a snapshot, as inserts, and the changes since then: up to another one, or all."""
    changes = _changes(table, first, last)
    return inserted(table, snapshot=first).select(*map(backquoted, changes.columns)).union(changes)


def _changes(table: TableStore, first: int | str, last: int | str | None) -> DataFrame:
    names = (*table.schema.names, CHANGE_TYPE, COMMIT_VERSION)
    return table.changes(first, last).select(*map(backquoted, names))


def _differences(table: TableStore, first: int | str | None, last: int | str) -> DataFrame:
    """Return the rows that a snapshot has and an earlier one has not, as inserts, and the reverse as deletes.

    Of a key, the new row of an update is an insert, and only keys that are gone are deleted.

    Raises:
        InvalidInputError: the rows have a MAP.
    """
    if any(isinstance(kind, MapType) for kind in types_in(table.schema)):
        msg = (
            f"option '{BETWEEN_MODE}'='{_DIFF}': table {table.path!r} has a MAP, which cannot be compared. Use 'delta'."
        )
        raise InvalidInputError(msg)
    after, key = _rows_at(table, last), table.primary_key
    before = after.limit(0) if first is None else _rows_at(table, first)
    if key:
        keys = after.select(*map(backquoted, key)).alias("_after")
        same = [F.col(f"_before.{backquoted(name)}") == F.col(f"_after.{backquoted(name)}") for name in key]
        gone = before.alias("_before").join(keys, same, "left_anti")
    else:
        gone = before.exceptAll(after)
    kinds = ((after.exceptAll(before), RowKind.INSERT), (gone, RowKind.DELETE))
    new, old = (rows.withColumn(CHANGE_TYPE, F.lit(kind.change_type)) for rows, kind in kinds)
    return new.union(old).withColumn(COMMIT_VERSION, F.lit(0).cast("long"))


def _rows_at(table: TableStore, point: int | str) -> DataFrame:
    return table.read(snapshot=int(point)) if str(point).isdigit() else table.read(tag=str(point))


def inserted(table: TableStore, **snapshot: Any) -> DataFrame:
    """Return the rows of a snapshot as inserts, with ``_change_type`` and ``_commit_version``, which is 0."""
    rows = table.read(**snapshot).withColumn(CHANGE_TYPE, F.lit(RowKind.INSERT.change_type))
    return rows.withColumn(COMMIT_VERSION, F.lit(0).cast("long"))


def _time(text: str) -> str | int:
    return int(text) if text.isdigit() else text
