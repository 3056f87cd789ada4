"""Spark SQL's names for ``format("tablestore")``, and how errors reach the user."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
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


def test_create_table_says_what_to_do(spark: SparkSession, table: TableStore, tmp_path: Path) -> None:
    """Spark could not read the table again, so each way to create one fails before it leaves or writes anything."""
    path, new = table.path, tmp_path / "new"
    frame = spark.createDataFrame([(2, "b")], "id bigint, v string")
    writer, to = frame.write.format("tablestore"), frame.writeTo("named").using("tablestore")
    statements = [
        f"CREATE TABLE named USING tablestore OPTIONS (path '{path}')",
        f"CREATE TABLE named USING tablestore LOCATION '{path}'",
        f"CREATE TABLE named (id bigint, v string) USING tablestore LOCATION '{new}'",
        f"CREATE TABLE named (id bigint, v string) USING TableStore OPTIONS (path '{path}')",
        "CREATE TABLE IF NOT EXISTS named (id bigint, v string) USING tablestore",
        f"CREATE TABLE named USING tablestore LOCATION '{path}' AS SELECT 1L AS id, 'x' AS v",
        "CREATE TABLE named USING tablestore AS SELECT 1L AS id, 'x' AS v",
        "CREATE OR REPLACE TABLE named USING tablestore AS SELECT 1L AS id, 'x' AS v",
        "CREATE OR REPLACE TABLE named (id bigint) USING tablestore",
        "CREATE TABLE named (id bigint) USING `kafka-table`",
    ]
    calls: list[Callable[[], object]] = [
        *(partial(spark.sql, text) for text in statements),
        *(partial(writer.mode(mode).saveAsTable, "named") for mode in ("error", "append", "overwrite", "ignore")),
        partial(writer.mode("error").option("path", path).saveAsTable, "named"),
        to.create,
        to.createOrReplace,
        to.option("path", path).create,
        partial(spark.catalog.createTable, "named", source="tablestore", path=path),
        partial(spark.catalog.createTable, "named", source="tablestore", schema=frame.schema),
    ]
    for call in calls:
        with pytest.raises(AnalysisException, match=r"Use CREATE TEMPORARY VIEW name USING .* OPTIONS") as caught:
            call()
        assert "Traceback" not in str(caught.value)
        assert not spark.catalog.tableExists("named"), call
    with pytest.raises(
        AnalysisException, match=rf"USING tablestore OPTIONS \(path '[^']*{path}'\).* TableStore.create"
    ):
        spark.sql(statements[3])
    assert rows(table.read()) == {1: "a"}
    assert not new.exists()
    # Other sources are not affected.
    spark.sql("CREATE TABLE named (id bigint) USING delta")
    spark.sql("DROP TABLE named")
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
        # That of a query is the message alone.
        is_query = isinstance(caught.value, StreamingQueryException)
        assert is_query != bool(re.search(r":\ssnapshot\.errors\.\w+: ", str(caught.value))), message
        assert "Traceback" not in str(caught.value), message


def test_notebooks_show_what_the_table_is(table: TableStore) -> None:
    shown = table._repr_html_()
    for text in (table.path, "<td>id</td><td>bigint NOT NULL</td>", "1: upsert of 1 row ", "primary key</th><td>id<"):
        assert text in shown
    assert repr(table) == f"TableStore({table.path!r}, primary_key=['id'])"
    table.drop()
    assert "there is no table" in table._repr_html_()
