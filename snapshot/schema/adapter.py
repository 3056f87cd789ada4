"""Converts Arrow rows between two schemas of the same table; columns are matched by physical name."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.schema.physical_names import Columns
from snapshot.schema.system_columns import relabelled

RESTART = "the table's columns were changed in a way that a running query cannot follow; start it again: "
"""Start of the error message of a stream whose columns are fixed when it starts."""
_DIGITS = {8: 10, 16: 10, 32: 10, 64: 20}
"""Digits before the decimal point that a decimal needs to replace an integer of this width (Delta type widening)."""

_OTHER_LISTS = (
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


@dataclass(frozen=True)
class Adapter:
    """Converts rows that were written with one schema to another schema. Picklable.

    A column that the rows lack becomes NULL, a column that the other schema lacks is dropped, and a narrower type is
    cast.

    Attributes:
        given: the columns of the rows.
        wanted: the columns to return.
        why: start of the error message for a value that cannot be converted.
    """

    given: Columns
    wanted: Columns
    why: str = ""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; columns that are not the table's, such as ``_kind``, follow unchanged.

        Raises:
            InvalidInputError: a value does not fit the wanted columns, which are older: a type was widened since, or a
                NOT NULL column was dropped or holds NULL.
        """
        if self.given == self.wanted:
            return batch
        own = batch.select(self.given.named.names)
        fitted = fit(relabelled(own, _like(own.schema, self.given.physical)), self.wanted, self.why)
        further = [field for field in batch.schema if field.name not in set(self.given.named.names)]
        arrays = [*fitted.columns, *(batch.column(field.name) for field in further)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*self.wanted.named, *further]))


def fit(batch: pa.RecordBatch, wanted: Columns, why: str = "") -> pa.RecordBatch:
    """Return rows with the wanted columns, given rows with physical names as in files.

    Raises:
        InvalidInputError: a type cannot be converted to the wanted one, or a NOT NULL column holds NULL.
    """
    arrays = []
    for field, named in zip(wanted.physical, wanted.named, strict=True):
        number = batch.schema.get_field_index(field.name)
        if number < 0:
            array = pa.nulls(batch.num_rows, field.type)
        else:
            array = fitted(batch.column(number), field.type, f"{why}column {named.name!r}")
        if not named.nullable and array.null_count:
            msg = f"{why}column {named.name!r} is NOT NULL here, but was dropped or made nullable later."
            raise InvalidInputError(msg)
        arrays.append(array)
    return relabelled(pa.RecordBatch.from_arrays(arrays, schema=wanted.physical), wanted.named)


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column's type may change: all values are kept, and files with the old type stay readable.

    These are the rules of Delta's type widening, except that dates do not become timestamps.
    """
    types = pa.types
    if given == wanted:
        return True
    if types.is_signed_integer(given):
        if types.is_signed_integer(wanted):
            return bool(given.bit_width <= wanted.bit_width)
        if types.is_decimal(wanted):
            return bool(wanted.precision - wanted.scale >= _DIGITS[given.bit_width])
        return bool(types.is_float64(wanted) and given.bit_width < 64)
    if types.is_float32(given):
        return bool(types.is_float64(wanted))
    if types.is_decimal(given) and types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return bool(wanted.scale >= given.scale and whole)
    return False


def fitted(array: pa.Array, to: pa.DataType, what: str) -> pa.Array:
    """Cast an array to a type; struct fields are matched by name, and missing ones become NULL.

    Raises:
        InvalidInputError: the type cannot be converted; ``what`` begins the message.
    """
    array = _plain(array)
    source = array.type
    if source == to:
        return array
    if pa.types.is_struct(source) and pa.types.is_struct(to):
        children = dict(zip((field.name for field in source), array.flatten(), strict=True))
        arrays = [
            fitted(children[f.name], f.type, what) if f.name in children else pa.nulls(len(array), f.type) for f in to
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(to), mask=array.is_null())
    if pa.types.is_list(source) and pa.types.is_list(to):
        values = fitted(array.values, to.value_type, what)
        return pa.ListArray.from_arrays(_offsets(array), values, type=to, mask=array.is_null())
    if pa.types.is_map(source) and pa.types.is_map(to):
        keys, items = fitted(array.keys, to.key_type, what), fitted(array.items, to.item_type, what)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, type=to, mask=array.is_null())
    if widens(source, to) or _is_label(source, to):
        return array.cast(to)
    msg = f"{what}: expected type {to}, got {source}."
    raise InvalidInputError(msg)


def _plain(array: pa.Array) -> pa.Array:
    """Return an array of another writer with the layout of this program's files: no dictionary, and plain lists."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if any(is_one(array.type) for is_one in _OTHER_LISTS):
        return array.cast(pa.list_(array.type.value_field))
    return array


def _is_label(source: pa.DataType, to: pa.DataType) -> bool:
    """Return whether two Arrow types represent the same Delta type."""
    types = pa.types
    if types.is_timestamp(source) and types.is_timestamp(to):
        # Of another writer, such as INT96; batch reads take it for UTC, too.
        return source.tz is None or to.tz is not None
    texts = types.is_string, types.is_large_string, types.is_string_view
    blobs = types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
    return types.is_null(source) or any(
        any(is_one(source) for is_one in kinds) and any(is_one(to) for is_one in kinds) for kinds in (texts, blobs)
    )


def _like(schema: pa.Schema, names: pa.Schema) -> pa.Schema:
    """Return a schema with the field names and types of another one."""
    return pa.schema(
        [field.with_name(name.name).with_type(name.type) for field, name in zip(schema, names, strict=True)]
    )


def _offsets(array: pa.Array) -> pa.Array:
    # Copy the array so that it has no offset: Arrow accepts a mask only then.
    return pa.array(array.offsets.to_numpy(), pa.int32())
