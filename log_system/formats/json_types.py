"""How each type is written in JSON, as the SQL with which DuckDB writes and reads it.

``docs/formats.md`` has the table for people. A value passes through three shapes::

    Arrow column  --relabel-->  DuckDB column (duckdb_type)  --write_sql-->  what to_json writes
    Arrow column  <--relabel--  DuckDB column (duckdb_type)  <--read_sql---  what from_json reads (json_type)

Types that DuckDB's ``to_json`` writes rightly by itself pass through untouched: only what ``needs_writing`` is wrapped,
which keeps the common case fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from log_system.formats.columns import PLAIN_TIMESTAMP, any_true, leaves
from snapshot.errors import InvalidInputError
from snapshot.quoting import quoted, text_literal

_FLAT_SQL = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "VARCHAR",
    pa.date32(): "DATE",
}
_FIRST_PLAIN_DAY = -719162
"""0001-01-01, as days since the epoch. DuckDB casts an earlier date to text as ``0045-01-02 (BC)``."""

_DECIMAL_MAX = 38
_DECIMAL_AS_DOUBLE = 15
"""Up to this precision DuckDB writes a decimal as a double; a column of 18 digits is as wide as one of 15."""

_NO_DAY = -(2**31)
"""The one date that DuckDB writes and does not read."""


def json_literal(fields: dict[str, str]) -> str:
    """Quote the structure that ``from_json`` takes: SQL types by field name."""
    return text_literal(json.dumps(fields, ensure_ascii=False))


def object_sql(fields: dict[str, str]) -> str:
    """SQL of the text of a JSON object, from SQL by field name."""
    return f"to_json(struct_pack({', '.join(f'{quoted(name)} := {sql}' for name, sql in fields.items())}))::VARCHAR"


def is_object_map(kind: pa.DataType) -> bool:
    """Tell whether a map is written as a JSON object: only string keys are, all others would lose their type."""
    return bool(pt.is_map(kind) and pt.is_string(kind.key_type))


def duckdb_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type under which DuckDB sees a column: no time zones, and maps by other keys as lists of pairs."""
    if pt.is_timestamp(kind):
        return PLAIN_TIMESTAMP
    if pt.is_list(kind):
        return pa.list_(duckdb_type(kind.value_type))
    if is_object_map(kind):
        return pa.map_(pa.string(), duckdb_type(kind.item_type))
    if pt.is_map(kind):
        pair = [pa.field("key", duckdb_type(kind.key_type)), pa.field("value", duckdb_type(kind.item_type))]
        return pa.list_(pa.struct(pair))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, duckdb_type(field.type)) for field in kind])
    return kind


def json_type(kind: pa.DataType) -> str:
    """The SQL type that ``from_json`` reads, for a type made by ``duckdb_type``; binary is still base64 text."""
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind):
        return "TIMESTAMP"
    if pt.is_list(kind):
        return f"{json_type(kind.value_type)}[]"
    if pt.is_map(kind):
        return f"MAP(VARCHAR, {json_type(kind.item_type)})"
    if pt.is_struct(kind):
        return f"STRUCT({', '.join(f'{quoted(field.name)} {json_type(field.type)}' for field in kind)})"
    return _FLAT_SQL[kind]


def is_unusual(array: pa.Array) -> bool:
    """Tell whether an array holds values that need the careful, slower SQL: NaN, infinities, years before 1.

    Raises:
        InvalidInputError: a date that cannot be read back.
    """
    for leaf in leaves(array):
        if pt.is_floating(leaf.type) and not pc.all(pc.is_finite(leaf), min_count=0).as_py():
            return True
        if pt.is_date32(leaf.type):
            days = leaf.view(pa.int32())
            if any_true(pc.less(days, pa.scalar(_FIRST_PLAIN_DAY, pa.int32()))):
                if any_true(pc.equal(days, pa.scalar(_NO_DAY, pa.int32()))):
                    msg = "the date -5877641-06-23 is the one date that cannot be written in JSON; use log.format=arrow"
                    raise InvalidInputError(msg)
                return True
    return False


