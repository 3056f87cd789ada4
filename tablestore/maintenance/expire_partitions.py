"""Partitions whose time has come are deleted, which is published as any delete is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.records import Snapshot
from tablestore.audit.log_inspection import Progress
from tablestore.context import TableContext
from tablestore.options.partition_time import PartitionTime


@dataclass(frozen=True)
class PartitionsReport:
    """What was deleted or, in a dry run, would be.

    Attributes:
        path: the table's folder.
        dry_run: whether nothing was done.
        partitions: the old partitions, as ``name=value/...``.
        timeless: partitions whose values say no time; they stay.
        snapshot: the snapshot that deletes the old ones; None where there was none to make.
        rows: changes in it.
    """

    path: str
    dry_run: bool
    partitions: tuple[str, ...]
    timeless: tuple[str, ...]
    snapshot: int | None = None
    rows: int = 0

    def __str__(self) -> str:
        """Show it in a line."""
        what = "would delete" if self.dry_run else "deleted"
        timeless = f" {len(self.timeless):,} partitions say no time and stay." if self.timeless else ""
        return f"{self.path}: {what} {len(self.partitions):,} partitions, {self.rows:,} rows.{timeless}"


def expire_partitions(
    table: TableContext,
    read: Callable[[], DataFrame],
    delete: Callable[[Column], Snapshot | None],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PartitionsReport:
    """Delete the partitions that are older than ``partition.expiration-time``, in one snapshot.

    1. List the partitions: a scan of the partition columns alone.
    2. Delete the rows of the old ones. A crash before its commit leaves all as it was.

    Args:
        table: the table.
        read: gives the newest rows' partition columns.
        delete: deletes the rows that a condition selects.
        dry_run: look only.
        progress: told how many partitions have been deleted, of how many.

    Raises:
        InvalidInputError: the table has no partitions, or no ``partition.expiration-time``.
    """
    options, names = table.options.partition, table.spec.partition_by
    if options.expiration_ms is None or not names:
        msg = (
            f"expire_partitions: table {table.path!r} needs option 'partition.expiration-time' and partition columns; "
            f"it has {'no such option' if names else 'no partitions'}. Make the table with both."
        )
        raise InvalidInputError(msg)
    pattern, before = _rule(table, options.expiration_ms)
    # Step 1.
    found = [row.asDict() for row in read().select(*map(backquoted, names)).distinct().collect()]
    times = [(values, pattern.of(values)) for values in found]
    old = [values for values, time in times if time is not None and time < before]
    timeless = tuple(sorted(_named(values) for values, time in times if time is None))
    made = None
    # Step 2.
    if old and not dry_run:
        made = delete(reduce(Column.__or__, map(_condition, old)))
        if progress is not None:
            progress(len(old), len(old))
    return PartitionsReport(
        table.path,
        dry_run,
        tuple(sorted(map(_named, old))),
        timeless,
        None if made is None else made.id,
        0 if made is None else made.rows,
    )


def has_old_partitions(table: TableContext) -> bool:
    """Tell whether partitions are old, by the names of the root's files alone.

    What changes hold that are not compacted yet shows a little later; what deletes of these changes have taken away
    shows until then, and finds nothing to delete.
    """
    expiration_ms, names = table.options.partition.expiration_ms, table.spec.partition_by
    if expiration_ms is None or not names:
        return False
    pattern, before = _rule(table, expiration_ms)
    found = {tuple(file.partition.get(name) for name in names) for file in table.files.base_table.files()}
    times = (pattern.of(dict(zip(names, values, strict=True))) for values in found)
    return any(time is not None and time < before for time in times)


def _rule(table: TableContext, expiration_ms: int) -> tuple[PartitionTime, datetime]:
    """Give how a partition says its time, and the time before which it is old."""
    options = table.options.partition
    pattern = PartitionTime(options.pattern or f"${table.spec.partition_by[0]}", options.formatter)
    return pattern, datetime.now(UTC) - timedelta(milliseconds=expiration_ms)


def _condition(values: dict[str, object]) -> Column:
    return reduce(Column.__and__, [F.col(backquoted(name)).eqNullSafe(F.lit(value)) for name, value in values.items()])


def _named(values: dict[str, object]) -> str:
    return "/".join(f"{name}={'NULL' if value is None else value}" for name, value in values.items())
