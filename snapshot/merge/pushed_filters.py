"""Translates filters that Spark pushes into a scan to DuckDB conditions that keep exactly the same rows.

Both engines treat NaN as equal to itself and greater than all else, treat 0.0 as equal to -0.0, compare strings and
binaries by their bytes, and keep a row only if a condition is true, not if it is NULL. A filter whose meaning may
differ is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from snapshot.merge.duckdb_engine import bound
from snapshot.merge.predicate import Condition, Predicate
from snapshot.quoting import text_literal

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "IS NOT DISTINCT FROM",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_STRING_FUNCTIONS: dict[type[Filter], str] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "contains",
}


def split_filters(filters: Sequence[Filter], schema: pa.Schema) -> tuple[Predicate, list[Filter]]:
    """Return the filters that can be translated exactly as one predicate, and the others, in order, for Spark.

    Args:
        filters: Spark's filters; all must hold.
        schema: The table's columns, as Arrow types.
    """
    conditions: list[Condition] = []
    unsupported: list[Filter] = []
    for each in filters:
        condition = _condition(each, schema)
        if condition is None:
            unsupported.append(each)
        else:
            conditions.append(condition)
    return Predicate(tuple(conditions)), unsupported


def _condition(each: Filter, schema: pa.Schema) -> Condition | None:
    if isinstance(each, Not):
        child = _condition(each.child, schema)
        return child and replace(child, before=f"NOT ({child.before}", after=f"{child.after})")
    resolved = _resolve(getattr(each, "attribute", ()), schema)
    if resolved is None:
        return None
    subject, data_type = resolved
    if isinstance(each, IsNull | IsNotNull):
        return replace(subject, after=f"{subject.after} IS {'NOT ' if isinstance(each, IsNotNull) else ''}NULL")
    if isinstance(each, In):
        return _membership(subject, data_type, list(each.value))
    value: Any = getattr(each, "value", None)
    if value is None and isinstance(each, EqualNullSafe) and not pa.types.is_nested(data_type):
        return replace(subject, after=f"{subject.after} IS NULL")
    if not _holds(data_type, value):
        return None
    sql, parameter = bound(value, data_type)
    subject = _shielded(subject, data_type)
    if type(each) in _COMPARISONS:
        return replace(subject, after=f"{subject.after} {_COMPARISONS[type(each)]} {sql}", parameters=(parameter,))
    if type(each) in _STRING_FUNCTIONS and pa.types.is_string(data_type):
        before = f"{_STRING_FUNCTIONS[type(each)]}({subject.before}"
        return replace(subject, before=before, after=f"{subject.after}, {sql})", parameters=(parameter,))
    return None


def _membership(subject: Condition, data_type: pa.DataType, values: list[Any]) -> Condition | None:
    if all(value is None for value in values):
        return None
    if not all(value is None or _holds(data_type, value) for value in values):
        return None
    subject = _shielded(subject, data_type)
    pairs = [bound(value, data_type) for value in values]
    listed = ", ".join(sql for sql, _ in pairs)
    return replace(subject, after=f"{subject.after} IN ({listed})", parameters=tuple(value for _, value in pairs))


def _resolve(path: tuple[str, ...], schema: pa.Schema) -> tuple[Condition, pa.DataType] | None:
    """Return the expression and the type of a column or nested struct field; None if it does not exist."""
    if not path or schema.get_field_index(path[0]) < 0:
        return None
    subject, data_type = Condition(path[0], "", ""), schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(data_type) or data_type.get_field_index(name) < 0:
            return None
        after = f"{subject.after}, {text_literal(name)})"
        subject = replace(subject, before=f"struct_extract({subject.before}", after=after)
        data_type = data_type.field(name).type
    return subject, data_type


def _shielded(subject: Condition, data_type: pa.DataType) -> Condition:
    """Prevent a float comparison from using Parquet statistics, which ignore NaN and would skip matching rows."""
    if pa.types.is_floating(data_type):
        return replace(subject, before=f"({subject.before}", after=f"{subject.after} + CAST(0 AS DOUBLE))")
    return subject


def _holds(data_type: pa.DataType, value: Any) -> bool:
    """Return whether the type can represent a value exactly, so that binding does not change it."""
    types = pa.types
    if types.is_boolean(data_type):
        return isinstance(value, bool)
    if types.is_signed_integer(data_type):
        limit = 1 << (data_type.bit_width - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if types.is_float64(data_type):
        return isinstance(value, float)
    if types.is_float32(data_type):
        return isinstance(value, float) and (math.isnan(value) or _is_float32(value))
    if types.is_decimal128(data_type):
        return _fits_decimal(value, data_type.precision, data_type.scale)
    if types.is_string(data_type):
        return isinstance(value, str) and _is_utf8(value)
    if types.is_binary(data_type):
        return isinstance(value, bytes | bytearray)
    if types.is_date32(data_type):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if types.is_timestamp(data_type):
        return isinstance(value, dt.datetime) and (value.tzinfo is None) == (data_type.tz is None)
    return False


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value


def _is_utf8(text: str) -> bool:
    """Return whether a text has a UTF-8 encoding, that is, no lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _fits_decimal(value: Any, precision: int, scale: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return False
    number = Decimal(value)
    if not number.is_finite():
        return False
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    trailing = 0
    while trailing < len(digits) - 1 and digits[-1 - trailing] == 0:
        trailing += 1
    whole_digits = len(digits) + exponent
    return not number or (exponent + trailing >= -scale and whole_digits <= precision - scale)
