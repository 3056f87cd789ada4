"""The reserved column names, and helpers that give Arrow batches a schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from snapshot.row_kind import CHANGE_TYPE, KIND, TRUNCATE, RowKind
from snapshot.schema.nested_nulls import cast_to, has_required

SEQ = "_seq"
"""int64 column of change files: the position of a change within its commit."""
SNAPSHOT = "_snapshot"
"""int64 partition column of change files: the snapshot that they belong to."""
BUCKET = "_bucket"
"""int32 partition value of change files and of a key table's base table: the bucket of the primary key."""
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
RESERVED = (KIND, SEQ, SNAPSHOT, BUCKET, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""Reserved column names; the last three are those of Delta's change data feed."""


def free_name(name: str, columns: Iterable[str]) -> str:
    """Return a name that is none of these columns', in any case: ``name``, with underscores before it if need be."""
    taken = {each.casefold() for each in columns}
    while name.casefold() in taken:
        name = f"_{name}"
    return name


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of ``schema``, by name; columns of a different Arrow type are cast.

    Spark passes timestamps to Python in the session's time zone; tables store UTC.
    """
    if batch.schema.equals(schema) and not any(has_required(kind) for kind in schema.types):
        return batch
    return pa.RecordBatch.from_arrays([cast_to(batch.column(f.name), f.type) for f in schema], schema=schema)


def grouped(rows: pa.Table, names: Sequence[str]) -> pa.TableGroupBy:
    """Return rows grouped by columns, which go by number: Arrow takes a name that starts with a dot for a path."""
    return rows.group_by([rows.column_names.index(name) for name in names], use_threads=False)


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with another schema over the same buffers: other names and nullability, also of struct fields."""
    return batch if batch.schema.equals(schema) else pa.record_batch(_Relabelled(batch, schema))


def renumbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches whose ``_seq`` is the number of the row among all of them, from 0."""
    first = 0
    for batch in batches:
        place = batch.schema.get_field_index(SEQ)
        numbers = pa.array(np.arange(first, first + batch.num_rows))
        first += batch.num_rows
        yield batch.set_column(place, batch.schema.field(place), numbers)


def truncate_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that stands for the truncate record of a log partition: every column but ``_kind`` is NULL."""
    columns = [pa.array([TRUNCATE], pa.int8()) if f.name == KIND else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Relabelled:
    """A batch exported with another schema over the same buffers, through Arrow's C data interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), array


def stamped(batch: pa.RecordBatch, version: int, timestamp_ms: int) -> pa.RecordBatch:
    """Return the rows with ``_commit_version`` and ``_commit_timestamp`` of a snapshot."""
    batch = batch.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(version, pa.int64()), batch.num_rows))
    time = pa.repeat(pa.scalar(timestamp_ms * 1000, pa.int64()), batch.num_rows)
    return batch.append_column(COMMIT_TIMESTAMP, time.cast(pa.timestamp("us", "UTC")))


def kind_column(kind: RowKind, rows: int) -> pa.Array:
    """Return the column ``_kind`` of rows of one kind."""
    return pa.repeat(pa.scalar(int(kind), pa.int8()), rows)


def with_kind(columns: pa.Schema) -> pa.Schema:
    """Return a table's columns followed by ``_kind``, which is the schema of published changes."""
    return columns.append(pa.field(KIND, pa.int8()))
