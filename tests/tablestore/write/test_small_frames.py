"""Rows of small files are staged in the driver, without a Spark job; all others in tasks. The results are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore import TableStore
from tablestore.write import small_frames
from tablestore.write.small_frames import collect_small
from tests.harness.spark_tables import rows

DDL: Final = "id bigint, v string, b binary, d decimal(9,2), t timestamp"


@pytest.fixture
def in_files(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """Return a function that returns a frame that reads a frame's rows from Parquet files, one for each partition."""

    def stored(frame: DataFrame, files: int = 1, name: str = "files") -> DataFrame:
        frame.repartitionByRange(files, "n").sortWithinPartitions("n").write.parquet(str(tmp_path / name))
        return spark.read.parquet(str(tmp_path / name)).drop("n")

    return stored


def numbered(spark: SparkSession, count: int) -> DataFrame:
    columns = ["id AS n", "id % 7 AS id", "CAST(id AS STRING) AS v", "CAST(CAST(id AS STRING) AS BINARY) AS b"]
    others = ["CAST(id / 4 AS DECIMAL(9,2)) AS d", "timestamp_seconds(id) AS t"]
    return spark.range(count).selectExpr(*columns, *others)


def test_rows_of_small_files_arrive_as_they_are_and_in_order(spark: SparkSession, in_files) -> None:
    frame = in_files(numbered(spark, 1000), files=5).where("id <> 3")
    frame.createOrReplaceTempView("small_files")
    for read in (lambda: frame, lambda: spark.table("small_files"), frame.cache):
        found = collect_small(read())
        assert found is not None
        assert found.equals(frame.toArrow())
        assert found.num_rows == 857
    frame.unpersist()


def test_the_last_row_of_a_key_wins_as_in_a_job(
    spark: SparkSession, in_files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are read in one order, whichever Spark takes first."""
    frame = in_files(numbered(spark, 1000), files=5)
    read = []
    for name, rows_max in (("here", 100_000), ("job", 999)):
        monkeypatch.setattr(small_frames, "_ROWS_MAX", rows_max)
        assert (collect_small(frame) is None) == (name == "job")
        table = TableStore.create(spark, tmp_path / name, DDL, primary_key=["id"], options={"bucket": 2})
        assert table.write(frame).rows == 7
        read.append(sorted(map(tuple, table.read().collect())))
    assert read[0] == read[1]
    assert len({int(row[1]) % 7 for row in read[0]}) == 7


def test_change_types_and_narrower_columns(spark: SparkSession, in_files, tmp_path: Path) -> None:
    table = TableStore.create(spark, tmp_path / "t", "id bigint, v string", primary_key=["id"])
    given = [
        (0, 1, "a", "insert"), (1, 2, "b", "insert"), (2, 1, "a", "update_preimage"), (3, 1, "c", "update_postimage"),
        (4, 2, None, "delete"),
    ]  # fmt: skip
    frame = in_files(spark.createDataFrame(given, "n int, ID int, v string, _change_type string"))
    assert collect_small(frame) is not None
    table.write(frame)
    assert rows(table.read()) == {1: "c"}


def test_an_append_of_small_files(spark: SparkSession, in_files, tmp_path: Path) -> None:
    table = TableStore.create(spark, tmp_path / "t", DDL)
    frame = in_files(numbered(spark, 100), files=3)
    assert table.write(frame).rows == 100
    assert sorted(table.read().collect()) == sorted(frame.collect())


def test_a_rejected_row_leaves_nothing(spark: SparkSession, in_files, tmp_path: Path) -> None:
    table = TableStore.create(spark, tmp_path / "t", "id bigint, v string", primary_key=["id"])
    frame = in_files(spark.createDataFrame([(0, 1, "a"), (1, None, "b")], "n int, id bigint, v string"))
    assert collect_small(frame) is not None
    with pytest.raises(InvalidInputError, match=r"primary key column 'id'.*NULL.*Nothing was written"):
        table.write(frame)
    assert not list((tmp_path / "t" / "_changes").glob("*.parquet"))


def test_other_frames_are_left_to_tasks(spark: SparkSession, in_files) -> None:
    """They might be computed twice: here and, if there are too many rows, once more."""
    small = in_files(numbered(spark, 100))
    shout = F.udf(lambda text: f"{text}!", "string")
    others = {
        "aggregate": small.groupBy("id").count(),
        "join": small.join(small.select("id"), "id"),
        "several rows of one": small.select(F.explode(F.sequence(F.lit(1), F.col("id"))).alias("id")),
        "as many tasks as are wanted": small.repartition(3),
        "Python": small.select(shout("v").alias("v")),
        "nested": small.select(F.array("id").alias("id")),
        "no files": spark.range(10),
        "RDD": spark.createDataFrame([(1,)], "id int").coalesce(1),
    }
    assert {name: collect_small(frame) for name, frame in others.items()} == dict.fromkeys(others)


def test_large_files_are_not_read(spark: SparkSession, in_files, monkeypatch: pytest.MonkeyPatch) -> None:
    small = in_files(numbered(spark, 100))
    monkeypatch.setattr(small_frames, "_FILE_BYTES_MAX", 1000)
    assert collect_small(small) is None
    assert collect_small(small.limit(1)) is None


def test_rows_that_are_larger_than_their_files_do_not_fill_the_memory(spark: SparkSession, in_files) -> None:
    """1.2 GB, which Spark would refuse to bring here (``spark.driver.maxResultSize``)."""
    small = in_files(numbered(spark, 2000))
    assert collect_small(small.withColumn("v", F.expr("repeat('x', 600000)"))) is None
    wide = small.withColumn("v", F.expr("IF(v = '77', repeat('x', 2001), v)"))
    assert collect_small(wide) is None
    assert collect_small(wide.where("v <> '77' AND length(v) < 10")) is not None
