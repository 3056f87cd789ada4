"""Looks one row up by its key, in its bucket only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.merge.bucket_hash import bucket_of
from snapshot.merge.duckdb_engine import bound
from snapshot.merge.predicate import Condition, Predicate
from tablestore.context import TableContext
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.value_casts import array_of


def get_row(table: TableContext, snapshot: int, key: object, columns: list[str] | None) -> dict[str, Any] | None:
    """Return the row with a key, by column; None if there is none.

    Args:
        table: the table.
        snapshot: the snapshot's id.
        key: the key's value; of several columns, a tuple in the order of the primary key, or a mapping.
        columns: the columns to return; None for all.

    Raises:
        InvalidInputError: the table has no key, or the value does not fit it.
    """
    values = _values(table, key)
    arrow = pa.RecordBatch.from_pydict(values)
    bucket = int(bucket_of(arrow, table.spec.primary_key, table.options.buckets)[0])
    conditions = []
    for name, array in values.items():
        expression, value = bound(array[0].as_py(), array.type)
        conditions.append(Condition(name, "", f" = {expression}", (value,)))
    predicate = Predicate(tuple(conditions))
    parts = snapshot_splits(table.files, snapshot, tasks=1, columns=columns, predicate=predicate, bucket=bucket)
    found = [row for part in parts for batch in part.read() for row in batch.to_pylist()]
    return found[0] if found else None


def _values(table: TableContext, key: object) -> dict[str, pa.Array]:
    """Return a key as arrays of one value, by column."""
    names, schema = table.spec.primary_key, table.spec.arrow
    if not names:
        msg = "get: this table has no primary key, so its rows cannot be named. Use to_arrow(filter=...)."
        raise InvalidInputError(msg)
    if isinstance(key, Mapping):
        given = {name: key.get(name) for name in names} if set(key) == set(names) else {}
    else:
        parts = key if isinstance(key, tuple) else (key,)
        given = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
    if not given or any(value is None for value in given.values()):
        msg = f"get: key: expected a value of each of {list(names)}, as a tuple or a dict, got {key!r}."
        raise InvalidInputError(msg)
    return {name: array_of([value], schema.field(name).type, name) for name, value in given.items()}
