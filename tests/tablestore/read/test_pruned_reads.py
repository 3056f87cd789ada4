"""Tasks that merge rows return only the columns that a query uses (``spark/PrunedReads.scala``)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tablestore import TableStore
from tablestore.read import anti_join_scan
from tests.harness.spark_tables import frame

COLUMNS = "`k.1` string, n bigint, price double, s struct<a: int, b: string>, `two words` string"
EXCLUDED = "spark.sql.optimizer.excludedRules"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableStore:
    options = {"bucket": 2, "compaction.auto": "false"}
    table = TableStore.create(spark, tmp_path / "t", COLUMNS, primary_key="k.1", options=options)
    table.write(frame(spark, [(f"k{n}", n, n / 4, (n, f"b{n}"), f"w{n % 3}") for n in range(40)], COLUMNS))
    table.compact()
    changed = [("k3", 300, None, None, "w0"), ("new", 41, 1.0, (1, "x"), None)]
    table.write(frame(spark, changed, COLUMNS))
    table.delete("n = 7")
    table.read().createOrReplaceTempView("rows")
    return table


@contextmanager
def unpruned(spark: SparkSession) -> Iterator[None]:
    """As in a session that ``session()`` has not made."""
    spark.conf.set(EXCLUDED, "tablestore.PrunedReads")
    try:
        yield
    finally:
        spark.conf.unset(EXCLUDED)


def read(rows: DataFrame) -> list[int]:
    """Return how many columns each read of the plan returns."""
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return [
        len(found.split(",")) for found in re.findall(r"MapInArrow tablestore_rows\([^)]*\)#\d+, \[([^]]*)\]", plan)
    ]


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT sum(price) FROM rows", [1]),
        ("SELECT count(*) FROM rows", [1]),
        ("SELECT count(*) FROM rows WHERE s.a > 5", [1]),
        ("SELECT n FROM rows WHERE price = 1.0 ORDER BY `k.1`", [3]),
        ("SELECT `two words`, count(*) FROM rows GROUP BY ALL HAVING max(n) > 38", [2]),
        ("SELECT s.b, `k.1` FROM rows", [2]),
        ("SELECT a.n, b.`two words` FROM rows a JOIN rows b ON a.n = b.n + 1 WHERE a.price > 5", [2, 2]),
        ("SELECT `k.1` FROM rows UNION SELECT `two words` FROM rows", [1, 1]),
        ("SELECT n FROM rows WHERE n IN (SELECT max(n) FROM rows)", [1, 1]),
        ("SELECT row_number() OVER (ORDER BY n) AS number, n FROM rows", [1]),
        ("SELECT 1 FROM rows", [1]),
        ("SELECT * FROM rows WHERE n < 3", [5]),
    ],
)
def test_a_query_reads_the_columns_that_it_uses(
    spark: SparkSession, table: TableStore, query: str, columns: list[int]
) -> None:
    rows = spark.sql(query)
    assert read(rows) == columns
    found = sorted(map(repr, rows.collect()))
    assert found
    with unpruned(spark):
        again = spark.sql(query)
        assert read(again) == [5] * len(columns)
        assert sorted(map(repr, again.collect())) == found


FILTERED = "id string, b tinyint, s smallint, i int, n bigint, day date, x double"


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("id = 'k3'", 1),
        ("id >= 'k\\'ä' AND id < 'z'", 2),
        ("b = 3 AND s > -5 AND i <= 3 AND n >= 2", 4),
        ("b < 3S", 1),
        ("day = DATE '2024-02-29'", 1),
        ("day > DATE '1969-12-31' AND day < DATE '+10000-01-01'", 2),
        ("n > 1 AND (i = 1 OR x > 1)", 1),
        ("n > 1 AND rand() < 2 AND x = 1.0D", 1),
        ("id = concat('k', char(30))", 1),
        ("id = 'k\\'ä\"\\\\'", 1),
        ("id < cast(X'FF' AS string)", 0),
        ("id = cast(NULL AS string)", 0),
        ("3 < n AND 2 = b AND 5 >= i", 3),
        ("n <=> 3", 0),
        ("id IN ('k3', 'k\\'ä', 'none') AND b IN (1, 2)", 2),
        (f"n IN ({', '.join(map(str, range(3, 20)))})", 1),
        (f"n IN ({', '.join(map(str, range(1001)))})", 0),
        ("n IN (1, NULL)", 0),
        ("n IN (1, i)", 0),
        ("n NOT IN (1, 2)", 0),
        ("day IN (DATE '2024-02-29', DATE '+10000-01-01')", 1),
        ("NOT (n > 1)", 1),
    ],
)
def test_a_filter_that_compares_a_column_with_a_constant_gets_into_the_files(
    spark: SparkSession, tmp_path: Path, condition: str, count: int
) -> None:
    day = dt.date(2024, 2, 29)
    given = [(f"k{n}", n - 3, -n, n % 4, n, day - dt.timedelta(3000 * n), n / 2) for n in range(9)]
    given += [("k'ä", None, None, None, None, None, None), ("k\x1e", 3, 3, 3, 3, day, float("nan"))]
    options = {"bucket": 1, "compaction.auto": "false"}
    table = TableStore.create(spark, tmp_path / "t", FILTERED, primary_key="id", options=options)
    table.write(frame(spark, [(row[0], 0, 0, 0, 0, day, 0.0) for row in given], FILTERED))
    table.compact()
    table.write(frame(spark, given[::2], FILTERED))
    table.write(frame(spark, given[1::2], FILTERED))
    rows = table.read().where(condition).select("x", "id")
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    pushed = re.findall(r'\["c\d","(?:[<>=]|IN)', plan)
    assert len(pushed) == count
    found = sorted(map(repr, rows.collect()))
    with unpruned(spark):
        assert sorted(map(repr, table.read().where(condition).select("x", "id").collect())) == found


def test_rows_that_are_cached_are_whole(spark: SparkSession, table: TableStore) -> None:
    rows = table.read().cache()
    try:
        assert rows.count() == 40
        assert rows.where("n = 300").select("two words").collect() == [("w0",)]
        assert len(rows.columns) == len(rows.first() or ()) == 5
    finally:
        rows.unpersist()


def test_only_sessions_that_prune_no_columns_leave_the_base_to_spark(
    spark: SparkSession, table: TableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, Spark's reader, which prunes them, and a join with the changed keys cost less."""
    monkeypatch.setattr(anti_join_scan, "_BASE_BYTES_MIN", 0)
    assert read(table.read()) == [5]
    monkeypatch.setattr("tablestore.read.batch.prunes_reads", lambda _: False)
    assert "LeftAnti" in table.read()._jdf.queryExecution().optimizedPlan().toString()
