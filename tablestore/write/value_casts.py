"""Casts of Arrow columns and Python values to a table's column types, only where every value stays the same."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types as is_

from snapshot.errors import InvalidInputError
from snapshot.schema.nested_nulls import as_nullable, cast_to, has_required, refuse_nulls_within

_SPARK_HAS: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def cast_array(array: pa.Array | pa.ChunkedArray, to: pa.DataType, name: str) -> pa.Array | pa.ChunkedArray:
    """Cast a column.

    Raises:
        InvalidInputError: its type does not fit, or a value would change or is NULL where it must not.
    """
    if array.type == to:
        return array
    check_cast(array.type, to, name)
    try:
        found = _cast(array, as_nullable(to))
    except pa.ArrowException as error:
        msg = f"column {name!r}: expected {to}, got {array.type} with a value that does not fit: {error}."
        raise InvalidInputError(msg) from error
    if not has_required(to):
        return found
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    for chunk in chunks:
        refuse_nulls_within(chunk, to, name)
    required = [cast_to(chunk, to) for chunk in chunks]
    return pa.chunked_array(required, to) if isinstance(found, pa.ChunkedArray) else required[0]


def check_cast(given: pa.DataType, to: pa.DataType, name: str) -> None:
    """Check that a column's type fits, whatever its values are.

    Raises:
        InvalidInputError: it does not.
    """
    if not can_cast(given, to):
        msg = f"column {name!r}: expected {to}, got {given}; {_advice(given, to)}."
        raise InvalidInputError(msg)


def array_of(values: Sequence[object], to: pa.DataType | None, name: str) -> pa.Array:
    """Return Python values as a column of a type; None lets Arrow choose the type.

    Raises:
        InvalidInputError: a value does not fit, or the values are of several types.
    """
    if to is not None:
        _check_values(values, to, name)
    try:
        return pa.array(values, to)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        what = "values of one type" if to is None else str(to)
        msg = f"column {name!r}: expected {what}, got a value that does not fit: {error}."
        raise InvalidInputError(msg) from error


def without_encoding(data_type: pa.DataType) -> pa.DataType:
    """Return a type with the same values that Spark has; types whose values Spark cannot hold are returned as is."""
    if is_.is_dictionary(data_type):
        return without_encoding(data_type.value_type)
    if is_.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz and "UTC")
    return _SPARK_HAS.get(data_type, data_type)


def can_cast(given: pa.DataType, to: pa.DataType) -> bool:
    """Return whether a type's values can be cast if each value fits; text and numbers are never converted."""
    if given == to or is_.is_null(given):
        return True
    if is_.is_dictionary(given):
        return can_cast(given.value_type, to)
    if isinstance(given, pa.BaseExtensionType):
        # A number stored for something else, such as a period, is not a number.
        return not is_.is_primitive(given.storage_type) and can_cast(given.storage_type, to)
    if is_.is_timestamp(given) and is_.is_timestamp(to):
        return (given.tz is None) == (to.tz is None)
    if is_.is_struct(given) and is_.is_struct(to):
        return [f.name for f in given] == [f.name for f in to] and all(
            can_cast(a.type, b.type) for a, b in zip(given, to, strict=True)
        )
    if is_.is_map(given) and is_.is_map(to):
        return can_cast(given.key_type, to.key_type) and can_cast(given.item_type, to.item_type)
    if _is_list(given) and is_.is_list(to):
        return can_cast(given.value_type, to.value_type)
    return any(is_from(given) and is_to(to) for is_from, is_to in _CASTS)


def _is_list(data_type: pa.DataType) -> bool:
    return bool(is_.is_list(data_type) or is_.is_large_list(data_type) or is_.is_fixed_size_list(data_type))


