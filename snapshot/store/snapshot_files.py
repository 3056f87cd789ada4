"""The files that make up a snapshot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.delta.entries import NOTE
from snapshot.delta.log import DataFile
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SNAPSHOT
from snapshot.staging.parquet_writer import is_tombstones
from snapshot.staging.stage import stored_change_schema

MERGED_THROUGH = "merged-through"
_COMBINED = re.compile(r"\d+-since-(\d+)-.*")


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

    @classmethod
    def of(
        cls, snapshot: int, version: int, merged: int, base: Sequence[DataFile], listed: Sequence[DataFile]
    ) -> SnapshotFiles:
        """Return the files of a snapshot of a key table, of whose change files ``listed`` may hold too many."""
        tombstones = tuple(file for file in listed if is_tombstones(file.path))
        changes = (file for file in listed if not is_tombstones(file.path))
        needed = tuple(file for file in changes if merged < int(file.partition[SNAPSHOT] or 0) <= snapshot)
        return cls(snapshot, version, merged, tuple(base), needed, tombstones)


def merged_info(kind: str, snapshot: int) -> dict[str, Any]:
    """Return the facts about a commit to a key table's base table, which holds the rows as of a snapshot."""
    note = (
        f"Rows as of snapshot {snapshot}. These are versions of the base table only; the table's snapshots: "
        "TableStore.history(), open_local(...).history(), or 'tablestore snapshots' on the command line."
    )
    return {"kind": kind, MERGED_THROUGH: snapshot, NOTE: note}


def combined_prefix(bucket: int, first: int) -> str:
    """Return how the names of change files begin that combine the changes of the snapshots from ``first`` on."""
    return f"{bucket:05d}-since-{first}"


def snapshots_of(file: DataFile) -> range:
    """Return the snapshots whose changes are in a change file: one, unless a minor compaction wrote the file."""
    last = int(file.partition[SNAPSHOT] or 0)
    combined = _COMBINED.fullmatch(file.path)
    return range(int(combined[1]) if combined else last, last + 1)


def base_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns of the base table."""
    return spec.physical.append(pa.field(BUCKET, pa.int32())) if spec.has_key else spec.physical


def log_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns of the commit table."""
    if not spec.has_key:
        return base_schema(spec)
    columns = stored_change_schema(spec)
    return columns.append(pa.field(SNAPSHOT, pa.int64())).append(pa.field(BUCKET, pa.int32()))
