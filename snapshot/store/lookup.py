"""Finds a snapshot's files for lookups by key and for merges."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapshot.delta.log import DataFile
from snapshot.merge.merge_reader import BaseFile
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.changelog_lookup import Lookup
from snapshot.store.table_files import TableFiles


def lookup_in(table: TableFiles, snapshot_id: int) -> Lookup:
    """Return a lookup of a snapshot's rows by key.

    Raises:
        NotFoundError: the snapshot's files are no longer known.
    """
    layout = table.layout(snapshot_id)
    base = {b: tuple(base_file(table, f) for f in held) for b, held in by_bucket(layout.base).items()}
    changes = {b: tuple(map(table.change_file, held)) for b, held in by_bucket(layout.changes).items()}
    path_of = table.log.storage.path
    tombstones = {b: {path_of(f.path): f.size for f in held} for b, held in by_bucket(layout.tombstones).items()}
    return Lookup(snapshot_id, table.storage, table.spec, base, changes, tombstones)


def base_file(table: TableFiles, file: DataFile) -> BaseFile:
    """Return a file of the root as the merge engine takes it, with its partition values as Python values."""
    values = {
        name: _value(file.partition.get(name), table.spec.arrow.field(name).type) for name in table.spec.partition_by
    }
    return BaseFile(table.storage.path(file.path), values, file.size)


def by_bucket(files: Sequence[DataFile]) -> dict[int, list[DataFile]]:
    """Return files of a table with a key by their bucket."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(int(file.partition[BUCKET] or 0), []).append(file)
    return found


def _value(text: str | None, data_type: pa.DataType) -> object:
    return None if text is None else pa.scalar(text, pa.string()).cast(data_type).as_py()
