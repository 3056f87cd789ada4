"""Partition expiration: deletes old partitions and publishes the deletes like any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from log_system.report import Progress
from snapshot.errors import InvalidInputError
from snapshot.messages import counted
from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.options.partition_time import PartitionTime, check_time
from tablestore.options.specification import PartitionOptions

PartitionValues = Mapping[str, object]
"""The values of a partition's columns, by name."""


@dataclass(frozen=True)
class PartitionsReport:
    """The partitions that were deleted or, in a dry run, would be deleted.

    Attributes:
        path: the table's folder.
        dry_run: whether nothing was deleted.
        partitions: the expired partitions, as ``name=value/...``.
        timeless: partitions whose values do not yield a time; they are kept.
        snapshot: the snapshot that deleted the expired partitions; None if none was made.
        rows: the number of changes in that snapshot.
    """

    path: str
    dry_run: bool
    partitions: tuple[str, ...]
    timeless: tuple[str, ...]
    snapshot: int | None = None
    rows: int = 0

    def __str__(self) -> str:
        """Return the report as one line."""
        what = "would delete" if self.dry_run else "deleted"
        timeless = f" Kept, without a time: {counted(len(self.timeless), 'partition')}." if self.timeless else ""
        return (
            f"{self.path}: {what} {counted(len(self.partitions), 'partition')}, {counted(self.rows, 'row')}.{timeless}"
        )


def expiration_of(table: TableContext, given: Mapping[str, str]) -> PartitionOptions:
    """Return the options by which the table's partitions expire: its own, unless others are given.

    Raises:
        InvalidInputError: the table has no partitions, or there is no ``partition.expiration-time``; or a given option
            is not valid.
    """
    names = table.spec.partition_by
    options = PartitionOptions.read({**table.options.partition.to_properties(), **given})
    check_time(options.pattern, options.formatter, names)
    if options.expiration_ms is None or not names:
        msg = (
            f"expire_partitions: table {table.path!r} needs option 'partition.expiration-time' and partition columns; "
            f"it has {'no such option: set it by alter.set_options(), or give it' if names else 'no partitions'}."
        )
        raise InvalidInputError(msg)
    return options


def expire_partitions(
    table: TableContext,
    partitions: Callable[[], Sequence[PartitionValues]],
    delete: Callable[[Sequence[PartitionValues]], Snapshot | None],
    given: Mapping[str, str],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PartitionsReport:
    """Delete the partitions older than ``partition.expiration-time`` in one snapshot.

    1. List the partitions by scanning only the partition columns.
    2. Delete the rows of the expired partitions. A crash before the commit leaves the table unchanged.

    Args:
        table: the table.
        partitions: returns the partitions of the newest snapshot's rows.
        delete: deletes all rows of some partitions.
        given: options that replace the table's.
        dry_run: only report what would be deleted.
        progress: called with the number of partitions deleted so far and the total.

    Raises:
        InvalidInputError: see ``expiration_of``.
    """
    pattern, before = _rule(table, expiration_of(table, given), table.files.storage.now_ms(dry_run=dry_run))
    # Step 1.
    times = [(values, pattern.of(values)) for values in partitions()]
    old = [values for values, time in times if time is not None and time < before]
    timeless = tuple(sorted(_named(values) for values, time in times if time is None))
    snapshot = None
    # Step 2.
    if old and not dry_run:
        snapshot = delete(old)
        if progress is not None:
            progress(len(old), len(old))
    return PartitionsReport(
        table.path,
        dry_run,
        tuple(sorted(map(_named, old))),
        timeless,
        None if snapshot is None else snapshot.id,
        0 if snapshot is None else snapshot.rows,
    )


def has_old_partitions(table: TableContext) -> bool:
    """Return whether the base table's files belong to an expired partition; reads no data files.

    Changes that are not compacted yet are not considered. So an expired partition may be noticed late, and one whose
    rows have been deleted may be reported until the next compaction, in which case there is nothing to delete.
    """
    options, names = table.options.partition, table.spec.partition_by
    if options.expiration_ms is None or not names:
        return False
    pattern, before = _rule(table, options, int(time.time() * 1000))
    partitions = {tuple(file.partition.get(name) for name in names) for file in table.files.base_table.files()}
    times = (pattern.of(dict(zip(names, values, strict=True))) for values in partitions)
    return any(time is not None and time < before for time in times)


def _rule(table: TableContext, options: PartitionOptions, now_ms: int) -> tuple[PartitionTime, datetime]:
    """Return how to read a partition's time, and the time before which a partition is expired."""
    assert options.expiration_ms is not None
    pattern = PartitionTime(options.pattern or f"${table.spec.partition_by[0]}", options.formatter)
    return pattern, datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(milliseconds=options.expiration_ms)


def _named(values: PartitionValues) -> str:
    return "/".join(f"{name}={'NULL' if value is None else value}" for name, value in values.items())
