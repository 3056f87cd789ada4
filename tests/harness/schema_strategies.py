"""Hypothesis strategies for tables of any shape: schemas as Spark makes them, and batches of changes for them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from snapshot.row_kind import KIND, RowKind

UTC = pa.timestamp("us", tz="UTC")
KEYED_JSON_KINDS = (RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).filter(
    lambda name: name != KIND
)
"""Column and field names: quotes, dots, spaces and any script."""

decimals = st.sampled_from([1, 15, 16, 18, 37, 38]).flatmap(
    lambda p: st.sampled_from([0, p]).map(lambda s: pa.decimal128(p, s))
) | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
key_types = st.one_of(
    st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.date32(), UTC]),
    st.sampled_from([pa.binary(), pa.float32(), pa.float64(), pa.timestamp("us")]),
    decimals,
)
"""Types a primary key may have."""


def _structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.lists(_fields(inner), min_size=1, max_size=3, unique_by=lambda f: f.name.casefold()).map(pa.struct)


@st.composite
def _fields(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType], name: str | None = None) -> pa.Field:
    return pa.field(draw(names) if name is None else name, draw(kinds), nullable=draw(st.booleans()))


types = st.recursive(
    key_types,
    lambda inner: st.one_of(
        _fields(inner, "element").map(pa.list_),
        st.tuples(st.one_of(st.just(pa.string()), key_types), _fields(inner, "value")).map(
            lambda kv: pa.map_(pa.field("key", kv[0], nullable=False), kv[1])
        ),
        _structs(inner),
    ),
    max_leaves=5,
)
"""Every type a table can hold, nested in every way."""


_SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.integers(-719162, 2932896) | st.integers(-(2**31) + 1, 2**31 - 1),
}


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type that are not NULL, as ``pa.array`` takes them."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pt.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pt.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pt.is_decimal(kind):
        limit = 10**kind.precision - 1
        # Made from digits and exponent: arithmetic on Decimal would round to the context's 28 digits.
        return st.one_of(st.sampled_from([limit, -limit, 0, 1, -1]), st.integers(-limit, limit)).map(
            lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale))
        )
    if pt.is_timestamp(kind):
        return st.one_of(st.integers(-(2**47), 2**51), st.integers(-9223372022400000000, 2**63 - 2))
    if pt.is_list(kind):
        return st.lists(nullable(kind.value_field), max_size=3)
    if pt.is_map(kind):
        pairs = st.tuples(values(kind.key_type), nullable(kind.item_field))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: repr(pair[0] or 0))
    return st.fixed_dictionaries({field.name: nullable(field) for field in kind})


def nullable(field: pa.Field) -> st.SearchStrategy[Any]:
    """Values of a field, NULL among them where it may be."""
    return st.one_of(st.none(), values(field.type)) if field.nullable else values(field.type)


@st.composite
def tables(draw: st.DrawFn, *, keyed: bool | None = None) -> tuple[pa.Schema, list[str]]:
    """A table's schema and primary key; the key is empty for a table without one."""
    fields = draw(st.lists(_fields(types), min_size=1, max_size=4, unique_by=lambda f: f.name.casefold()))
    if not (draw(st.booleans()) if keyed is None else keyed):
        return pa.schema(fields), []
    keys = draw(st.lists(_fields(key_types), min_size=1, max_size=2, unique_by=lambda f: f.name.casefold()))
    taken = {key.name.casefold() for key in keys}
    rest = [field.with_nullable(True) for field in fields if field.name.casefold() not in taken]
    order = draw(st.permutations([*keys, *rest]))
    return pa.schema(order), [key.name for key in keys]


@st.composite
def changes(draw: st.DrawFn, schema: pa.Schema, primary_key: Sequence[str], kinds: Sequence[RowKind]) -> pa.RecordBatch:
    """A batch of changes of some kinds; a key is never NULL. A slice of a larger one, now and then."""
    rows = draw(st.integers(0, 5))
    columns = []
    for field in schema:
        value = values(field.type) if field.name in primary_key else nullable(field)
        columns.append(pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), field.type))
    numbers = draw(st.lists(st.sampled_from([int(k) for k in kinds]), min_size=rows, max_size=rows))
    batch = pa.RecordBatch.from_arrays(
        [*columns, pa.array(numbers, pa.int8())], schema=schema.append(pa.field(KIND, pa.int8()))
    )
    return batch.slice(draw(st.integers(0, rows))) if draw(st.booleans()) else batch


def plain(array: pa.Array) -> list[Any]:
    """Python values of an array: dates and timestamps as numbers, for Python's end with the year 9999."""
    kind = array.type
    if pt.is_struct(kind):
        rows: list[Any] = list(zip(*map(plain, array.flatten()), strict=True))
    elif pt.is_map(kind):
        pairs = list(zip(plain(array.keys), plain(array.items), strict=True))
        rows = [pairs[start:end] for start, end in pairwise(array.offsets.to_pylist())]
    elif pt.is_list(kind):
        items = plain(array.values)
        rows = [items[start:end] for start, end in pairwise(array.offsets.to_pylist())]
    elif pt.is_temporal(kind):
        return list(array.view(pa.int32() if pt.is_date32(kind) else pa.int64()).to_pylist())
    else:
        return list(array.to_pylist())
    return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]


def identical(left: pa.Array, right: pa.Array) -> bool:
    """Tell whether two arrays are the same to the last bit: -0.0 is not 0.0, and NaN is NaN. Arrow says otherwise."""
    return left.type == right.type and repr(plain(left)) == repr(plain(right))
