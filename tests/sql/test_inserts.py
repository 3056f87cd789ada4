"""Which types go into which columns without CAST."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tablestore.sql.inserted_rows import goes_into

GOES: list[tuple[DataType, DataType]] = [
    (IntegerType(), LongType()),
    (LongType(), IntegerType()),
    (IntegerType(), DecimalType(10, 2)),
    (DecimalType(4, 2), DecimalType(10, 2)),
    (DecimalType(4, 2), DoubleType()),
    (DoubleType(), FloatType()),
    (NullType(), StringType()),
    (TimestampNTZType(), TimestampType()),
    (DateType(), TimestampNTZType()),
    (ArrayType(IntegerType(), True), ArrayType(IntegerType(), False)),
]
STAYS: list[tuple[DataType, DataType]] = [
    (StringType(), LongType()),
    (LongType(), StringType()),
    (DoubleType(), LongType()),
    (DecimalType(10, 2), LongType()),
    (DoubleType(), DecimalType(10, 2)),
    (LongType(), TimestampType()),
    (StringType(), TimestampNTZType()),
    (ArrayType(StringType()), ArrayType(LongType())),
]


@pytest.mark.parametrize(("came", "wanted"), GOES, ids=str)
def test_what_goes_into_a_column(came: DataType, wanted: DataType) -> None:
    assert goes_into(came, wanted)


@pytest.mark.parametrize(("came", "wanted"), STAYS, ids=str)
def test_what_needs_a_cast(came: DataType, wanted: DataType) -> None:
    assert not goes_into(came, wanted)
