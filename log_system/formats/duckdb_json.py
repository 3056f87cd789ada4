"""The SQL with which DuckDB writes and reads each column type as JSON.

``docs/reference/formats.md`` documents the JSON of each type. A value passes through three shapes::

    Arrow column  --relabel-->  DuckDB column (duckdb_type)  --write_sql-->  what to_json writes
    Arrow column  <--relabel--  DuckDB column (duckdb_type)  <--read_sql---  what from_json reads (json_type)

Types that DuckDB's ``to_json`` writes correctly pass through unchanged: ``write_sql`` wraps only the others, which
keeps the common case fast. ``timestamp_text`` formats timestamps with arithmetic and lookup tables, in a fifth of the
time of DuckDB's ``strftime``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.changes_schema import PLAIN_TIMESTAMP, any_true, leaves
from snapshot.errors import InvalidInputError
from snapshot.quoting import quoted, text_literal
from snapshot.schema.arrow_types import types_within
from snapshot.schema.duckdb_types import type_name

_DAY_MICROS: Final = 86_400_000_000
_FIRST_DAY: Final = -719_162
"""0001-01-01, in days since 1970. DuckDB casts an earlier date to text as ``0045-01-02 (BC)``."""
_LAST_DAY: Final = 2_932_896
"""9999-12-31."""
_DAYS_MIN: Final = 1_000
"""A lookup table of this many days pays off for a batch of any size."""
_TEXT: Final = np.dtype([("date", "S10"), ("time", "S9"), ("milli", "S4"), ("micro", "S3")])
_TEXT_UTC: Final = np.dtype([*_TEXT.descr, ("zone", "S1")])


def timestamp_text(column: pa.Array) -> pa.Array | None:
    """Return timestamps in microseconds as text like ``2024-03-01T12:00:00.000000Z``; without time zone, without ``Z``.

    Returns:
        A string array; NULL timestamps stay NULL. None if this method does not apply: the column is empty, the days
        are too far apart for a lookup table, or a year does not have four digits.
    """
    if not len(column):
        return None
    # The values under NULLs are arbitrary, so replace them with the earliest timestamp.
    whole = column.cast(pa.int64())
    if whole.null_count == len(whole):
        return pa.nulls(len(whole), pa.string())
    bounds = pc.min_max(whole).as_py()
    first, last = bounds["min"] // _DAY_MICROS, bounds["max"] // _DAY_MICROS
    if first < _FIRST_DAY or last > _LAST_DAY or last - first > max(_DAYS_MIN, len(whole)):
        return None
    since = pc.fill_null(whole, bounds["min"]).to_numpy() - first * _DAY_MICROS
    day = since // _DAY_MICROS
    since -= day * _DAY_MICROS
    second = since // 1_000_000
    micro = since - second * 1_000_000
    milli = micro // 1_000
    micro -= milli * 1_000
    text = np.empty(len(whole), _TEXT if column.type.tz is None else _TEXT_UTC)
    text["date"] = np.arange(first, last + 1).astype("M8[D]").astype("S10")[day]
    text["time"] = _times_of_day()[second]
    text["milli"] = _thousandths(b".")[milli]
    text["micro"] = _thousandths(b"")[micro]
    if column.type.tz is not None:
        text["zone"] = b"Z"
    offsets = np.arange(len(text) + 1, dtype=np.int32) * np.int32(text.itemsize)
    found = pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(whole.is_valid(), found, None) if whole.null_count else found


@cache
def _times_of_day() -> np.ndarray:
    """Return ``T00:00:00`` to ``T23:59:59``."""
    seconds = np.arange(86_400).astype("M8[s]").astype("S19")
    return seconds.view("S1").reshape(-1, 19)[:, 10:].copy().view("S9").ravel()


@cache
def _thousandths(before: bytes) -> np.ndarray:
    """Return ``000`` to ``999``, each prefixed with ``before``."""
    return np.array([b"%s%03d" % (before, number) for number in range(1000)])


_DECIMAL_MAX = 38
_DECIMAL_AS_DOUBLE = 15
"""Up to this precision DuckDB writes a decimal as a double. A decimal of 18 digits is stored as wide as one of 15."""

_NO_DAY = -(2**31)
"""The only date that DuckDB writes but cannot read back."""
_FIRST_MICROS = -9_223_372_022_400_000_000
"""-290308-12-22 00:00:00, DuckDB's earliest timestamp, except for ``-infinity``."""
_NO_END = -(2**63) + 1
"""DuckDB's ``-infinity``."""


