"""Upper bounds for the size of a row's record, computed from Arrow offsets without encoding rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from snapshot.schema.arrow_types import types_within

_FLAT = 48
"""Most bytes of a number, date or timestamp as text, including the separator."""
ESCAPED = 6
"""Most bytes that one byte of text takes in JSON: ``\\u0001``. Base64 and UTF-8 need fewer."""
_BRACKETS = 3
Sizes = npt.NDArray[np.int64]
_SMALL = 16_384


def largest_row(batch: pa.RecordBatch, text: int = ESCAPED) -> int:
    """Return an upper bound in bytes for the largest row of a batch; cheap to compute but may be far too high.

    ``text`` is the most bytes that one byte of text takes when encoded.
    """
    if not batch.num_rows:
        return 0
    names = sum(map(_name, batch.schema))
    if not any(kind.num_fields for kind in batch.schema.types):
        # With flat columns even the whole batch is usually small.
        whole: int = names + _FLAT * batch.num_columns + text * batch.nbytes
        if whole < _SMALL:
            return whole
    return names + sum(_largest(column, text) for column in batch.columns)


def row_sizes(batch: pa.RecordBatch, text: int = ESCAPED) -> Sizes:
    """Return an upper bound in bytes for each row; arguments as for ``largest_row``."""
    names = sum(map(_name, batch.schema))
    return _sum([_sizes(column, text) for column in batch.columns]) + names


def field_count(schema: pa.Schema) -> int:
    """Return the number of fields of a schema, nested ones included."""
    return sum(1 for kind in schema.types for _ in types_within(kind))


def _sum(parts: Sequence[Sizes]) -> Sizes:
    found: Sizes = np.sum(parts, axis=0, dtype=np.int64)
    return found


def _name(field: pa.Field) -> int:
    return ESCAPED * len(field.name.encode()) + _BRACKETS + 1


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_string(data_type)
        or pt.is_binary(data_type)
        or pt.is_large_string(data_type)
        or pt.is_large_binary(data_type)
    )


def _largest(array: pa.Array, text: int) -> int:
    """Return an upper bound in bytes for the largest value of an array."""
    data_type = array.type
    if _is_text(data_type):
        return _BRACKETS + text * (pc.max(pc.binary_length(array)).as_py() or 0)
    if pt.is_struct(data_type):
        return (
            _BRACKETS + sum(_name(field) for field in data_type) + sum(_largest(each, text) for each in array.flatten())
        )
    if pt.is_list(data_type) or pt.is_map(data_type):
        ends = _ends(array)
        return _BRACKETS + int(np.diff(ends).max(initial=0)) * (1 + _largest(_items(array, ends), text))
    return _FLAT


def _sizes(array: pa.Array, text: int) -> Sizes:
    """Return an upper bound in bytes for each value of an array."""
    data_type = array.type
    if _is_text(data_type):
        lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        texts: Sizes = _BRACKETS + text * lengths.astype(np.int64)
        return texts
    if pt.is_struct(data_type):
        names = _BRACKETS + sum(_name(field) for field in data_type)
        return _sum([_sizes(each, text) for each in array.flatten()]) + names
    if pt.is_list(data_type) or pt.is_map(data_type):
        ends = _ends(array)
        sums = np.concatenate([[0], np.cumsum(_sizes(_items(array, ends), text) + 1)])
        lists: Sizes = _BRACKETS + sums[ends[1:] - ends[0]] - sums[ends[:-1] - ends[0]]
        return lists
    return np.full(len(array), _FLAT, np.int64)


def _ends(array: pa.Array) -> Sizes:
    """Return the offsets of an array's lists in its items: the start of each list and the end of the last one."""
    found: Sizes = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _items(array: pa.Array, ends: Sizes) -> pa.Array:
    """Return the items of all lists of an array; the items of a map are key-value pairs."""
    if pt.is_map(array.type):
        keys, values = (each.slice(ends[0], ends[-1] - ends[0]) for each in (array.keys, array.items))
        return pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return array.values.slice(ends[0], ends[-1] - ends[0])
