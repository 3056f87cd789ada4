"""A table's columns as Spark types: which types can be stored, which can be widened, and their physical names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from snapshot.column_json import Path, paths
from snapshot.errors import InvalidInputError
from snapshot.quoting import check_text
from snapshot.schema.physical_names import PHYSICAL_NAME
from snapshot.schema.spec import BLOB_FIELD, BUCKET_KEY
from snapshot.schema.system_columns import RESERVED

_PART = re.compile(r"`((?:[^`]|``)+)`(?:\.|$)|([^.`]+)(?:\.|$)")


def with_physical_names(schema_json: str) -> StructType:
    """Parse the columns of a definition, with their physical names in the metadata."""
    return StructType.fromJson(json.loads(schema_json))


def physical_name(field: StructField) -> str:
    """Return the physical name of a column or a field."""
    return str((field.metadata or {}).get(PHYSICAL_NAME, field.name))


def visible(schema: StructType) -> StructType:
    """Return columns as users see them, without physical names."""
    return _fields_mapped(schema, lambda f: StructField(f.name, f.dataType, f.nullable, without_physical_names(f)))


def stored(schema: StructType) -> StructType:
    """Return columns with their physical names, in the same order."""
    return _fields_mapped(
        schema, lambda f: StructField(physical_name(f), f.dataType, f.nullable, without_physical_names(f))
    )


def without_physical_names(field: StructField) -> dict[str, object]:
    """Return a field's metadata without the physical name."""
    return {key: value for key, value in (field.metadata or {}).items() if key != PHYSICAL_NAME}


def physical_paths(schema: StructType) -> set[Path]:
    """Return the paths of all columns and fields by physical name, in lower case."""
    return paths(stored(schema).jsonValue())


def path_of(text: str, schema: StructType) -> tuple[str, ...]:
    """Return the parts of a dotted path; a name with dots in it is in backquotes unless it is a column name.

    Raises:
        InvalidInputError: the text is not a path.
    """
    if text.lower() in (name.lower() for name in schema.fieldNames()):
        return (text,)
    parts: list[str] = []
    position = 0
    while position < len(text) or not parts:
        match = _PART.match(text, position)
        if match is None:
            msg = f"column {text!r}: expected a name, or names separated by dots such as 'struct.field'."
            raise InvalidInputError(msg)
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end()
    if text.endswith("."):
        msg = f"column {text!r}: expected a name after the last dot."
        raise InvalidInputError(msg)
    return tuple(parts)


def types_in(data_type: DataType) -> Iterator[DataType]:
    """Yield a type and all types nested in it."""
    yield data_type
    for each in _inner(data_type):
        yield from types_in(each)


def _inner(data_type: DataType) -> list[DataType]:
    if isinstance(data_type, ArrayType):
        return [data_type.elementType]
    if isinstance(data_type, MapType):
        return [data_type.keyType, data_type.valueType]
    return [field.dataType for field in data_type.fields] if isinstance(data_type, StructType) else []


def _depth(data_type: DataType) -> int:
    return max((1 + _depth(each) for each in _inner(data_type)), default=0)


def _fields_mapped(struct: StructType, change: Callable[[StructField], StructField]) -> StructType:
    """Return a struct with every field changed, including fields of nested structs."""

    def mapped(data_type: DataType) -> DataType:
        if isinstance(data_type, StructType):
            return _fields_mapped(data_type, change)
        if isinstance(data_type, ArrayType):
            return ArrayType(mapped(data_type.elementType), data_type.containsNull)
        if isinstance(data_type, MapType):
            return MapType(mapped(data_type.keyType), mapped(data_type.valueType), data_type.valueContainsNull)
        return data_type

    fields = [change(field) for field in struct.fields]
    return StructType([StructField(f.name, mapped(f.dataType), f.nullable, f.metadata) for f in fields])