def _is_text(data_type: pa.DataType) -> bool:
    return bool(is_.is_string(data_type) or is_.is_large_string(data_type) or is_.is_string_view(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    kinds = (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary)
    return any(kind(data_type) for kind in kinds)


def _is_small_float(data_type: pa.DataType) -> bool:
    return bool(is_.is_float16(data_type) or is_.is_float32(data_type))


def _is_integer_or_decimal(data_type: pa.DataType) -> bool:
    return bool(is_.is_integer(data_type) or is_.is_decimal(data_type))


_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (_is_text, is_.is_string),
    (_is_bytes, is_.is_binary),
    (is_.is_date, is_.is_date32),
    (_is_integer_or_decimal, _is_integer_or_decimal),
    (is_.is_integer, is_.is_floating),
    (_is_small_float, is_.is_floating),
    # pandas has integers with missing values as floats.
    (is_.is_floating, is_.is_integer),
)
"""Casts between types that Arrow makes without changing a value, or refuses."""


def _advice(given: pa.DataType, to: pa.DataType) -> str:
    if not (is_.is_timestamp(given) and is_.is_timestamp(to)):
        return "cast it before writing"
    return "remove its time zone before writing" if to.tz is None else "give it a time zone before writing"


def _cast(array: pa.Array | pa.ChunkedArray, to: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_cast(chunk, to) for chunk in array.chunks], to)
    if isinstance(array, pa.DictionaryArray):
        return _cast(array.dictionary, to).take(array.indices)
    if isinstance(array, pa.ExtensionArray):
        return _cast(array.storage, to)
    if is_.is_integer(array.type) and is_.is_decimal(to):
        # Arrow wants room for every value of the type, not only for those that there are.
        return array.cast(pa.decimal256(76, to.scale)).cast(to)
    return array.cast(to)


def _check_values(values: Sequence[object], to: pa.DataType, path: str) -> None:
    """Check that Python values have types that Arrow converts without changing a value.

    Raises:
        InvalidInputError: a value has another type, a time a zone too many or too few, a struct an unknown field.
    """
    kinds = set(map(type, values)) - {type(None)}
    if wrong := {kind for kind in kinds if not _accepts(to, kind)}:
        row, kind = next((row, type(value)) for row, value in enumerate(values) if type(value) in wrong)
        advice = "write None instead" if is_missing(kind) else "convert it before writing"
        msg = f"column {path!r}: expected {to}, got a Python {kind.__name__} in row {row}; {advice}."
        raise InvalidInputError(msg)
    if is_.is_timestamp(to):
        _check_times(values, to, path)
    for child in _children([value for value in values if value is not None], to, path):
        _check_values(*child)


def is_missing(kind: type) -> bool:
    """Return whether a class is that of a pandas marker of missing values. NaT is a datetime to Python."""
    return kind.__name__ in ("NaTType", "NAType")


def _accepts(to: pa.DataType, kind: type) -> bool:
    if is_missing(kind):
        return False
    if issubclass(kind, dt.datetime):
        return bool(is_.is_timestamp(to))
    if issubclass(kind, bool | np.bool_):
        return bool(is_.is_boolean(to))
    return any(is_to(to) and issubclass(kind, kinds) for is_to, kinds in _PYTHON_TYPES)


_PYTHON_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
    (is_.is_integer, (int, np.integer)),
    (is_.is_floating, (int, float, np.integer, np.floating)),
    (is_.is_decimal, (int, Decimal)),
    (is_.is_string, (str,)),
    (is_.is_binary, (bytes, bytearray)),
    (is_.is_date32, (dt.date,)),
    (is_.is_struct, (dict,)),
    (is_.is_list, (list, tuple, np.ndarray)),
    (is_.is_map, (dict, list, tuple)),
)
"""The Python types whose values a column takes; see also ``_accepts``."""


def _check_times(values: Sequence[object], to: pa.DataType, path: str) -> None:
    for row, value in enumerate(values):
        if isinstance(value, dt.datetime) and (value.tzinfo is None) != (to.tz is None):
            given = "without" if value.tzinfo is None else "with"
            msg = f"column {path!r}: expected {to}, got a datetime {given} a time zone in row {row}; convert it first."
            raise InvalidInputError(msg)
        if getattr(value, "nanosecond", 0):
            msg = f"column {path!r}: expected {to}, got {value} in row {row}, which has nanoseconds; round it first."
            raise InvalidInputError(msg)


def _children(values: Sequence[Any], to: pa.DataType, path: str) -> Iterator[tuple[list[Any], pa.DataType, str]]:
    """Yield the values inside nested values, with their types and paths.

    Raises:
        InvalidInputError: a struct has an unknown field.
    """
    if is_.is_struct(to):
        if unknown := {key for value in values for key in value} - {child.name for child in to}:
            msg = f"column {path!r}: expected {to}, got a dict with unknown fields {sorted(map(str, unknown))}."
            raise InvalidInputError(msg)
        for child in to:
            yield [value.get(child.name) for value in values], child.type, f"{path}.{child.name}"
    elif is_.is_list(to):
        yield list(chain.from_iterable(values)), to.value_type, f"{path}.element"
    elif is_.is_map(to):
        pairs = [pair for value in values for pair in (value.items() if isinstance(value, dict) else value)]
        yield [key for key, _ in pairs], to.key_type, f"{path}.key"
        yield [item for _, item in pairs], to.item_type, f"{path}.value"
