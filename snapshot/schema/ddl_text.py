"""Schemas and types from DDL text or Arrow, with or without Spark's JVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import sqlglot
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql.pandas.types import from_arrow_schema
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
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snapshot.errors import InvalidInputError

_TYPE: Final = exp.DataType.Type
_SIMPLE: Final = {
    _TYPE.BOOLEAN: BooleanType(),
    _TYPE.TINYINT: ByteType(),
    _TYPE.SMALLINT: ShortType(),
    _TYPE.INT: IntegerType(),
    _TYPE.BIGINT: LongType(),
    _TYPE.FLOAT: FloatType(),
    _TYPE.DOUBLE: DoubleType(),
    _TYPE.TEXT: StringType(),
    _TYPE.BINARY: BinaryType(),
    _TYPE.DATE: DateType(),
    _TYPE.TIMESTAMPTZ: TimestampType(),
    _TYPE.TIMESTAMPLTZ: TimestampType(),
    _TYPE.TIMESTAMPNTZ: TimestampNTZType(),
}


def as_schema(schema: pa.Schema | StructType | str) -> StructType:
    """Return a Spark schema, an Arrow schema or DDL text as a Spark schema.

    Raises:
        InvalidInputError: the text is not a schema in Spark's DDL, or Spark has no type for one of Arrow's.
    """
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, pa.Schema):
        return StructType([_from_arrow(field) for field in schema])
    expected = "schema: expected a Spark or Arrow schema, or DDL text such as 'id bigint, name string', got"
    if not isinstance(schema, str):
        hint = "; pass its schema" if isinstance(getattr(schema, "schema", None), pa.Schema) else ""
        msg = f"{expected} a {type(schema).__name__}{hint}."
        raise InvalidInputError(msg)
    try:
        parsed = _by_spark_or(StructType.fromDDL, columns_of, schema)
    except PySparkException as error:
        msg = f"{expected} {schema!r}: {error}"
        raise InvalidInputError(msg) from error
    return parsed if isinstance(parsed, StructType) else StructType([StructField("value", parsed)])


def _from_arrow(field: pa.Field) -> StructField:
    try:
        return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0]
    except (PySparkException, ValueError) as error:
        msg = f"schema: column {field.name!r}: Spark has no type for Arrow's {field.type}; choose another."
        raise InvalidInputError(msg) from error


def as_data_type(data_type: DataType | str, what: str) -> DataType:
    """Return the type of a column.

    Args:
        data_type: a Spark type or its DDL text, such as ``"decimal(10, 2)"``.
        what: the column's name in messages.

    Raises:
        InvalidInputError: the text is not a type.
    """
    if isinstance(data_type, DataType):
        return data_type
    try:
        return _by_spark_or(DataType.fromDDL, lambda text: columns_of(f"c {text}").fields[0].dataType, data_type)
    except (PySparkException, InvalidInputError) as error:
        msg = f"column {what!r}: expected a Spark type or its text such as 'bigint', got {data_type!r}: {error}"
        raise InvalidInputError(msg) from error


def _by_spark_or(by_spark: Callable[[str], DataType], without: Callable[[str], DataType], text: str) -> DataType:
    """Parse text by Spark's own parser, which is in its JVM, or in another way if this process runs no Spark."""
    try:
        return by_spark(text)
    except PySparkRuntimeError as error:
        if error.getCondition() != "SESSION_OR_CONTEXT_NOT_EXISTS":
            raise
        return without(text)


def columns_of(text: str) -> StructType:
    """Return the columns of DDL text, parsed without Spark's JVM.

    Raises:
        InvalidInputError: the text is not a schema.
    """
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="spark")
    except SqlglotError as error:
        # sqlglot counts the columns of the text around it, too.
        raise _not_ddl(text, str(error).splitlines()[0].partition(" Line 1")[0]) from error
    columns = tree.this.expressions if isinstance(tree, exp.Create) and isinstance(tree.this, exp.Schema) else []
    if not columns or not all(isinstance(column, exp.ColumnDef) for column in columns):
        raise _not_ddl(text, "it has something other than columns")
    return StructType([_field(column, text) for column in columns])


def _field(column: exp.ColumnDef, text: str) -> StructField:
    if column.kind is None:
        raise _not_ddl(text, f"column {column.name!r} has no type")
    nullable, metadata = True, {}
    for each in column.constraints:
        if isinstance(each.kind, exp.NotNullColumnConstraint):
            nullable = bool(each.kind.args.get("allow_null"))
        elif isinstance(each.kind, exp.CommentColumnConstraint):
            metadata["comment"] = each.kind.this.name
        else:
            raise _not_ddl(text, f"column {column.name!r} has {each.sql(dialect='spark')!r}")
    return StructField(column.name, _data_type(column.kind, text), nullable, metadata)


def _data_type(given: exp.DataType, text: str) -> DataType:
    inner = given.expressions
    if given.this is _TYPE.DECIMAL:
        return DecimalType(*(int(each.name) for each in inner))
    if given.this is _TYPE.ARRAY and len(inner) == 1:
        return ArrayType(_data_type(inner[0], text))
    if given.this is _TYPE.MAP and len(inner) == 2:
        return MapType(_data_type(inner[0], text), _data_type(inner[1], text))
    if given.this is _TYPE.STRUCT:
        return StructType([_field(each, text) for each in inner])
    found = _SIMPLE.get(given.this)
    if found is None or inner:
        raise _not_ddl(text, f"{given.sql(dialect='spark')} is not a type of a column")
    return found


def _not_ddl(text: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"schema: expected Spark's DDL, such as 'id bigint, name string', got {text!r}: {reason.rstrip('.')}."
    )
