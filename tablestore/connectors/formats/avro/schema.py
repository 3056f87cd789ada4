"""The Avro schema of a table, with Flink's record names: reader and writer must agree on it without a registry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from snapshot.errors import InvalidInputError
from tablestore.connectors.formats.types import TIME, precision

MILLI = 1_000_000
"""The number of nanoseconds in the unit of ``time-millis``."""
NAMESPACE = "org.apache.flink.avro.generated"

_FLAT = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    TIME: {"type": "int", "logicalType": "time-millis"},
}


def record_schema(schema: pa.Schema | pa.StructType, name: str = "record") -> dict[str, Any]:
    """Return the Avro schema of a row; nullable fields are unions with null first."""
    fields = []
    for field in schema:
        entry: dict[str, Any] = {"name": field.name, "type": _field_type(field, f"{name}_{field.name}")}
        if field.nullable:
            entry["default"] = None
        fields.append(entry)
    top = {"namespace": NAMESPACE} if name == "record" else {}
    return {"type": "record", "name": name, **top, "fields": fields}


def _field_type(field: pa.Field, name: str) -> Any:
    kind = _type(field, name)
    return ["null", kind] if field.nullable else kind


def _type(field: pa.Field, name: str) -> Any:
    data_type = field.type
    if pt.is_struct(data_type):
        return record_schema(data_type, name)
    if pt.is_list(data_type):
        return {"type": "array", "items": _field_type(data_type.value_field, name)}
    if pt.is_map(data_type):
        return {"type": "map", "values": _field_type(data_type.item_field, name)}
    if pt.is_decimal(data_type):
        return {"type": "bytes", "logicalType": "decimal", "precision": data_type.precision, "scale": data_type.scale}
    if pt.is_timestamp(data_type):
        return {"type": "long", "logicalType": field.metadata[LOGICAL].decode()}
    return _FLAT[data_type]


LOGICAL = b"avro.logical"
"""Field metadata key under which ``with_logical_types`` stores a timestamp's logical type."""


def with_logical_types(field: pa.Field, path: str, *, legacy: bool) -> pa.Field:
    """Check a field, and return it with the logical type of each timestamp in its metadata.

    With ``legacy``, TIMESTAMP is written as ``timestamp-millis``, as in Flink before 1.19.

    Raises:
        InvalidInputError: Avro, or Flink's Avro format, does not support the field's type.
    """
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([with_logical_types(f, f"{path}.{f.name}", legacy=legacy) for f in kind])
    elif pt.is_list(kind):
        kind = pa.list_(with_logical_types(kind.value_field, f"{path}.element", legacy=legacy))
    elif pt.is_map(kind):
        if not pt.is_string(kind.key_type):
            msg = f"column {path!r}: format 'avro' has maps with string keys only, this one has {kind.key_type}"
            raise InvalidInputError(msg)
        kind = pa.map_(kind.key_field, with_logical_types(kind.item_field, f"{path}.value", legacy=legacy))
    if pt.is_time(kind) and precision(field) > 3:
        msg = (
            f"column {path!r}: Avro does not support TIME type with precision: {precision(field)}, it only supports "
            "precision less than 3. Declare TIME(3)"
        )
        raise InvalidInputError(msg)
    if not pt.is_timestamp(kind):
        return field.with_type(kind)
    return field.with_metadata({**(field.metadata or {}), LOGICAL: _logical(field, path, legacy=legacy).encode()})


def _logical(field: pa.Field, path: str, *, legacy: bool) -> str:
    digits = precision(field)
    if legacy and field.type.tz:
        msg = (
            f"column {path!r}: Avro does not hold TIMESTAMP_LTZ while the option 'timestamp_mapping.legacy' is true, "
            "its default. Set it to 'false', or declare the column TIMESTAMP(3)"
        )
        raise InvalidInputError(msg)
    if legacy and digits > 3:
        msg = (
            f"column {path!r}: Avro does not support TIMESTAMP type with precision: {digits}, it only supports "
            "precision less than 3. Declare the column TIMESTAMP(3), or set 'timestamp_mapping.legacy' to 'false'"
        )
        raise InvalidInputError(msg)
    unit = "millis" if digits <= 3 else "micros"
    return f"timestamp-{unit}" if legacy or field.type.tz else f"local-timestamp-{unit}"


def unit_of(field: pa.Field) -> int:
    """Return the number of microseconds in one unit of a timestamp field's logical type."""
    return 1000 if field.metadata[LOGICAL].endswith(b"millis") else 1
