"""NOT NULL within columns: fields of rows, elements of arrays and values of maps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.types as is_

from snapshot.errors import InvalidInputError


def refuse_nested_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Check that no NOT NULL field, element or map value within a column is NULL, unless the value around it is.

    Raises:
        InvalidInputError: one is.
    """
    for field in schema:
        if has_required(field.type):
            refuse_nulls_within(batch.column(field.name), field.type, field.name)


def has_required(declared: pa.DataType) -> bool:
    """Return whether a type has a part that is NOT NULL, other than the keys of maps."""
    if not is_.is_nested(declared):
        return False
    parts = _inside(pa.array([], declared), declared)
    return any(not field.nullable or has_required(field.type) for _, _, field in parts)


def as_nullable(declared: pa.DataType) -> pa.DataType:
    """Return a type with all nested fields, elements and values nullable."""

    def loose(field: pa.Field) -> pa.Field:
        return field.with_type(as_nullable(field.type)).with_nullable(True)

    if is_.is_struct(declared):
        return pa.struct([loose(field) for field in declared])
    if is_.is_map(declared):
        return pa.map_(as_nullable(declared.key_type), loose(declared.item_field))
    return pa.list_(loose(declared.value_field)) if is_.is_list(declared) else declared


def cast_to(values: pa.Array, declared: pa.DataType) -> pa.Array:
    """Cast values to a type in which a field of a row may be NOT NULL and NULL where the row itself is NULL.

    Spark and DuckDB make such rows, and Arrow casts and writes none. Their fields get the values of another row.
    """
    if not has_required(declared):
        return values if values.type == declared else values.cast(declared)
    return _as_required(values.cast(as_nullable(declared)), declared)


def _as_required(values: pa.Array, declared: pa.DataType) -> pa.Array:
    """Return values of the type ``as_nullable(declared)`` as ``declared``."""
    if not has_required(declared):
        return values
    gone = values.is_null() if values.null_count else None
    if is_.is_struct(declared):
        there = values.drop_null()
        if not len(there):
            return pa.array([None] * len(values), declared)
        fields = [_as_required(there.field(each.name), each.type) for each in declared]
        if gone is not None:
            places = np.maximum(np.cumsum(~gone.to_numpy(zero_copy_only=False)) - 1, 0)
            fields = [each.take(pa.array(places)) for each in fields]
        return pa.StructArray.from_arrays(fields, fields=list(declared), mask=gone)
    kind = declared.item_type if is_.is_map(declared) else declared.value_type
    return with_items(values, _as_required(items_of(values), kind), declared)


def items_of(values: pa.Array) -> pa.Array:
    """Return the elements of the lists, or the values of the maps, that are not NULL."""
    return _entries(values.drop_null())[1] if is_.is_map(values.type) else values.flatten()


def with_items(values: pa.Array, items: pa.Array, declared: pa.DataType) -> pa.Array:
    """Return lists or maps of a type with other items, as many as ``items_of`` returns."""
    gone = values.is_null() if values.null_count else None
    lengths = np.diff(values.offsets.to_numpy())
    if gone is not None:
        lengths[gone.to_numpy(zero_copy_only=False)] = 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    if is_.is_map(declared):
        keys, _ = _entries(values.drop_null())
        return pa.MapArray.from_arrays(offsets, keys, items, declared, mask=gone)
    return pa.ListArray.from_arrays(offsets, items, declared, mask=gone)


def refuse_nulls_within(values: pa.Array, declared: pa.DataType, path: str) -> None:
    """Check the values of a type at a path of a column, as ``refuse_nested_nulls`` does.

    Raises:
        InvalidInputError: what is NOT NULL within them is NULL.
    """
    for name, inner, field in _inside(values.drop_null(), declared):
        inside = f"{path}.{name}"
        if inner.null_count and not field.nullable:
            msg = f"NOT NULL field {inside!r} must not contain NULL; {inner.null_count} values of a batch do."
            raise InvalidInputError(msg)
        refuse_nulls_within(inner, field.type, inside)


def _inside(values: pa.Array, declared: pa.DataType) -> Iterator[tuple[str, pa.Array, pa.Field]]:
    """Yield name, values and declaration of the parts of a nested type, of values that are not NULL."""
    if is_.is_struct(declared):
        for field in declared:
            yield field.name, values.field(field.name), field
    elif is_.is_map(declared):
        yield "value", _entries(values)[1], declared.item_field
    elif is_.is_list(declared):
        yield "element", values.flatten(), declared.value_field


def _entries(values: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of maps, also of a slice of an array."""
    first, last = (values.offsets[0].as_py(), values.offsets[-1].as_py()) if len(values) else (0, 0)
    return values.keys.slice(first, last - first), values.items.slice(first, last - first)
