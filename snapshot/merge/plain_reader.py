"""Reads the merged rows of local files with pyarrow, where no filter is asked and no type has changed.

Keys are looked up in bitmaps (``ChangeBitmap``), so nothing is joined, sorted or copied into DuckDB. Other reads merge
in DuckDB (``MergeReader``), with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from snapshot.merge.change_bitmap import FileChanges, current_changes, opened
from snapshot.merge.duckdb_engine import BATCH_ROWS, rows_at_a_time
from snapshot.merge.key_bitmap import KeyBitmap, numbers_of
from snapshot.merge.merge_reader import BaseFile, ChangeFile
from snapshot.row_kind import KIND
from snapshot.schema.system_columns import SEQ, relabelled
from snapshot.storage import Storage

_LAYOUTS = {
    pa.string(): (pa.string(), pa.large_string(), pa.string_view()),
    pa.binary(): (pa.binary(), pa.large_binary(), pa.binary_view()),
}
"""The types by which writers describe text and bytes, which are the same in Parquet."""
_CHANGES_MAX = 2_000_000
"""Maximum number of changes: with their bitmaps, they take no more memory than DuckDB does (measured)."""


def plain_rows(
    storage: Storage,
    base: Sequence[BaseFile],
    changes: Sequence[ChangeFile],
    fields: Sequence[tuple[pa.Field, pa.Field]],
    key: pa.Field | None,
    *,
    emit_changes: bool,
) -> Iterator[pa.RecordBatch] | None:
    """Return the merged rows of some buckets, in no particular order; None if they have to be merged in DuckDB.

    Args:
        storage: where the files are.
        base: base files of the buckets.
        changes: all change files of the buckets that are not yet merged into the base.
        fields: the columns to return, each as the table names it and with its physical name.
        key: the key column with its physical name; None if the key has several columns, or there is none.
        emit_changes: whether to return the rows set by changes too.
    """
    if not storage.is_local or (changes and (key is None or not KeyBitmap.can_hold(key.type))):
        return None
    if changes and key is not None and any(key.name in file.partition_values for file in base):
        return None
    stored = [held for _, held in fields]
    needed = [*stored, *([key] if changes and key is not None else [])]
    if not all(_has(file.path, [f for f in needed if f.name not in file.partition_values]) for file in base):
        return None
    system = [pa.field(KIND, pa.int8()), pa.field(SEQ, pa.int64())]
    counts = [_has(file.path, [*needed, *system]) for file in changes]
    if not all(counts) or sum(counts) > _CHANGES_MAX:
        return None
    changed: KeyBitmap | None = None
    read: Sequence[FileChanges] = ()
    if changes and key is not None:
        found = current_changes(storage, [(file.path, file.snapshot) for file in changes], key.name, threads=1)
        if found is None:
            return None
        changed, read = found
    wanted = pa.schema([named for named, _ in fields])
    return chain(
        _base_rows(base, wanted, stored, key, changed),
        _changed_rows(read if emit_changes else (), wanted, stored, key),
    )


def _base_rows(
    base: Sequence[BaseFile],
    wanted: pa.Schema,
    stored: Sequence[pa.Field],
    key: pa.Field | None,
    changed: KeyBitmap | None,
) -> Iterator[pa.RecordBatch]:
    asked = [key.name] if key is not None and changed is not None else []
    for file in base:
        held = [field.name for field in stored if field.name not in file.partition_values]
        for batch in _batches(file.path, [*held, *asked]):
            mask = changed.holds(numbers_of(batch.column(asked[0]))) if changed is not None else None
            arrays = [
                pa.repeat(pa.scalar(file.partition_values[f.name], f.type), batch.num_rows)
                if f.name in file.partition_values
                else batch.column(f.name).cast(f.type)
                for f in stored
            ]
            yield from _kept(arrays, wanted, None if mask is None else ~mask)


def _changed_rows(
    changes: Sequence[FileChanges], wanted: pa.Schema, stored: Sequence[pa.Field], key: pa.Field | None
) -> Iterator[pa.RecordBatch]:
    """Yield the current rows of change files; row groups without any are not read, and keys not again."""
    others = [field.name for field in stored if key is None or field.name != key.name]
    for file in changes:
        for start, rows, batch in _current_batches(file, others):
            keys = file.keys.slice(start, rows)
            arrays = [keys if batch is None or f.name not in others else batch.column(f.name) for f in stored]
            yield from _kept(arrays, wanted, file.current[start : start + rows])


def _current_batches(file: FileChanges, columns: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
    """Yield batches with the number of their first row and of their rows; no batch if no columns are wanted."""
    if not columns:
        for start in range(0, len(file.keys), BATCH_ROWS):
            yield start, min(BATCH_ROWS, len(file.keys) - start), None
        return
    start = 0
    with opened(file.path) as parquet:
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            if file.current[start:end].any():
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
                    yield start, batch.num_rows, batch
                    start += batch.num_rows
            start = end


def _kept(arrays: list[pa.Array], wanted: pa.Schema, mask: np.ndarray | None) -> Iterator[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays(arrays, names=wanted.names)
    if mask is not None and not mask.all():
        batch = batch.filter(pa.array(mask))
    if batch.num_rows:
        yield relabelled(batch, wanted)


def _has(path: str, fields: Sequence[pa.Field]) -> int:
    """Return a file's number of rows if it has all columns with these types, otherwise 0."""
    with opened(path) as file:
        found = {field.name: field.type for field in file.schema_arrow}
        is_same = all(found.get(field.name) in _LAYOUTS.get(field.type, (field.type,)) for field in fields)
        return int(file.metadata.num_rows) if is_same and fields else 0


def _batches(path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with opened(path) as file:
        rows = rows_at_a_time(file.metadata)
        yield from file.iter_batches(rows, columns=list(dict.fromkeys(columns)), use_threads=False)
