"""Looks a row up by its key, in its bucket only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.merge.bucket_hash import bucket_of
from snapshot.merge.duckdb_engine import bound
from snapshot.merge.merge_reader import MergeReader
from snapshot.merge.predicate import Condition, Predicate
from snapshot.python_values import python_row
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
        InvalidInputError: the table has no key, the value does not fit it, or the row has a date or timestamp that
            Python does not have.
    """
    values, spec = _values(table, key), table.spec
    bucket = int(bucket_of(pa.RecordBatch.from_pydict(values), spec.hashed, table.options.buckets)[0])
    conditions = []
    for name, array in values.items():
        expression, value = bound(array[0].as_py(), array.type)
        conditions.append(Condition(name, "", f" = {expression}", (value,)))
    condition, storage = Predicate(tuple(conditions)), table.files.storage
    with MergeReader(spec.arrow, spec.primary_key, stored=spec.scanned, filesystem=storage.filesystem) as engine:
        # A table has one row of a key, so one split has it.
        for part in snapshot_splits(table.files, snapshot, tasks=1, bucket=bucket, predicate=condition):
            found = engine.row_of(part.base, part.changes, condition, columns=columns)
            if found is not None:
                return python_row(found)
    return None


def _values(table: TableContext, key: object) -> dict[str, pa.Array]:
    """Return a key as arrays of one value, by column."""
    names, schema = table.spec.primary_key, table.spec.arrow
    if not names:
        msg = "get: this table has no primary key to look rows up by. Use to_arrow(filter=...)."
        raise InvalidInputError(msg)
    if isinstance(key, Mapping):
        given = {name: key.get(name) for name in names} if set(key) == set(names) else {}
    else:
        parts = key if isinstance(key, tuple) else (key,)
        given = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
    if not given or any(value is None for value in given.values()):
        msg = f"get: key: expected a value of each of {list(names)}, as a tuple or a dict, got {key!r}."
        raise InvalidInputError(msg)
    try:
        return {name: array_of([value], schema.field(name).type, name) for name, value in given.items()}
    except InvalidInputError as error:
        msg = f"get: key: {str(error).replace(' before writing', '')}"
        raise InvalidInputError(msg) from error
