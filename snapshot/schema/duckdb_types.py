"""DuckDB's names of Arrow types."""

from __future__ import annotations

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.quoting import quoted

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
}


def type_name(data_type: pa.DataType, *, blob: str = "BLOB") -> str:
    """Return the name of the DuckDB type with exactly the values of an Arrow type.

    ``blob`` is the name for binary, on its own and in nested types.

    Raises:
        InvalidInputError: Delta does not store such a type.
    """
    types = pa.types

    def inner(part: pa.DataType) -> str:
        return type_name(part, blob=blob)

    if types.is_timestamp(data_type) and data_type.unit == "us":
        return "TIMESTAMP" if data_type.tz is None else "TIMESTAMPTZ"
    if types.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"{inner(data_type.value_type)}[]"
    if types.is_map(data_type):
        return f"MAP({inner(data_type.key_type)}, {inner(data_type.item_type)})"
    if types.is_struct(data_type):
        return f"STRUCT({', '.join(f'{quoted(field.name)} {inner(field.type)}' for field in data_type)})"
    name = _NAMES.get(data_type)
    if name is None:
        message = f"type {data_type}: Delta Lake does not support it in a table column"
        raise InvalidInputError(message)
    return blob if name == "BLOB" else name
