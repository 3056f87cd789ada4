"""Partitions that occur in rows, and the condition that selects their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from snapshot.delta.entries import partition_text
from snapshot.quoting import quoted, text_literal
from snapshot.schema.duckdb_types import type_name
from snapshot.schema.system_columns import grouped


def distinct_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, names: Sequence[str]
) -> list[dict[str, object]]:
    """Return the distinct values of some columns, which are held in memory; ``schema`` has at least these columns."""
    wanted = pa.schema([schema.field(name).with_nullable(True) for name in names])
    found = wanted.empty_table()
    for batch in batches:
        rows = pa.concat_tables([found, pa.Table.from_batches([batch]).select(names).cast(wanted)])
        found = grouped(rows, names).aggregate([]).select(names)
    return list(found.to_pylist())


def condition_of(schema: pa.Schema, partitions: Iterable[Mapping[str, object]]) -> str:
    """Return the condition, in DuckDB's SQL, that a row is in one of the partitions."""
    conditions = (
        " AND ".join(_is(name, value, schema.field(name).type) for name, value in partition.items())
        for partition in partitions
    )
    return " OR ".join(f"({each})" for each in conditions) or "FALSE"


def _is(name: str, value: object, data_type: pa.DataType) -> str:
    text = partition_text(value)
    if text is None:
        return f"{quoted(name)} IS NULL"
    return f"{quoted(name)} = CAST({text_literal(text)} AS {type_name(data_type)})"
