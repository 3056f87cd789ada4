"""Slices of rows by their size, and of nested columns, which others do not take: structs DuckDB 2.0, maps PySpark."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def unsliced(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with nested columns copied if they have an offset."""
    columns = [column.take(pa.array(np.arange(len(rows)))) if _has_offset(column) else column for column in rows]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _has_offset(array: pa.Array) -> bool:
    if not array.type.num_fields:
        return False
    if pa.types.is_struct(array.type):
        inner = [array.field(i) for i in range(array.type.num_fields)]
    else:
        inner = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return array.offset > 0 or any(child.offset > 0 or _has_offset(child) for child in inner)


def rows_within(data: pa.RecordBatch | pa.Array, size: int) -> int:
    """Return how many rows of a batch or an array take about ``size`` bytes; at least one."""
    return max(1, int(len(data) * size // max(1, data.nbytes)))


def slices(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in slices of about ``size`` bytes; at least one slice, even without rows."""
    step = rows_within(rows, size)
    yield from (rows.slice(start, step) for start in range(0, len(rows) or 1, step))