def can_be_unusual(kind: pa.DataType) -> bool:
    """Tell whether ``is_unusual`` is worth asking for a type."""
    if kind.num_fields:
        return any(can_be_unusual(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pt.is_floating(kind) or pt.is_date32(kind))


def _needs_writing(kind: pa.DataType, *, unusual: bool) -> bool:
    if kind.num_fields:
        return any(_needs_writing(child, unusual=unusual) for child in _children(kind))
    if pt.is_decimal(kind):
        return bool(kind.precision <= _DECIMAL_AS_DOUBLE or kind.precision == kind.scale)
    if pt.is_float64(kind) or pt.is_date32(kind):
        return unusual
    return bool(pt.is_float32(kind) or pt.is_binary(kind) or pt.is_timestamp(kind))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """Child types; a map has one, its pair."""
    if pt.is_map(kind):
        return [pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])]
    return [kind.field(i).type for i in range(kind.num_fields)]


def write_sql(kind: pa.DataType, sql: str, *, unusual: bool, depth: int = 0) -> str:
    """SQL whose ``to_json`` is the JSON of a column.

    Args:
        kind: the column's type in the table (time zones decide the ``Z``).
        sql: the column, in the shape of ``duckdb_type``.
        unusual: whether the batch holds values of which ``is_unusual`` is true.
        depth: how many lambdas surround the expression.
    """
    if not _needs_writing(kind, unusual=unusual):
        return sql
    if kind.num_fields:
        return _nested(kind, sql, lambda t, s, d: write_sql(t, s, unusual=unusual, depth=d), depth)
    if pt.is_floating(kind):
        # DuckDB widens a float before writing it: 0.1 becomes 0.10000000149011612. Its text is the shortest.
        finite = f"({sql})::VARCHAR::DOUBLE" if pt.is_float32(kind) else sql
        if not unusual:
            return finite
        return (
            f"CASE WHEN isfinite({sql}) THEN to_json({finite}) WHEN isnan({sql}) THEN '\"NaN\"'::JSON "
            f"WHEN {sql} > 0 THEN '\"Infinity\"'::JSON WHEN {sql} < 0 THEN '\"-Infinity\"'::JSON END"
        )
    if pt.is_decimal(kind):
        # DuckDB writes short decimals by way of double (9.0, 1e-7; it cannot read the latter), longer ones digit by
        # digit; and ".5" where the type has no digits before the point, which is not JSON.
        if kind.precision <= _DECIMAL_AS_DOUBLE:
            return f"({sql})::DECIMAL(18,{kind.scale})"
        if kind.precision < _DECIMAL_MAX:
            return f"({sql})::DECIMAL({kind.precision + 1},{kind.scale})"
        # No decimal is wider, and JSON inside of JSON goes by way of double: only text keeps all 38 digits.
        return f"CASE WHEN {sql} < 0 THEN '-0' || ltrim(({sql})::VARCHAR, '-') ELSE '0' || ({sql})::VARCHAR END"
    if pt.is_binary(kind):
        return f"to_base64({sql})"
    if pt.is_date32(kind):
        return f"strftime({sql}, '%Y-%m-%d')"
    return f"strftime({sql}, '%Y-%m-%dT%H:%M:%S.%f{'Z' if kind.tz else ''}')"


def read_sql(kind: pa.DataType, sql: str, depth: int = 0) -> str:
    """SQL that turns what ``from_json`` read as ``json_type`` into the shape of ``duckdb_type``."""
    if not _holds_binary(kind):
        return sql
    if kind.num_fields:
        return _nested(kind, sql, read_sql, depth)
    return f"TRY(from_base64({sql}))"


def _holds_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind)) or any(_holds_binary(child) for child in _children(kind))


def _nested(kind: pa.DataType, sql: str, inner: Callable[[pa.DataType, str, int], str], depth: int) -> str:
    """Rebuild a nested value with ``inner`` applied to its parts; NULL stays NULL."""
    if pt.is_struct(kind):
        parts = ((quoted(f.name), f.type, f"struct_extract({sql}, {text_literal(f.name)})") for f in kind)
        fields = (f"{name} := {inner(type_, part, depth)}" for name, type_, part in parts)
        return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    item = f"x{depth}"
    if not pt.is_map(kind):
        return f"list_transform({sql}, lambda {item}: {inner(kind.value_type, item, depth + 1)})"
    if not is_object_map(kind):
        (pair,) = _children(kind)
        return f"list_transform({sql}, lambda {item}: {inner(pair, item, depth + 1)})"
    value = inner(kind.item_type, f"{item}.value", depth + 1)
    pairs = f"list_transform(map_entries({sql}), lambda {item}: struct_pack(key := {item}.key, value := {value}))"
    return f"CASE WHEN {sql} IS NOT NULL THEN map_from_entries({pairs}) END"
