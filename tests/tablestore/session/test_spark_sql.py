"""Spark SQL's names for ``format("tablestore")``, and how errors reach the user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tablestore import TableStore
from tests.harness.spark_tables import make, rows


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableStore:
    table = make(spark, tmp_path / "t")
    table.write([{"id": 1, "v": "a"}])
    return table


def noop(stream: DataFrame) -> None:
    stream.writeStream.format("noop").start().processAllAvailable()


@pytest.mark.parametrize("place", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_create_table_says_what_to_do(spark: SparkSession, table: TableStore, place: str) -> None:
    """Spark could not read the table again."""
    with pytest.raises(PySparkException, match=r"Use CREATE TEMPORARY VIEW name USING tablestore OPTIONS \(path '.*/t"):
        spark.sql(f"CREATE TABLE named USING tablestore {place.format(table.path)}")
    assert not spark.catalog.tableExists("named")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW named USING tablestore OPTIONS (path '{table.path}')")
    spark.sql("INSERT INTO named VALUES (2, 'b')")
    assert rows(spark.table("named")) == {1: "a", 2: "b"}
    spark.catalog.dropTempView("named")


def test_errors_are_one_message(spark: SparkSession, table: TableStore, tmp_path: Path) -> None:
    """At each point where Spark calls the data source, on the driver and in a task."""

    def load(path: str, **options: object) -> DataFrame:
        return spark.read.format("tablestore").load(path, **options)

    append = spark.createDataFrame([(None, "a")], "id bigint, v string").write.format("tablestore").mode("append")
    stream = spark.readStream.format("tablestore").option("readChangeFeed", "true")
    failing = {
        "there is no table of the store": lambda: load(str(tmp_path / "none")),
        "unknown option 'pth'": lambda: load(table.path, pth=1),
        "there is no snapshot 99": lambda: load(table.path, versionAsOf=99).collect(),
        "A file of the snapshot is missing": lambda: load(table.path).collect(),
        "must not contain NULL": lambda: append.save(table.path),
        "missing": lambda: spark.range(1).write.format("tablestore").mode("append").save(table.path),
        "does not overwrite": lambda: append.mode("overwrite").save(table.path),
        "can be streamed from snapshot 0 to 2": lambda: noop(stream.load(table.path, snapshot=98)),
    }  # fmt: skip
    for file in Path(table.path).rglob("*.parquet"):
        file.rename(file.with_suffix(".gone"))
    for message, call in failing.items():
        with pytest.raises(PySparkException, match=message) as caught:
            call()
        assert re.search(r":\ssnapshot\.errors\.\w+: ", str(caught.value)), message
        assert "Traceback" not in str(caught.value), message


def test_notebooks_show_what_the_table_is(table: TableStore) -> None:
    shown = table._repr_html_()
    for text in (table.path, "<td>id</td><td>bigint NOT NULL</td>", "1: upsert of 1 rows", "primary key</th><td>id<"):
        assert text in shown
    assert repr(table) == f"TableStore({table.path!r}, primary_key=['id'])"
    table.drop()
    assert "there is no table" in table._repr_html_()
