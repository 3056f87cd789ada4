"""Reads the merged rows of local files with pyarrow, where no filter is asked and no type has changed.

Keys are looked up in bitmaps (``ChangeBitmap``), so nothing is joined, sorted or copied into DuckDB. Other reads merge
in DuckDB (``MergeReader``), with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.merge.change_bitmap import ChangeBitmap, bitmap_of, parquet_errors
from snapshot.merge.duckdb_engine import BATCH_ROWS
from snapshot.merge.key_bitmap import KeyBitmap
from snapshot.merge.merge_reader import BaseFile, ChangeFile
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ, relabelled
from snapshot.storage import Storage

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
    bits = None
    if changes and key is not None:
        bits = bitmap_of(storage, [(file.path, file.snapshot) for file in changes], key.name, threads=1)
        if bits is None:
            return None
    wanted = pa.schema([named for named, _ in fields])
    return _rows(base, changes if emit_changes else (), wanted, stored, key, bits)


def _rows(
    base: Sequence[BaseFile],
    changes: Sequence[ChangeFile],
    wanted: pa.Schema,
    stored: Sequence[pa.Field],
    key: pa.Field | None,
    bits: ChangeBitmap | None,
) -> Iterator[pa.RecordBatch]:
    names = [field.name for field in stored]
    for file in base:
        held = [name for name in names if name not in file.partition_values]
        for batch in _batches(file.path, [*held, *([key.name] if bits and key else [])]):
            mask = bits.keys.lacks(batch.column(key.name)) if bits and key else None
            arrays = [
                pa.repeat(pa.scalar(file.partition_values[f.name], f.type), batch.num_rows)
                if f.name in file.partition_values
                else batch.column(f.name)
                for f in stored
            ]
            yield from _kept(arrays, wanted, mask)
    place = 0
    for each in changes:
        for batch in _batches(each.path, [*names, KIND]):
            kinds = batch.column(KIND).to_numpy()
            mask = pa.array((kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER))
            if bits and bits.rows is not None:
                mask = bits.rows.mask(place, batch.num_rows)
            place += batch.num_rows
            yield from _kept([batch.column(name) for name in names], wanted, mask)


def _kept(arrays: list[pa.Array], wanted: pa.Schema, mask: pa.Array | None) -> Iterator[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays(arrays, names=wanted.names)
    if mask is not None and mask.false_count:
        batch = batch.filter(mask)
    if batch.num_rows:
        yield relabelled(batch, wanted)


def _has(path: str, fields: Sequence[pa.Field]) -> int:
    """Return a file's number of rows if it has all columns with exactly these types, otherwise 0."""
    with parquet_errors(path), pq.ParquetFile(path) as file:
        found = file.schema_arrow
        is_same = all(f.name in found.names and found.field(f.name).type == f.type for f in fields)
        return int(file.metadata.num_rows) if is_same and fields else 0


def _batches(path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with parquet_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=list(dict.fromkeys(columns)), use_threads=False)
