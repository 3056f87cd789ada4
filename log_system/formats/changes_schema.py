"""Helpers shared by all formats: checks of columns and changes, and zero-copy relabelling of Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import relabelled

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
PLAIN_TIMESTAMP = pa.timestamp("us")

_FLAT_TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), UTC_TIMESTAMP, PLAIN_TIMESTAMP,
)  # fmt: skip


def check_columns(schema: pa.Schema, primary_key: Sequence[str], *, more: Sequence[pa.DataType] = ()) -> None:
    """Check that the log can carry a table's columns.

    ``more`` are types that are allowed besides those that Delta can store.

    Raises:
        InvalidInputError: a type that Delta cannot store, a reserved name, a duplicate name (Spark compares names
            case-insensitively), or a primary key column that does not exist.
    """
    seen: set[str] = set()
    for field in schema:
        name = field.name
        if not name or name == KIND or name.casefold() in seen:
            msg = f"column {name!r}: a table in the log needs distinct, non-empty column names other than {KIND!r}"
            raise InvalidInputError(msg)
        seen.add(name.casefold())
        _check_type(field.type, f"column {name!r}", more)
    for name in primary_key:
        if schema.get_field_index(name) < 0:
            msg = f"primary key column {name!r} is not a column of the table; it has {schema.names}"
            raise InvalidInputError(msg)


def _check_type(data_type: pa.DataType, where: str, more: Sequence[pa.DataType]) -> None:
    if data_type in _FLAT_TYPES or data_type in more or pt.is_decimal128(data_type):
        return
    if pt.is_struct(data_type) and data_type.num_fields:
        seen = set()
        for field in data_type:
            if not field.name or field.name.casefold() in seen:
                msg = f"{where}: a struct needs distinct, non-empty field names, got {field.name!r}"
                raise InvalidInputError(msg)
            seen.add(field.name.casefold())
            _check_type(field.type, f"{where}, field {field.name!r}", more)
    elif pt.is_list(data_type):
        _check_type(data_type.value_type, f"{where}, element", more)
    elif pt.is_map(data_type):
        _check_type(data_type.key_type, f"{where}, map key", more)
        _check_type(data_type.item_type, f"{where}, map value", more)
    else:
        msg = (
            f"{where}: type {data_type} cannot be kept in a table; use one of boolean, byte, short, int, long, float, "
            "double, decimal, string, binary, date, timestamp, timestamp_ntz, array, map, or a struct with fields"
        )
        raise InvalidInputError(msg)


def layout(data_type: pa.DataType) -> str:
    """Return a type's memory layout: types with equal layouts can share buffers, whatever their field names."""
    if pt.is_timestamp(data_type):
        return f"timestamp[{data_type.unit}]"
    if pt.is_map(data_type):
        return f"list<struct<{layout(data_type.key_type)},{layout(data_type.item_type)}>>"
    if pt.is_list(data_type):
        return f"list<{layout(data_type.value_type)}>"
    if pt.is_struct(data_type):
        return f"struct<{','.join(layout(field.type) for field in data_type)}>"
    return str(data_type)


def relabel(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch under another schema of the same memory layout, without copying values.

    Names, nullability and time zones may differ at every level, and a map may become a list of pairs or the reverse.
    ``cast`` would copy for some of these and refuse others.
    """
    if [layout(field.type) for field in batch.schema] != [layout(field.type) for field in schema]:
        msg = f"cannot read columns {batch.schema.types} as {schema.types}"
        raise TypeError(msg)
    return relabelled(batch, schema)


def check_changes(changes: pa.RecordBatch, expected: pa.Schema, most: int = RowKind.DELETE) -> np.ndarray:
    """Check a batch of changes against its schema and return its row kinds (int8), which must not exceed ``most``.

    Raises:
        InvalidInputError: the columns differ from the expected ones, or a row kind is NULL or unknown.
    """
    if changes.schema != expected and (
        changes.schema.names != expected.names
        or [layout(t) for t in changes.schema.types] != [layout(t) for t in expected.types]
    ):
        msg = f"changes for the log need the columns\n{expected}\nin this order, got\n{changes.schema}"
        raise InvalidInputError(msg)
    column = changes.column(changes.num_columns - 1)
    if column.null_count:
        msg = f"column {KIND!r} of changes must not be NULL"
        raise InvalidInputError(msg)
    kinds: np.ndarray = column.to_numpy(zero_copy_only=False)
    if kinds.size and (kinds.min() < RowKind.INSERT or kinds.max() > most):
        msg = f"column {KIND!r} of changes must be 0 to {most}, got {kinds.min()} to {kinds.max()}"
        raise InvalidInputError(msg)
    return kinds


def forbids_nulls(data_type: pa.DataType) -> bool:
    """Return whether a type declares any nested field as not nullable; every map does so for its keys."""
    if pt.is_map(data_type):
        return True
    if pt.is_list(data_type):
        return not data_type.value_field.nullable or forbids_nulls(data_type.value_type)
    return pt.is_struct(data_type) and any(not field.nullable or forbids_nulls(field.type) for field in data_type)


def has_forbidden_null(array: pa.Array, field: pa.Field) -> bool:
    """Return whether an array violates its field's nullability at any level; the array may be relabelled."""
    if not field.nullable and array.null_count:
        return True
    data_type = field.type
    if not forbids_nulls(data_type):
        return False
    if pt.is_struct(data_type):
        present = array.filter(array.is_valid()) if array.null_count else array
        return any(has_forbidden_null(child, inner) for child, inner in zip(present.flatten(), data_type, strict=True))
    if pt.is_map(data_type):
        pairs = pa.struct([data_type.key_field, data_type.item_field])
        return has_forbidden_null(map_pairs(array), pa.field("pair", pairs, nullable=False))
    return has_forbidden_null(array.flatten(), data_type.value_field)


def map_pairs(array: pa.Array) -> pa.Array:
    """Return the key-value structs of a map array, for its non-NULL rows only."""
    pairs = pa.struct([array.type.key_field.with_nullable(True), array.type.item_field.with_nullable(True)])
    column = pa.record_batch([array], names=["map"])
    return relabel(column, pa.schema([pa.field("map", pa.list_(pairs))])).column(0).flatten()


def leaves(array: pa.Array) -> list[pa.Array]:
    """Return the flat arrays nested in an array, without values under a NULL parent."""
    data_type = array.type
    if pt.is_struct(data_type):
        return [leaf for child in array.flatten() for leaf in leaves(child)]
    if pt.is_map(data_type):
        return leaves(map_pairs(array))
    if pt.is_list(data_type):
        return leaves(array.flatten())
    return [array]


def any_true(mask: pa.Array) -> bool:
    """Return whether a boolean array holds any true value."""
    return bool(pc.any(mask, min_count=0).as_py())
