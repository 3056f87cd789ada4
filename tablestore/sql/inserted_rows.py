"""Rows with the columns and types of the table that they are inserted into."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.nested_nulls import refuse_nested_nulls
from snapshot.schema.spark_types import arrow_schema, as_nullable, can_widen
from tablestore.spark.shipped import map_batches
from tablestore.sql.catalog.binding import Columns, connector_of, insertable_columns
from tablestore.sql.catalog.settings import Enforcers
from tablestore.sql.parser.statements import CreateTable, PhysicalColumn
from tablestore.sql.parser.types import PRECISION_MAX, TIME, FlinkType
from tablestore.sql.queries.continuous_query import Plan

_TIMES = (TimestampType, TimestampNTZType, DateType)


def aligned(planned: Plan, made: CreateTable, columns: Columns, enforcers: Enforcers) -> DataFrame:
    """Return a query's rows with the target table's columns: matched by position and cast to the table's types.

    Raises:
        InvalidInputError: the number of columns differs, or a type needs an explicit CAST.
    """
    frame = planned.frame if planned.shape is None else planned.shape
    changes = [CHANGE_TYPE] if planned.changes else []
    given = frame.columns[: len(frame.columns) - len(changes)]
    if len(given) != len(columns):
        msg = (
            f"INSERT INTO '{made.name}': Different number of columns: the table expects {len(columns)} "
            f"({', '.join(column.name for column in columns)}), the query has {len(given)} ({', '.join(given)}). "
            f"Name the columns of the query: INSERT INTO {backquoted(made.name)} (...) ..."
        )
        raise InvalidInputError(msg)
    frame = frame.toDF(*(f"_{number}" for number in range(len(given))), *changes)
    filled: dict[str, Column] = {}
    for number, column in enumerate(columns):
        actual = frame.schema[number].dataType
        if not goes_into(actual, column.type.spark):
            msg = (
                f"INSERT INTO '{made.name}': column '{column.name}' is {column.type.text}, the query's column "
                f"{number + 1} is {actual.simpleString()}. Use CAST(... AS {column.type.text})."
            )
            raise InvalidInputError(msg)
        filled[column.name] = _cut(F.col(f"_{number}").cast(as_nullable(column.type.spark)), column.type)
        if enforcers.fits_lengths and column.type.length is not None:
            filled[column.name] = _fitted(filled[column.name], column.type, column.type.length)
    # Omitted metadata columns are left to the connector; omitted physical columns are NULL.
    targets = tuple(
        column for column in insertable_columns(made) if column.name in filled or isinstance(column, PhysicalColumn)
    )
    chosen = [
        filled.get(column.name, F.lit(None).cast(as_nullable(column.type.spark))).alias(column.name)
        for column in targets
    ]
    frame = frame.select(*chosen, *changes)
    if enforcers.drops_nulls:
        for column in targets:
            if not column.type.nullable or column.name in made.primary_key:
                frame = frame.where(F.col(backquoted(column.name)).isNotNull())
    return as_declared(frame, made, targets)


def goes_into(given: DataType, wanted: DataType) -> bool:
    """Return whether values of one type can be written to a column of another without CAST.

    Integers go into any numeric type; values out of its range fail at run time. Decimals and floating-point numbers do
    not go into integer types; decimals are rounded to the column's scale, as in Flink. Dates and timestamps go into
    each other. Fields of rows are matched by position, and so are those of rows in arrays and maps.
    """
    if (
        isinstance(given, NullType)
        or can_widen(given, as_nullable(wanted))
        or as_nullable(given) == as_nullable(wanted)
    ):
        return True
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        pairs = zip(given.fields, wanted.fields, strict=False)
        return len(given) == len(wanted) and all(goes_into(one.dataType, other.dataType) for one, other in pairs)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return goes_into(given.elementType, wanted.elementType)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return goes_into(given.keyType, wanted.keyType) and goes_into(given.valueType, wanted.valueType)
    if isinstance(given, IntegralType) and isinstance(wanted, NumericType):
        return True
    if isinstance(given, DecimalType) and isinstance(wanted, FractionalType):
        return True
    if isinstance(given, FractionalType) and isinstance(wanted, FloatType | DoubleType):
        return True
    return isinstance(given, _TIMES) and isinstance(wanted, _TIMES)


def _cut(column: Column, kind: FlinkType) -> Column:
    """Truncate a timestamp or time to the precision of its column, as Flink does."""
    if kind.digits is None or kind.digits == PRECISION_MAX:
        return column
    if kind.spark == TIME:
        return column.cast(TimeType(kind.digits)).cast(TIME)
    zero = F.lit(0)
    over = F.extract(F.lit("SECOND"), column) % F.lit(Decimal(1).scaleb(-kind.digits))
    return column - F.make_dt_interval(zero, zero, zero, over)


def _fitted(column: Column, kind: FlinkType, length: int) -> Column:
    """Cut text or bytes to a length; those of CHAR and BINARY are padded to it, by spaces and zeros."""
    if not kind.is_padded:
        return F.substring(column, 1, length)
    return F.rpad(column, length, F.lit(b"\x00") if isinstance(kind.spark, BinaryType) else " ")


def _nullability(schema: StructType) -> list[tuple[str, DataType, bool]]:
    return [(field.name, field.dataType, field.nullable) for field in schema]


def as_declared(frame: DataFrame, made: CreateTable, targets: Columns) -> DataFrame:
    """Return rows with the declared nullability of the table's columns; NULL in a NOT NULL column fails at run time.

    In Avro, a nullable column has another type than a required one: a union with null. Spark infers nullability by
    itself, for example that a count is never NULL, so without this step it could write another type than the table
    declares. Key columns keep the frame's nullability, since the sink checks them. So does a store table all columns.
    """
    if connector_of(made) is None:
        return frame
    given = {field.name: field for field in frame.schema}
    fields = []
    for column in targets:
        nullable = given[column.name].nullable if column.name in made.primary_key else column.type.nullable
        fields.append(StructField(column.name, column.type.spark, nullable))
    fields += [field for field in frame.schema if field.name not in {column.name for column in targets}]
    schema = StructType(fields)
    if _nullability(schema) == _nullability(frame.schema):
        return frame
    required = tuple(
        column.name for column in targets if not column.type.nullable and column.name not in made.primary_key
    )
    name = made.name
    nested = [field for field in fields if isinstance(field.dataType, ArrayType | MapType | StructType)]
    declared = arrow_schema(StructType(nested))

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for column in required:
                if batch.column(column).null_count:
                    msg = (
                        f"table '{name}': column '{column}' is NOT NULL, and a row has NULL there. Nothing is written."
                    )
                    raise InvalidInputError(msg)
            refuse_nested_nulls(batch, declared)
            yield batch

    return map_batches(frame, held, schema)