_ATOMIC_TYPES = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType,
    StringType, BinaryType, DateType, TimestampType, TimestampNTZType,
)  # fmt: skip
_PARTITION_TYPES = (BooleanType, ByteType, ShortType, IntegerType, LongType, DecimalType, StringType, DateType)
_KEY_TYPES = (*_PARTITION_TYPES, BinaryType, TimestampType, TimestampNTZType)
_DIGITS_MAX = 38
_DEPTH_MAX = 40
"""Delta's kernel reads schemas of 41 structs within each other, Arrow reads files of 48 arrays."""
_WIDER: dict[type[DataType], int] = {ByteType: 1, ShortType: 2, IntegerType: 3, LongType: 4}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark exchanges with Python for these columns (timestamps with zone in UTC)."""
    return to_arrow_schema(schema, timezone="UTC")


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type, as in `arrow_schema`."""
    return arrow_schema(StructType([StructField("_", data_type)])).field(0).type


def check_schema(schema: StructType, primary_key: Sequence[str], partition_by: Sequence[str]) -> None:
    """Check that a table can have these columns.

    Raises:
        InvalidInputError: there are no columns; a name is reserved or repeated; Delta does not support a type; a key or
            partition column does not exist, or its type cannot be hashed or used in a path.
    """
    if not schema.fields:
        msg = "schema: a table needs at least one column; this schema has none."
        raise InvalidInputError(msg)
    _check_names("columns", schema)
    for field in schema.fields:
        if field.name.lower() in RESERVED:
            msg = f"schema: column name {field.name!r} is reserved by the store ({', '.join(RESERVED)}); rename it."
            raise InvalidInputError(msg)
        if (depth := _depth(field.dataType)) > _DEPTH_MAX:
            msg = (
                f"schema: column {field.name!r}: expected arrays, maps and structs within each other at most "
                f"{_DEPTH_MAX} levels deep, got {depth}: Delta and Parquet do not read deeper ones. Flatten it."
            )
            raise InvalidInputError(msg)
        _check_type(field.name, field.dataType)
    _check_columns(schema, "primary_key", primary_key, _KEY_TYPES)
    _check_columns(schema, "partition_by", partition_by, _PARTITION_TYPES)
    if len(partition_by) == len(schema.fields):
        msg = "partition_by: every column of the table is a partition column; leave at least one out."
        raise InvalidInputError(msg)


def check_bucket_key(schema: StructType, names: Sequence[str]) -> None:
    """Check that the rows of a table with these columns can be divided into buckets by some of them.

    Raises:
        InvalidInputError: a column does not exist or is named twice, or its type cannot be hashed.
    """
    _check_columns(schema, f"option '{BUCKET_KEY}'", names, _KEY_TYPES)


def check_blob_fields(schema: StructType, names: Sequence[str]) -> None:
    """Check that columns exist and have binary values: BINARY, or an array or a map of it.

    Raises:
        InvalidInputError: one does not.
    """
    _check_columns(schema, f"option '{BLOB_FIELD}'", names, (DataType,))
    for name in names:
        data_type = schema[name].dataType
        if not isinstance((_inner(data_type) or [data_type])[-1], BinaryType):
            msg = (
                f"option '{BLOB_FIELD}': column {name!r} has type {data_type.simpleString()}; expected binary, or an "
                "array or a map of it."
            )
            raise InvalidInputError(msg)


def table_schema(schema: StructType, primary_key: Sequence[str]) -> StructType:
    """Return the schema as the table stores it: key columns are NOT NULL."""
    return StructType(
        [StructField(f.name, f.dataType, f.nullable and f.name not in primary_key, f.metadata) for f in schema.fields]
    )


