"""The gate: limits transactional readers to the offsets of complete, published snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from log_system.index import IndexEntry
from snapshot.errors import DataLostError


@dataclass(frozen=True)
class Boundary:
    """The end of one snapshot in one log partition.

    Attributes:
        end: offset after the snapshot's last record in the partition.
        snapshot: the snapshot's id.
        timestamp_ms: when it was committed.
    """

    end: int
    snapshot: int
    timestamp_ms: int


@dataclass(frozen=True)
class PartitionSlice:
    """The part of a log partition that holds consecutive complete snapshots.

    Attributes:
        partition: the Kafka partition.
        start: first offset.
        end: offset after the last record.
        records: number of Kafka records in the slice.
        boundaries: the end of each snapshot that has records in the slice, in order.
    """

    partition: int
    start: int
    end: int
    records: int
    boundaries: tuple[Boundary, ...]


def limited(
    after: int, through: int, rows_of: Callable[[int], int], *, rows_max: int | None, snapshots_max: int | None
) -> int:
    """Return the last snapshot of a limited read, which has at least one complete snapshot, however large.

    Args:
        after: the last snapshot already read.
        through: the newest snapshot that may be read.
        rows_of: returns the number of changes in a snapshot.
        rows_max: most changes to read; None for no limit.
        snapshots_max: most snapshots to read; None for no limit.
    """
    if snapshots_max is not None:
        through = min(through, after + snapshots_max)
    if rows_max is None:
        return through
    rows = 0
    for snapshot in range(after + 1, through + 1):
        rows += rows_of(snapshot)
        if rows > rows_max:
            return max(snapshot - 1, after + 1)
    return through


def slices(entries: Sequence[IndexEntry]) -> list[PartitionSlice]:
    """Merge the ranges of consecutive snapshots into one slice per partition.

    Raises:
        DataLostError: an entry counts changes but no records: it was rebuilt after retention had deleted them.
    """
    for entry in entries:
        lost = [p for p, held in enumerate(entry.partitions) if held.rows and not held.records]
        if lost:
            msg = f"the log no longer holds snapshot {entry.snapshot} in partitions {lost}."
            raise DataLostError(msg)
    found: list[PartitionSlice] = []
    for partition in range(len(entries[0].partitions) if entries else 0):
        held = [(entry, entry.partitions[partition]) for entry in entries if entry.partitions[partition].records]
        if held:
            found.append(
                PartitionSlice(
                    partition,
                    held[0][1].start,
                    held[-1][1].end,
                    sum(r.records for _, r in held),
                    tuple(Boundary(r.end, e.snapshot, e.timestamp_ms) for e, r in held),
                )
            )
    return found
