"""The gate: which offsets a transactional reader may see. Only whole, published snapshots pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from log_system.index import IndexEntry, LogIndex
from snapshot.errors import DataLostError


@dataclass(frozen=True)
class Boundary:
    """The end of one snapshot in one log partition.

    Attributes:
        end: offset after its last record there.
        snapshot: its id.
        timestamp_ms: when it was committed.
    """

    end: int
    snapshot: int
    timestamp_ms: int


@dataclass(frozen=True)
class PartitionSlice:
    """The part of a log partition that holds a run of whole snapshots.

    Attributes:
        partition: the Kafka partition.
        start: first offset.
        end: offset after the last record.
        records: Kafka records in between.
        boundaries: where each snapshot with records here ends, in order.
    """

    partition: int
    start: int
    end: int
    records: int
    boundaries: tuple[Boundary, ...]


class Gate:
    """Opens the log snapshot by snapshot, as the log index grows."""

    def __init__(self, index: LogIndex) -> None:
        """Guard the log of this index."""
        self._index = index

    def newest(self) -> int:
        """Give the newest snapshot readers may see; 0 (the empty table) while nothing is published."""
        latest = self._index.latest()
        return 0 if latest is None else latest.snapshot

    def rows(self, snapshot: int) -> int:
        """Give the number of changes in a snapshot.

        Raises:
            DataLostError: the index has no entry for it.
        """
        return self._entry(snapshot).rows

    def slices(self, after: int, through: int) -> list[PartitionSlice]:
        """Give the offsets of snapshots ``after + 1`` to ``through``, for partitions that hold any of their changes.

        Raises:
            DataLostError: the index has no entry for one of them.
        """
        return slices(self.entries(after, through))

    def entries(self, after: int, through: int) -> list[IndexEntry]:
        """Give what the index says of snapshots ``after + 1`` to ``through``.

        Raises:
            DataLostError: the index has no entry for one of them.
        """
        return [self._entry(snapshot) for snapshot in range(after + 1, through + 1)]

    def _entry(self, snapshot: int) -> IndexEntry:
        entry = self._index.get(snapshot)
        if entry is None:
            msg = f"snapshot {snapshot} has no entry in the log index; it was expired, or recover() has to rebuild it."
            raise DataLostError(msg)
        return entry


def limited(
    after: int, through: int, rows_of: Callable[[int], int], *, rows_max: int | None, snapshots_max: int | None
) -> int:
    """Shorten a run of snapshots to a read limit. At least one snapshot passes, whole, however large.

    Args:
        after: the last snapshot that has been read.
        through: the newest that may be.
        rows_of: gives the changes in a snapshot.
        rows_max: changes that may pass; None for any number.
        snapshots_max: snapshots that may pass; None for any number.

    Returns:
        The last snapshot that passes.
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
    """Join the ranges of consecutive snapshots partition by partition.

    Raises:
        DataLostError: an entry has changes for which the log has no record: it was rebuilt after retention had removed
            them.
    """
    for entry in entries:
        lost = [p for p, held in enumerate(entry.partitions) if held.rows and not held.records]
        if lost:
            msg = f"the log does not hold snapshot {entry.snapshot} in partitions {lost} any more."
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