def as_nullable(data_type: DataType) -> DataType:
    """Return a type with all nested elements, values and fields nullable."""
    if isinstance(data_type, ArrayType):
        return ArrayType(as_nullable(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(as_nullable(data_type.keyType), as_nullable(data_type.valueType), True)
    if isinstance(data_type, StructType):
        return StructType([StructField(each.name, as_nullable(each.dataType), True) for each in data_type.fields])
    return data_type


def can_widen(given: DataType, wanted: DataType) -> bool:
    """Return whether a cast to ``wanted`` keeps every value of ``given`` exactly."""
    if given == wanted or given.simpleString() == "void":
        return True
    if type(given) in _WIDER and type(wanted) in _WIDER:
        return _WIDER[type(given)] <= _WIDER[type(wanted)]
    if isinstance(given, FloatType) and isinstance(wanted, DoubleType):
        return True
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        return wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        pairs = zip(given.fields, wanted.fields, strict=False)
        return len(given.fields) == len(wanted.fields) and all(
            a.name == b.name and can_widen(a.dataType, b.dataType) for a, b in pairs
        )
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return can_widen(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return can_widen(given.keyType, wanted.keyType) and can_widen(given.valueType, wanted.valueType)
    return False


def _check_names(what: str, struct: StructType) -> None:
    """Check that names are neither empty nor equal but for case, which Delta and the log do not take."""
    seen: dict[str, str] = {}
    for name in struct.names:
        check_text(name, f"schema: {what}")
        if not name:
            msg = f"schema: {what}: expected names of one letter or more, got ''; name it."
            raise InvalidInputError(msg)
        if name.lower() in seen:
            msg = f"schema: {what}: {seen[name.lower()]!r} and {name!r} differ in case only, or not at all; rename one."
            raise InvalidInputError(msg)
        seen[name.lower()] = name


def _check_type(path: str, data_type: DataType) -> None:
    if isinstance(data_type, StructType):
        _check_names(f"fields of column {path!r}", data_type)
        for field in data_type.fields:
            _check_type(f"{path}.{field.name}", field.dataType)
    elif isinstance(data_type, ArrayType):
        _check_type(f"{path}.element", data_type.elementType)
    elif isinstance(data_type, MapType):
        _check_type(f"{path}.key", data_type.keyType)
        _check_type(f"{path}.value", data_type.valueType)
    elif not isinstance(data_type, _ATOMIC_TYPES):
        msg = (
            f"schema: column {path!r} has type {data_type.simpleString()}, which Delta tables of this store do "
            "not support."
        )
        raise InvalidInputError(msg)
    elif isinstance(data_type, DecimalType) and not 0 <= data_type.scale <= data_type.precision <= _DIGITS_MAX:
        msg = (
            f"schema: column {path!r} has type {data_type.simpleString()}; expected decimal(p, s) with s at most p and "
            f"p at most {_DIGITS_MAX}."
        )
        raise InvalidInputError(msg)


def _check_columns(schema: StructType, what: str, names: Sequence[str], allowed: tuple[type[DataType], ...]) -> None:
    if len(set(names)) != len(names):
        msg = f"{what}: names a column twice: {list(names)}."
        raise InvalidInputError(msg)
    for name in names:
        if name not in schema.fieldNames():
            msg = f"{what}: there is no column {name!r}; the table has {schema.fieldNames()}."
            raise InvalidInputError(msg)
        data_type = schema[name].dataType
        if not isinstance(data_type, allowed):
            words = ", ".join(each().simpleString().partition("(")[0] for each in allowed)
            msg = f"{what}: column {name!r} has type {data_type.simpleString()}; allowed are {words}."
            if allowed is _PARTITION_TYPES and isinstance(data_type, TimestampType | TimestampNTZType):
                msg += " A partition of an instant would hold few rows: partition by a column of its date or hour."
            raise InvalidInputError(msg)
        if isinstance(data_type, StringType) and data_type.collation != "UTF8_BINARY":
            # Buckets, folders and merging compare bytes; another collation could treat two different keys as equal.
            msg = f"{what}: column {name!r} has collation {data_type.collation}; allowed is UTF8_BINARY."
            raise InvalidInputError(msg)
