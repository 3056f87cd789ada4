"""Finds a snapshot's files for lookups by key and for merges."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.merge_reader import BaseFile, BucketFiles
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.changelog_lookup import Lookup
from snapshot.store.snapshot_files import SnapshotFiles
from snapshot.store.table_files import TableFiles


def lookup_in(table: TableFiles, snapshot_id: int) -> Lookup:
    """Return a lookup of a snapshot's rows by key.

    Raises:
        NotFoundError: the snapshot's files are no longer known.
    """
    layout = table.layout(snapshot_id)
    path_of = table.log.storage.path
    tombstones = {b: {path_of(f.path): f.size for f in held} for b, held in by_bucket(layout.tombstones).items()}
    return Lookup(table.storage, table.spec, files_by_bucket(table, layout), tombstones)


def files_by_bucket(table: TableFiles, layout: SnapshotFiles) -> dict[int, BucketFiles]:
    """Return the files of each bucket of a snapshot that has any."""
    base, changes = by_bucket(layout.base), by_bucket(layout.changes)
    return {
        bucket: BucketFiles(
            tuple(base_file(table, file) for file in base.get(bucket, ())),
            tuple(map(table.change_file, changes.get(bucket, ()))),
        )
        for bucket in sorted(base.keys() | changes.keys())
    }


def base_file(table: TableFiles, file: DataFile) -> BaseFile:
    """Return a file of the base table as the merge engine takes it, with its partition values as Python values."""
    values = {
        name: _value(file.partition.get(name), table.spec.arrow.field(name).type) for name in table.spec.partition_by
    }
    return BaseFile(table.storage.path(file.path), values, file.size, file.rows)


def by_bucket(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    """Return files of a table with a key by their bucket."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(int(file.partition[BUCKET] or 0), []).append(file)
    return found


def _value(text: str | None, data_type: pa.DataType) -> object:
    return None if text is None else pa.scalar(text, pa.string()).cast(data_type).as_py()
