"""Compares Arrow arrays element by element, as Spark's ``<=>`` does, including nested types."""

from __future__ import annotations

from functools import reduce
from itertools import starmap

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.schema.nested_nulls import as_nullable, cast_to

Flags = npt.NDArray[np.bool_]


def equal(one: pa.Array, other: pa.Array) -> Flags:
    """Return which elements of two arrays are equal; the first is cast to the type of the second.

    NULL equals NULL, and NaN equals NaN. Maps are equal if they have the same entries in the same order.
    """
    one = one if one.type == other.type else cast_to(one, other.type)
    left, right = _is_null(one), _is_null(other)
    return (left & right) | (~left & ~right & _equal(one, other))


def _is_null(array: pa.Array) -> Flags:
    flags: Flags = array.is_null().to_numpy(zero_copy_only=False)
    return flags


def _equal(one: pa.Array, other: pa.Array) -> Flags:
    """Compare arrays; the result of elements that are NULL is arbitrary."""
    types, data_type = pa.types, one.type
    if types.is_null(data_type):
        return np.ones(len(one), np.bool_)
    if types.is_struct(data_type):
        children = starmap(equal, zip(one.flatten(), other.flatten(), strict=True))
        return reduce(np.logical_and, children, np.ones(len(one), np.bool_))
    if types.is_map(data_type):
        # A NOT NULL field may be NULL where the value around it is, and Arrow does not cast that to NOT NULL.
        as_list = as_nullable(pa.list_(pa.struct([data_type.key_field, data_type.item_field])))
        return _equal(one.cast(as_list), other.cast(as_list))
    if types.is_list(data_type) or types.is_large_list(data_type):
        return _equal_lists(one, other)
    same: Flags = pc.fill_null(pc.equal(one, other), fill_value=False).to_numpy(zero_copy_only=False)
    if types.is_floating(data_type):
        nans = pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), fill_value=False)
        same = same | nans.to_numpy(zero_copy_only=False)
    return same


def _equal_lists(one: pa.Array, other: pa.Array) -> Flags:
    sizes, other_sizes = (pc.fill_null(pc.list_value_length(each), -1).to_numpy() for each in (one, other))
    same: Flags = sizes == other_sizes
    rows = np.flatnonzero(same & (sizes > 0))
    if len(rows):
        elements = equal(one.take(pa.array(rows)).flatten(), other.take(pa.array(rows)).flatten())
        starts = np.concatenate(([0], np.cumsum(sizes[rows])[:-1]))
        same[rows] = np.logical_and.reduceat(elements, starts)
    return same
