"""Conditions and values in DML statements, checked against the table before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from snapshot.errors import InvalidInputError
from snapshot.schema.spark_types import as_nullable, can_widen

Condition = Column | str
"""A boolean Spark column, or SQL text of one."""
Value = Column | str | bool | int | float | Decimal | date | bytes | None
"""A Spark column, SQL text of an expression, or a constant that is not a string."""


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame without rows, against which Spark checks expressions."""
    return spark.createDataFrame([], schema)


def checked_condition(condition: Condition, on: DataFrame, what: str) -> Column:
    """Check a condition against the columns it may read, and return it as a Spark column.

    Args:
        condition: the condition as given by the user.
        on: a frame with these columns.
        what: the condition's name in messages, such as ``delete: where``.

    Raises:
        InvalidInputError: it is not a condition, or refers to a column that does not exist.
    """
    given: object = condition
    if not isinstance(given, Column | str):
        msg = f"{what}: expected a Spark column or SQL text, got {type(given).__name__}."
        raise InvalidInputError(msg)
    try:
        column = F.expr(condition) if isinstance(condition, str) else condition
        on.where(column).schema  # noqa: B018 - Spark checks when it is asked for the columns
    except (AnalysisException, ParseException) as error:
        raise _refused(what, condition, error) from error
    return column


def holds(condition: Column) -> Column:
    """Return a column that is true where a condition is true, and false where it is false or NULL."""
    return F.coalesce(condition, F.lit(False))


def columns_read(spark: SparkSession, schema: StructType, condition: Column | None) -> list[str]:
    """Return the columns that a condition may read: those named in its text; all if these are not enough."""
    text = "" if condition is None else str(condition).lower()
    named = [field for field in schema.fields if field.name.lower() in text]
    try:
        if condition is not None:
            empty(spark, StructType(named)).where(condition).schema  # noqa: B018 - as above
    except AnalysisException:
        # The text may be incomplete: Spark truncates long expressions, and a star names no columns.
        return schema.fieldNames()
    return [field.name for field in named]


def checked_values(values: Mapping[str, Value], schema: StructType, on: DataFrame, what: str) -> dict[str, Column]:
    """Check the values that columns are set to; return them by name (case-insensitive), cast to the columns' types.

    Args:
        values: values by column name, as given by the user.
        schema: the table's columns.
        on: a frame with the columns that the values may read.
        what: the values' name in messages, such as ``update: set``.

    Raises:
        InvalidInputError: no value is given, a column is unknown or given twice, or a value's type does not fit.
    """
    given: object = values
    if not isinstance(given, Mapping) or not given:
        msg = f"{what}: expected a mapping of columns to new values, such as {{'price': 'price * 2'}}; got {values!r}."
        raise InvalidInputError(msg)
    fields = {field.name.lower(): field for field in schema.fields}
    assignments: dict[str, Column] = {}
    for name, value in values.items():
        field = fields.get(name.lower())
        if field is None or field.name in assignments:
            why = "is not a column" if field is None else "is set twice"
            msg = f"{what}: {name!r} {why}; the table has {schema.fieldNames()}."
            raise InvalidInputError(msg)
        column, actual = evaluated(value, on, f"{what}: column {field.name!r}")
        if not can_widen(actual, field.dataType):
            msg = (
                f"{what}: column {field.name!r} is {field.dataType.simpleString()}, got {actual.simpleString()}; use "
                f"cast(... as {field.dataType.simpleString()})."
            )
            raise InvalidInputError(msg)
        assignments[field.name] = column if actual == field.dataType else column.cast(as_nullable(field.dataType))
    return assignments


def evaluated(value: Value, on: DataFrame, what: str) -> tuple[Column, DataType]:
    """Return a value as a Spark column, and its type.

    Args:
        value: the value as given by the user.
        on: a frame with the columns that the value may read.
        what: the value's name in messages.

    Raises:
        InvalidInputError: the value cannot be evaluated.
    """
    try:
        column = value if isinstance(value, Column) else F.expr(value) if isinstance(value, str) else F.lit(value)
        return column, on.select(column.alias("value")).schema["value"].dataType
    except (AnalysisException, ParseException) as error:
        raise _refused(what, value, error) from error


def _refused(what: str, given: object, error: AnalysisException | ParseException) -> InvalidInputError:
    reason = str(error).split(";\n'")[0].split("\n\n")[0].split("== SQL")[0].strip()
    return InvalidInputError(f"{what} {given!r} cannot be evaluated here: {reason}")