def json_literal(fields: dict[str, str]) -> str:
    """Return the structure argument of ``from_json`` as a SQL literal, from SQL types by field name."""
    return text_literal(json.dumps(fields, ensure_ascii=False))


def object_sql(fields: dict[str, str]) -> str:
    """Return SQL that makes the text of a JSON object, from one SQL expression per field name."""
    return f"to_json(struct_pack({', '.join(f'{quoted(name)} := {sql}' for name, sql in fields.items())}))::VARCHAR"


def is_object_map(data_type: pa.DataType) -> bool:
    """Return whether a map is written as a JSON object; only string keys allow that, others would lose their type."""
    return bool(pt.is_map(data_type) and pt.is_string(data_type.key_type))


def duckdb_type(data_type: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a column in DuckDB: no time zones, and maps without string keys as lists of pairs."""
    if pt.is_timestamp(data_type):
        return PLAIN_TIMESTAMP
    if pt.is_list(data_type):
        return pa.list_(duckdb_type(data_type.value_type))
    if is_object_map(data_type):
        return pa.map_(pa.string(), duckdb_type(data_type.item_type))
    if pt.is_map(data_type):
        pair = [pa.field("key", duckdb_type(data_type.key_type)), pa.field("value", duckdb_type(data_type.item_type))]
        return pa.list_(pa.struct(pair))
    if pt.is_struct(data_type):
        return pa.struct([pa.field(field.name, duckdb_type(field.type)) for field in data_type])
    return data_type


def json_type(data_type: pa.DataType) -> str:
    """Return the SQL type that ``from_json`` reads for a type from ``duckdb_type``; binary is still base64 text."""
    return type_name(data_type, blob="VARCHAR")


def numbered_types(schema: pa.Schema) -> pa.Schema:
    """Return columns as DuckDB sees them: named ``c0``, ``c1``, ... and with their ``duckdb_type``."""
    return pa.schema([pa.field(f"c{number}", duckdb_type(kind)) for number, kind in enumerate(schema.types)])


def check_values(rows: pa.RecordBatch) -> None:
    """Check that DuckDB can write all values of rows as JSON and read them back.

    Raises:
        InvalidInputError: a column holds one of the few dates and timestamps that it cannot.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _has_time(field.type):
            continue
        for leaf in leaves(column):
            if pt.is_date32(leaf.type):
                bad, what = pc.equal(leaf.view(pa.int32()), _NO_DAY), "the date -5877641-06-23"
            elif pt.is_timestamp(leaf.type):
                micros = leaf.view(pa.int64())
                bad = pc.and_(pc.less(micros, _FIRST_MICROS), pc.not_equal(micros, _NO_END))
                what = "timestamps before -290308-12-22 00:00:00"
            else:
                continue
            if any_true(bad):
                msg = (
                    f"column {field.name!r}: {what} cannot be written as JSON, and the rows contain such a value. "
                    "Write another value or NULL, or create the table with log.format='arrow'."
                )
                raise InvalidInputError(msg)


def _has_time(data_type: pa.DataType) -> bool:
    return any(pt.is_date32(each) or pt.is_timestamp(each) for each in types_within(data_type))


def is_unusual(array: pa.Array) -> bool:
    """Return whether an array holds values that need the slower SQL: NaN, infinities, dates before year 1."""
    for leaf in leaves(array):
        if pt.is_floating(leaf.type) and not pc.all(pc.is_finite(leaf), min_count=0).as_py():
            return True
        if pt.is_date32(leaf.type):
            days = leaf.view(pa.int32())
            if any_true(pc.less(days, pa.scalar(_FIRST_DAY, pa.int32()))):
                return True
    return False


def can_be_unusual(data_type: pa.DataType) -> bool:
    """Return whether ``is_unusual`` can be true for arrays of a type."""
    return any(pt.is_floating(each) or pt.is_date32(each) for each in types_within(data_type))


def _needs_writing(data_type: pa.DataType, *, unusual: bool) -> bool:
    if data_type.num_fields:
        return any(_needs_writing(child, unusual=unusual) for child in _children(data_type))
    if pt.is_decimal(data_type):
        return bool(data_type.precision <= _DECIMAL_AS_DOUBLE or data_type.precision == data_type.scale)
    if pt.is_float64(data_type) or pt.is_date32(data_type):
        return unusual
    return bool(pt.is_float32(data_type) or pt.is_binary(data_type) or pt.is_timestamp(data_type))


def _children(data_type: pa.DataType) -> list[pa.DataType]:
    """Return the child types of a type; a map has one child, the pair of key and value."""
    if pt.is_map(data_type):
        return [pa.struct([pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)])]
    return [data_type.field(i).type for i in range(data_type.num_fields)]


