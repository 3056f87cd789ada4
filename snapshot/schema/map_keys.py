"""Maps that have a key twice: Arrow can hold them, Spark makes none, and DuckDB refuses them when rows are merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.python_values import printable
from snapshot.schema.arrow_types import types_within


def refuse_repeated_keys(batch: pa.RecordBatch) -> None:
    """Check that no map in a batch, at any depth, has a key twice.

    Raises:
        InvalidInputError: one has.
    """
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if _has_map(field.type) and _repeats(values):
            msg = f"column {field.name!r}: a map has a key twice; expected each key once. Leave one of the entries out."
            raise InvalidInputError(msg)


def _has_map(data_type: pa.DataType) -> bool:
    return any(map(pa.types.is_map, types_within(data_type)))


def _repeats(values: pa.Array) -> bool:
    """Return whether a map in the values has a key twice; what is beneath NULL does not count."""
    if pa.types.is_struct(values.type):
        return any(_repeats(part) for part in values.flatten() if _has_map(part.type))
    if not pa.types.is_map(values.type):
        return _repeats(values.flatten())
    offsets = values.offsets.to_numpy()
    sizes = np.diff(offsets)
    there = np.repeat(values.is_valid().to_numpy(zero_copy_only=False), sizes)
    owners = pa.array(np.repeat(np.arange(len(values)), sizes)).filter(pa.array(there))
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = (part.slice(first, count).filter(pa.array(there)) for part in (values.keys, values.items))
    return _has_pair_twice(owners, keys) or (_has_map(items.type) and _repeats(items))


def _has_pair_twice(owners: pa.Array, keys: pa.Array) -> bool:
    if pa.types.is_nested(keys.type):
        # Arrow does not group by these.
        pairs = list(zip(owners.to_pylist(), map(repr, printable(keys)), strict=True))
        return len(set(pairs)) < len(pairs)
    groups = pa.table({"owner": owners, "key": keys}).group_by(["owner", "key"], use_threads=False).aggregate([])
    return bool(groups.num_rows < len(keys))
