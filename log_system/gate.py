"""The gate: which offsets a transactional reader may see. Only whole, published snapshots pass."""

from __future__ import annotations

from collections.abc import Sequence
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

    def limit(self, after: int, through: int, *, rows_max: int | None = None, snapshots_max: int | None = None) -> int:
        """Shorten a run of snapshots to a read limit. At least one snapshot passes, whole, however large."""
        if snapshots_max is not None:
            through = min(through, after + max(snapshots_max, 1))
        if rows_max is None:
            return through
        rows = 0
        for snapshot in range(after + 1, through + 1):
            rows += self._entry(snapshot).rows
            if rows > rows_max:
                return max(snapshot - 1, after + 1)
        return through

    def slices(self, after: int, through: int) -> list[PartitionSlice]:
        """Give the offsets of snapshots ``after + 1`` to ``through``, for partitions that hold any of their changes.

        Raises:
            DataLostError: the index has no entry for one of them.
        """
        return slices([self._entry(snapshot) for snapshot in range(after + 1, through + 1)])

    def _entry(self, snapshot: int) -> IndexEntry:
        entry = self._index.get(snapshot)
        if entry is None:
            msg = f"snapshot {snapshot} has no entry in the log index; it was expired, or recover() has to rebuild it."
            raise DataLostError(msg)
        return entry


def slices(entries: Sequence[IndexEntry]) -> list[PartitionSlice]:
    """Join the ranges of consecutive snapshots partition by partition."""
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