def write_sql(data_type: pa.DataType, sql: str, *, unusual: bool, depth: int = 0) -> str:
    """Return SQL whose ``to_json`` is the JSON of a column.

    Args:
        data_type: the column's type in the table (a time zone adds the ``Z``).
        sql: the column's SQL expression, of type ``duckdb_type``.
        unusual: whether the batch holds values for which ``is_unusual`` is true.
        depth: the number of lambdas around the expression.
    """
    if not _needs_writing(data_type, unusual=unusual):
        return sql
    if data_type.num_fields:
        return _nested(data_type, sql, lambda t, s, d: write_sql(t, s, unusual=unusual, depth=d), depth)
    if pt.is_floating(data_type):
        # DuckDB widens a float to double before writing it: 0.1 becomes 0.10000000149011612. Its cast to text gives
        # the shortest form.
        finite = f"({sql})::VARCHAR::DOUBLE" if pt.is_float32(data_type) else sql
        if not unusual:
            return finite
        return (
            f"CASE WHEN isfinite({sql}) THEN to_json({finite}) WHEN isnan({sql}) THEN '\"NaN\"'::JSON "
            f"WHEN {sql} > 0 THEN '\"Infinity\"'::JSON WHEN {sql} < 0 THEN '\"-Infinity\"'::JSON END"
        )
    if pt.is_decimal(data_type):
        # DuckDB writes short decimals through double (9.0, 1e-7; it cannot read the latter) and longer ones digit by
        # digit. If the type has no digits before the point it writes ".5", which is not JSON.
        if data_type.precision <= _DECIMAL_AS_DOUBLE:
            return f"({sql})::DECIMAL(18,{data_type.scale})"
        if data_type.precision < _DECIMAL_MAX:
            return f"({sql})::DECIMAL({data_type.precision + 1},{data_type.scale})"
        # There is no wider decimal, and nested JSON passes through double: only text keeps all 38 digits.
        return f"CASE WHEN {sql} < 0 THEN '-0' || ltrim(({sql})::VARCHAR, '-') ELSE '0' || ({sql})::VARCHAR END"
    if pt.is_binary(data_type):
        return f"to_base64({sql})"
    if pt.is_date32(data_type):
        return f"strftime({sql}, '%Y-%m-%d')"
    return f"strftime({sql}, '%Y-%m-%dT%H:%M:%S.%f{'Z' if data_type.tz else ''}')"


def read_sql(data_type: pa.DataType, sql: str, depth: int = 0) -> str:
    """Return SQL that converts a ``json_type`` value read by ``from_json`` to ``duckdb_type``."""
    if not _holds_binary(data_type):
        return sql
    if data_type.num_fields:
        return _nested(data_type, sql, read_sql, depth)
    return f"TRY(from_base64({sql}))"


def _holds_binary(data_type: pa.DataType) -> bool:
    return any(map(pt.is_binary, types_within(data_type)))


def _nested(data_type: pa.DataType, sql: str, inner: Callable[[pa.DataType, str, int], str], depth: int) -> str:
    """Return SQL that rebuilds a nested value with ``inner`` applied to its parts; NULL stays NULL."""
    if pt.is_struct(data_type):
        parts = ((quoted(f.name), f.type, f"struct_extract({sql}, {text_literal(f.name)})") for f in data_type)
        fields = (f"{name} := {inner(type_, part, depth)}" for name, type_, part in parts)
        return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    item = f"x{depth}"
    if not pt.is_map(data_type):
        return f"list_transform({sql}, lambda {item}: {inner(data_type.value_type, item, depth + 1)})"
    if not is_object_map(data_type):
        (pair,) = _children(data_type)
        return f"list_transform({sql}, lambda {item}: {inner(pair, item, depth + 1)})"
    value = inner(data_type.item_type, f"{item}.value", depth + 1)
    pairs = f"list_transform(map_entries({sql}), lambda {item}: struct_pack(key := {item}.key, value := {value}))"
    return f"CASE WHEN {sql} IS NOT NULL THEN map_from_entries({pairs}) END"
