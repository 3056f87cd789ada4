"""The rows that are measured: four columns, made by Spark from their numbers."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id bigint, name string, price double, at timestamp"


def rows(spark: SparkSession, count: int, *, seed: int = 0) -> DataFrame:
    """Make ``count`` rows with ids from 0; another seed gives the same ids other values."""
    return with_values(spark.range(count), seed)


def sample(spark: SparkSession, count: int, of: int, *, seed: int) -> DataFrame:
    """Make ``count`` rows with distinct ids spread over ``0 .. of - 1``, in no order."""
    step = of // count
    number = F.xxhash64(F.col("id"), F.lit(seed))
    picked = spark.range(count).select((F.col("id") * step + F.pmod(number, F.lit(step))).alias("id"))
    return with_values(picked.orderBy(F.xxhash64("id")), seed)


def repeated(spark: SparkSession, count: int, keys: int, *, seed: int) -> DataFrame:
    """Make ``count`` rows over ``keys`` ids, each id again and again."""
    return with_values(spark.range(count).select((F.col("id") * 7919 % keys).alias("id")), seed)


def with_values(ids: DataFrame, seed: int) -> DataFrame:
    """Add the other columns to ids."""
    return ids.select("id", *_values(seed))


def _values(seed: int) -> list[Column]:
    number = F.xxhash64(F.col("id"), F.lit(seed))
    return [
        F.concat(F.lit("name-"), F.pmod(number, F.lit(100_000)).cast("string")).alias("name"),
        (F.pmod(number, F.lit(1_000_003)) / 7).alias("price"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.pmod(number, F.lit(10**13))).alias("at"),
    ]
