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


def is_ordered(data_type: DataType) -> bool:
    """Return whether rows can be ordered by values of a type."""
    kinds = (NumericType, StringType, BinaryType, BooleanType, DateType, TimeType, TimestampType, TimestampNTZType)
    return isinstance(data_type, kinds)


def is_held(data_type: DataType) -> bool:
    """Return whether a state can hold values of a type."""
    if isinstance(data_type, ArrayType):
        return is_held(data_type.elementType)
    if isinstance(data_type, MapType):
        return is_held(data_type.keyType) and is_held(data_type.valueType)
    if isinstance(data_type, StructType):
        return all(is_held(field.dataType) for field in data_type.fields)
    return is_ordered(data_type)
