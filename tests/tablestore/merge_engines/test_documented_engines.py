"""Merge engines as users meet them: the page's examples in SQL, every door of Spark, streams from table to table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore import TableStore
from tablestore.sql import Catalog
from tests.harness.spark_tables import AVAILABLE, CHANGE_TYPE, Follower, frame

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "merge_engines.md"
EXAMPLE = re.compile(r"^```sql\n(?P<code>.*?)^```\n+^```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_give_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    found = list(EXAMPLE.finditer(PAGE.read_text(encoding="utf-8")))
    assert len(found) == PAGE.read_text(encoding="utf-8").count("```sql")
    for example in found:
        read = catalog.sql(example["code"]).frame
        assert read is not None
        rows = [" ".join(str(value) for value in row) for row in sorted(read.collect(), key=repr)]
        assert rows == example["output"].splitlines(), example["code"]


def totals(spark: SparkSession, path: Path, **more: str) -> TableStore:
    options = {"merge-engine": "aggregation", "fields.amount.aggregate-function": "sum", "bucket": "2"}
    options |= {"fields.orders.aggregate-function": "count", **more}
    ddl = "customer string, amount bigint, orders bigint"
    return TableStore.create(spark, path, ddl, primary_key=["customer"], options=options)


def test_the_changelog_of_one_table_feeds_sums_of_another(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id bigint, customer string, amount bigint"
    orders = TableStore.create(
        spark, tmp_path / "orders", ddl, primary_key=["id"], options={"changelog-producer": "lookup", "bucket": "2"}
    )
    sums = totals(spark, tmp_path / "sums", **{"changelog-producer": "lookup"})
    follower = Follower(tmp_path / "follower", sums.read_stream)

    def feed() -> None:
        changes = orders.read_stream().selectExpr("customer", "amount", "1L AS orders", CHANGE_TYPE)
        sums.write_stream(changes, checkpoint=str(tmp_path / "c"), trigger=AVAILABLE).awaitTermination()

    orders.write(frame(spark, [(1, "ann", 10), (2, "bob", 5), (3, "ann", 7)], ddl))
    feed()
    assert {tuple(row) for row in sums.read().collect()} == {("ann", 17, 2), ("bob", 5, 1)}
    follower.rows()
    orders.write(frame(spark, [(1, "bob", 10), (3, "ann", 8)], ddl))
    orders.delete(frame(spark, [(2,)], "id bigint"))
    feed()
    assert {tuple(row) for row in sums.read().collect()} == {("ann", 8, 1), ("bob", 10, 1)}
    told = follower.rows()
    assert {tuple(row[:4]) for row in told if row[0] == "ann"} == {
        ("ann", 17, 2, "update_preimage"),
        ("ann", 8, 1, "update_postimage"),
    }
    with pytest.raises(InvalidInputError, match="keys alone have none"):
        sums.delete(frame(spark, [("ann",)], "customer string"))


def test_every_door_of_spark_merges(spark: SparkSession, tmp_path: Path) -> None:
    sums = totals(spark, tmp_path / "sums")
    source = spark.range(0, 40, numPartitions=4).selectExpr("concat('c', id % 3) customer", "id amount", "1L orders")
    sums.write(source)
    source.write.format("tablestore").mode("append").save(str(tmp_path / "sums"))
    expected = {("c0", 2 * sum(range(0, 40, 3)), 28), ("c1", 2 * sum(range(1, 40, 3)), 26)}
    expected.add(("c2", 2 * sum(range(2, 40, 3)), 26))
    assert {tuple(row) for row in sums.read().collect()} == expected
    sums.compact()
    assert {tuple(row) for row in sums.read().collect()} == expected
    with pytest.raises(InvalidInputError, match=r"out of range.*Nothing was written"):
        sums.write(source.selectExpr("customer", "9223372036854775807 amount", "orders"))
    assert {tuple(row) for row in sums.read().collect()} == expected


def test_a_delete_by_key_needs_the_sequence(spark: SparkSession, tmp_path: Path) -> None:
    table = TableStore.create(
        spark, tmp_path / "t", "id bigint, v string, at int", primary_key=["id"], options={"sequence.field": "at"}
    )
    table.write(frame(spark, [(1, "a", 5), (2, "a", 5)], "id bigint, v string, at int"))
    with pytest.raises(InvalidInputError, match=r"lacks \['at'\]"):
        table.delete(frame(spark, [(1,)], "id bigint"))
    table.delete(frame(spark, [(1, 6), (2, 4)], "id bigint, at int"))
    late: list[tuple[Any, ...]] = [(1, "late", 5)]
    assert table.write(frame(spark, late, "id bigint, v string, at int")) is None
    assert [tuple(row) for row in table.read().collect()] == [(2, "a", 5)]


def test_distinct_counts_are_written_and_read_by_functions_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("datasketches")
    options = {"merge-engine": "aggregation", "fields.visitors.aggregate-function": "hll_sketch"}
    ddl = "page string, visitors binary"
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["page"], options=options)
    for start in (0, 600):
        visits = spark.range(start, start + 1000).selectExpr("concat('p', id % 2) page", "id div 2 visitor")
        table.write(visits.groupBy("page").agg(F.hll_sketch_agg("visitor").alias("visitors")))
    found = table.read().select("page", F.hll_sketch_estimate("visitors")).collect()
    assert {page: pytest.approx(800, rel=0.03) for page in ("p0", "p1")} == dict(map(tuple, found))


def test_verbs_say_what_rows_are_to_be(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "customer string, amount bigint, orders bigint"
    sums = totals(spark, tmp_path / "sums", **{"fields.orders.aggregate-function": "max"})
    sums.write(frame(spark, [("ann", 10, 1), ("bob", 5, 1), ("eve", 1, 1)], ddl))
    sums.update("customer = 'ann'", {"amount": 3})
    sums.delete("customer = 'bob'")
    assert {tuple(row) for row in sums.read().collect()} == {("ann", 3, 1), ("eve", 1, 1)}
    ddl = "id bigint, v string, at int"
    late = TableStore.create(spark, tmp_path / "late", ddl, primary_key=["id"], options={"sequence.field": "at"})
    late.write(frame(spark, [(1, "a", 5), (2, "a", 5), (3, "a", 5)], ddl))
    late.delete("id = 1")
    late.update("id = 2", {"at": 2})
    late.compact()
    late.write(frame(spark, [(1, "late", 4), (2, "newer", 3), (3, "late", 4)], ddl))
    assert {tuple(row) for row in late.read().collect()} == {(2, "newer", 3), (3, "a", 5)}
