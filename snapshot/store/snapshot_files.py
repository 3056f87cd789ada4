"""What a snapshot is made of."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.delta.log import DataFile


@dataclass(frozen=True)
class SnapshotFiles:
    """The files whose rows, merged, are a snapshot: a version of the root and the changes after it.

    Attributes:
        snapshot: the snapshot.
        root_version: the root version with the largest ``merged-through`` at or below it; the snapshot itself in a
            table without a key.
        merged_through: that value.
        base: the root's files.
        changes: files of the changes in ``(merged_through, snapshot]``; none in a table without a key.
        tombstones: files of all tombstones that are kept.
    """

    snapshot: int
    root_version: int
    merged_through: int
    base: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]
    tombstones: tuple[DataFile, ...] = ()
