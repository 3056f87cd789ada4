"""The columns of a table: the names the store keeps for itself, and Arrow batches put into a schema."""

from __future__ import annotations

import pyarrow as pa

from snapshot.row_kind import CHANGE_TYPE, KIND, TRUNCATE

SEQ = "_seq"
"""int64 column of change files: the order of changes within their commit."""
SNAPSHOT = "_snapshot"
"""int64 partition value of change files: the snapshot that holds them."""
BUCKET = "_bucket"
"""int32 partition value of change files and of a key table's root: the bucket of the primary key."""
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
RESERVED = (KIND, SEQ, SNAPSHOT, BUCKET, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""Column names the store keeps for itself (the last three are those of Delta's change data feed)."""


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of ``schema``, by name; columns whose type has another label are cast.

    Spark hands timestamps to Python in the session's time zone; tables keep UTC.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Show a batch under another schema of the same buffers: other names, also of struct fields, other nullability."""
    return batch if batch.schema.equals(schema) else pa.record_batch(_Relabelled(batch, schema))


def truncate_row(schema: pa.Schema) -> pa.RecordBatch:
    """Make the row that says in a log partition that all of its rows are gone: no value but in ``_kind``."""
    columns = [pa.array([TRUNCATE], pa.int8()) if f.name == KIND else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Relabelled:
    """A batch shown under another schema of the same buffers, through Arrow's C data interface."""

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


def with_kind(columns: pa.Schema) -> pa.Schema:
    """Return a table's columns followed by ``_kind``: the schema of published changes."""
    return columns.append(pa.field(KIND, pa.int8()))
