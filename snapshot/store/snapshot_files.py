"""The files that make up a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.delta.log import DataFile


@dataclass(frozen=True)
class SnapshotFiles:
    """The files of a snapshot: a base table version and the changes to merge into it.

    Attributes:
        snapshot: the snapshot.
        root_version: the base table version with the largest ``merged-through`` at or below the snapshot; in a table
            without a key, the snapshot itself.
        merged_through: the ``merged-through`` of that version.
        base: the base table's files.
        changes: change files of the snapshots in ``(merged_through, snapshot]``; none in a table without a key.
        tombstones: the files of all remaining tombstones.
    """

    snapshot: int
    root_version: int
    merged_through: int
    base: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]
    tombstones: tuple[DataFile, ...] = ()
