"""The types that the state of an operator can hold, and those by which it can order rows."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from snapshot.schema.spark_types import types_in


def is_ordered(data_type: DataType) -> bool:
    """Return whether rows can be ordered by values of a type."""
    kinds = (NumericType, StringType, BinaryType, BooleanType, DateType, TimeType, TimestampType, TimestampNTZType)
    return isinstance(data_type, kinds)


def is_held(data_type: DataType) -> bool:
    """Return whether a state can hold values of a type."""
    return all(isinstance(each, ArrayType | MapType | StructType) or is_ordered(each) for each in types_in(data_type))
