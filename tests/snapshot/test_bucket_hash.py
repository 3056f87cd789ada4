"""The bucket of a key is the one Spark computes, for every type a key may have."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from snapshot.errors import InvalidInputError
from snapshot.merge.bucket_hash import bucket_of, key_types_allowed

BUCKETS = 7
RANDOM = random.Random(20240229)
EPOCH = dt.datetime(1970, 1, 1)


def _integers(bits: int) -> list[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return [0, 1, -1, low, high, *(RANDOM.randint(low, high) for _ in range(200))]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    top = 10**precision - 1
    edges = [0, 1, -1, top, -top, 127, 128, -128, -129, 255, 256, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1]
    unscaled = [n for n in edges if abs(n) <= top] + [
        RANDOM.randint(-(10**digits), 10**digits) for digits in range(1, precision) for _ in range(5)
    ]
    return [Decimal((int(n < 0), tuple(int(digit) for digit in str(abs(n))), -scale)) for n in unscaled]


def _moments() -> list[dt.datetime]:
    span = 9_000_000_000 * 10**6
    edges = [dt.datetime(1, 1, 2), dt.datetime(1582, 10, 4), EPOCH, dt.datetime(9999, 12, 30, 23, 59, 59, 999999)]
    return edges + [EPOCH + dt.timedelta(microseconds=RANDOM.randint(-span, span)) for _ in range(200)]


STRINGS = ["", "a", "ab", "abc", "abcd", "é", "日本語", "😀x", "\0", "\x7f\x80\xff", "x" * 1000] + [
    "".join(chr(RANDOM.choice([RANDOM.randint(1, 127), RANDOM.randint(128, 0x7FF), RANDOM.randint(0x800, 0xD7FF)]))
            for _ in range(RANDOM.randint(0, 20)))
    for _ in range(200)
]  # fmt: skip
FLOATS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5, 2.0**-149, 2.0**-126]

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": _integers(8),
    "short": _integers(16),
    "int": _integers(32),
    "long": _integers(64),
    "float": FLOATS,
    "double": [*FLOATS, 5e-324, 1.7976931348623157e308, *(RANDOM.gauss(0, 1e10) for _ in range(100))],
    "decimal(9,2)": _decimals(9, 2),
    "decimal(18,0)": _decimals(18, 0),
    "decimal(19,3)": _decimals(19, 3),
    "decimal(38,18)": _decimals(38, 18),
    "string": STRINGS,
    "binary": [text.encode() for text in STRINGS] + [RANDOM.randbytes(size) for size in range(40)],
    "date": [moment.date() for moment in _moments()],
    "timestamp": [moment.replace(tzinfo=dt.UTC) for moment in _moments()],
    "timestamp_ntz": _moments(),
    "time(6)": [moment.time() for moment in _moments()],
}


def _assert_equal_to_spark(spark: SparkSession, rows: list[tuple[Any, ...]], ddl: str, columns: list[str]) -> None:
    frame = spark.createDataFrame(rows, StructType.fromDDL(ddl)).coalesce(1)
    hashed = frame.withColumn("expected", F.pmod(F.hash(*columns), F.lit(BUCKETS))).toArrow().combine_chunks()
    for batch in hashed.to_batches():
        expected = batch.column("expected").to_pylist()
        assert bucket_of(batch, columns, BUCKETS).tolist() == expected
        # A slice starts inside Arrow's buffers: offsets must be honoured.
        middle = batch.slice(len(batch) // 3, len(batch) // 2)
        assert bucket_of(middle, columns, BUCKETS).tolist() == middle.column("expected").to_pylist()


@pytest.mark.parametrize("data_type", VALUES)
def test_bucket_is_sparks_pmod_hash(spark: SparkSession, data_type: str) -> None:
    rows = [(value,) for value in [None, *VALUES[data_type], None]]
    _assert_equal_to_spark(spark, rows, f"k {data_type}", ["k"])


def test_bucket_chains_the_hashes_of_all_key_columns(spark: SparkSession) -> None:
    names = [f"k{i}" for i in range(len(VALUES))]
    ddl = ", ".join(f"{name} {data_type}" for name, data_type in zip(names, VALUES, strict=True))
    rows = [
        tuple(None if RANDOM.random() < 0.2 else RANDOM.choice(values) for values in VALUES.values())
        for _ in range(500)
    ]
    _assert_equal_to_spark(spark, rows, ddl, names)
    _assert_equal_to_spark(spark, rows, ddl, names[::-3])


def test_wide_arrow_strings_hash_like_narrow_ones() -> None:
    arrays = [pa.array(STRINGS, data_type) for data_type in (pa.string(), pa.large_string(), pa.string_view())]
    first, *others = [bucket_of(pa.record_batch({"k": array}), ["k"], 1000).tolist() for array in arrays]
    assert all(other == first for other in others)


def test_an_empty_batch_has_no_buckets() -> None:
    for data_type in (pa.string(), pa.decimal128(38, 2), pa.int64(), pa.bool_()):
        assert len(bucket_of(pa.record_batch({"k": pa.array([], data_type)}), ["k"], 4)) == 0


@pytest.mark.parametrize("data_type", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.null()])
def test_nested_keys_are_refused(data_type: pa.DataType) -> None:
    batch = pa.record_batch({"k": pa.array([None], data_type)})
    with pytest.raises(InvalidInputError, match="key column 'k'"):
        bucket_of(batch, ["k"], 4)
    assert not key_types_allowed(data_type)


def test_floating_keys_are_not_allowed() -> None:
    assert not key_types_allowed(pa.float32())
    assert not key_types_allowed(pa.float64())
    assert key_types_allowed(pa.timestamp("us", "UTC"))
