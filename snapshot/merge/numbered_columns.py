"""Numbered column names in DuckDB (``c0``, ``c1``, ...), so that no user column can shadow an internal one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import duckdb
import pyarrow as pa

from snapshot.merge.duckdb_engine import load
from snapshot.merge.key_parts import long_bytes
from snapshot.schema.arrow_types import types_within
from snapshot.schema.spec import TableSpec

ROW_HASH = "h"
"""Column with the hash of a row; equal rows have the same."""


def numbered_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with numbered names, all columns nullable."""
    return pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(schema)])


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with numbered column names."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=numbered_schema(batch.schema))


def load_numbered(
    session: duckdb.DuckDBPyConnection,
    table: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    hashed: bool = False,
) -> int:
    """Load batches into a new temporary table with numbered columns; return the size of long values (``long_bytes``).

    Args:
        session: the session.
        table: the name of the table.
        schema: the schema of the batches.
        batches: the rows.
        hashed: whether the table has one more column, the hash of the row, named by ``ROW_HASH``.
    """
    size, columns = 0, numbered_schema(schema)

    def measured() -> Iterator[pa.RecordBatch]:
        nonlocal size
        for batch in batches:
            size += long_bytes(batch)
            yield numbered(batch)

    # While the batches arrive, few long values are in memory.
    selected = f"*, hash({', '.join(columns.names)}) AS {ROW_HASH}" if hashed else "*"
    load(session, table, columns, measured(), selected)
    return size


def columns_of(spec: TableSpec) -> list[str]:
    """Return the numbered names of a table's columns."""
    return [f"c{i}" for i in range(len(spec.arrow))]


def names_in(spec: TableSpec, columns: Iterable[str]) -> list[str]:
    """Return the numbered names of some of a table's columns, in the given order."""
    return [f"c{spec.arrow.get_field_index(name)}" for name in columns]


def keys_of(spec: TableSpec) -> list[str]:
    """Return the numbered names of a table's key columns, in the order of the key."""
    return names_in(spec, spec.primary_key)


def same_key(keys: Sequence[str], left: str, right: str) -> str:
    """Return the SQL condition that rows of two tables have the same key."""
    return " AND ".join(f"{left}.{key} = {right}.{key}" for key in keys)


def same_row(spec: TableSpec, left: str, right: str) -> str:
    """Return the SQL condition that rows of two tables have the same values."""
    same = []
    for column, field in zip(columns_of(spec), spec.arrow, strict=True):
        same.append(f"{left}.{column} IS NOT DISTINCT FROM {right}.{column}")
        if _has_floats(field.type):
            # Also compare the text, because -0.0 equals 0.0 but is a different value.
            same.append(f"{left}.{column}::VARCHAR IS NOT DISTINCT FROM {right}.{column}::VARCHAR")
    return " AND ".join(same)


def exactly(spec: TableSpec) -> list[str]:
    """Return SQL for a table's columns, plus those with floats as text, which distinguishes -0.0 from 0.0."""
    fields = zip(columns_of(spec), spec.arrow, strict=True)
    return [*columns_of(spec), *(f"{column}::VARCHAR AS {column}t" for column, f in fields if _has_floats(f.type))]


def _has_floats(data_type: pa.DataType) -> bool:
    return any(map(pa.types.is_floating, types_within(data_type)))
