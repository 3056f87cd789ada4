"""Parses Spark's schema JSON without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_ATOMIC: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_SPARK_METADATA = b"SPARK::metadata::json"
_COLLATIONS = "__COLLATIONS"
"""Spark's key for collations in a field's metadata; Arrow has no collations."""


def arrow_columns(schema_json: str) -> pa.Schema:
    """Return the Arrow schema that Spark exchanges with Python for these columns (timestamps with a zone are in UTC).

    Equal to PySpark's ``to_arrow_schema(StructType.fromJson(...), timezone="UTC")``; a test compares them.

    Args:
        schema_json: the JSON of a Spark schema.

    Raises:
        ValueError: a column has a type that tables do not support.
    """
    return pa.schema([_field(field) for field in json.loads(schema_json)["fields"]])


def sql_columns(schema_json: str) -> list[tuple[str, str, bool]]:
    """Return the name, the type in Spark SQL, such as ``array<bigint>``, and the nullability of each column."""
    return [(f["name"], _sql_type(f["type"]), f.get("nullable", True)) for f in json.loads(schema_json)["fields"]]


def _sql_type(kind: str | Mapping[str, Any]) -> str:
    if isinstance(kind, str):
        return _SQL_NAMES.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_sql_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_sql_type(kind['keyType'])},{_sql_type(kind['valueType'])}>"
    fields = (f"{field['name']}:{_sql_type(field['type'])}" for field in kind["fields"])
    return f"struct<{','.join(fields)}>"


def _field(field: Mapping[str, Any]) -> pa.Field:
    metadata = {name: value for name, value in (field.get("metadata") or {}).items() if name != _COLLATIONS}
    kept = {_SPARK_METADATA: json.dumps(metadata).encode()} if metadata else None
    return pa.field(field["name"], _type(field["type"]), nullable=field.get("nullable", True), metadata=kept)


def _type(kind: str | Mapping[str, Any]) -> pa.DataType:
    if isinstance(kind, str):
        if kind in _ATOMIC:
            return _ATOMIC[kind]
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
    elif kind["type"] == "array":
        return pa.list_(pa.field("element", _type(kind["elementType"]), nullable=kind["containsNull"]))
    elif kind["type"] == "map":
        key = pa.field("key", _type(kind["keyType"]), nullable=False)
        return pa.map_(key, pa.field("value", _type(kind["valueType"]), nullable=kind["valueContainsNull"]))
    elif kind["type"] == "struct":
        return pa.struct([_field(field) for field in kind["fields"]])
    msg = f"type {kind!r} is not supported in tables of the store"
    raise ValueError(msg)
