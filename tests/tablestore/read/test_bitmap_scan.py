"""Reads of a changed table by one scan of Spark's own: they give what tasks that merge give, and read less."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import DataLostError
from tablestore import TableStore
from tablestore.read import bitmap_scan
from tests.harness.spark_tables import Follower, changes, frame, make, rows
from tests.tablestore.read.test_batch_read import TYPES, VALUES, comparable

NO_BASE = 1 << 60


@pytest.fixture(autouse=True)
def every_base_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmap_scan, "_BASE_BYTES_MIN", 0)


def plan(read: DataFrame) -> str:
    return str(read._jdf.queryExecution().executedPlan().toString())


def is_scan(read: DataFrame) -> bool:
    """Tell whether Spark reads the files alone."""
    return "MapInArrow" not in plan(read) and "_kind" in plan(read)


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> Callable[[TableStore], DataFrame]:
    """Read a table by tasks that merge."""

    def read(table: TableStore) -> DataFrame:
        with monkeypatch.context() as patch:
            patch.setattr(bitmap_scan, "_BASE_BYTES_MIN", NO_BASE)
            found = table.read()
        assert "MapInArrow" in plan(found)
        return found

    return read


@pytest.mark.parametrize(("kind", "producer"), [("tinyint", "none"), ("bigint", "lookup"), ("date", "none")])
def test_it_agrees_with_the_merge_after_random_changes(
    spark: SparkSession, tmp_path: Path, merged: Callable[[TableStore], DataFrame], kind: str, producer: str
) -> None:
    ddl, dice = f"k {kind}, n int", random.Random(f"{kind} {producer}")
    options = {"bucket": 3, "compaction.auto": "false", "changelog-producer": producer}
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["k"], options=options)

    def key() -> Any:
        number = dice.randrange(-60, 60)
        return dt.date(1970, 1, 1) + dt.timedelta(number) if kind == "date" else number

    table.write(frame(spark, [(key(), n) for n in range(100)], ddl))
    table.compact()
    model = {row.k: row.n for row in table.read().collect()}
    for step in range(4):
        given = {key(): (n, dice.choice(["insert", "delete", "update_postimage"])) for n in range(30)}
        table.write(frame(spark, [(k, *value) for k, value in given.items()], f"{ddl}, _change_type string"))
        for k, (n, change) in given.items():
            model.pop(k, None) if change == "delete" else model.update({k: n})
        read = table.read()
        assert is_scan(read)
        # The first changes replace no others, so their kinds say which are current.
        assert ("row_index" in plan(read)) == (step > 0)
        found = [tuple(row) for row in read.collect()]
        assert len(found) == len(model)
        assert dict(found) == model
        assert sorted(found) == sorted(tuple(row) for row in merged(table).collect())
        assert read.where("n > 12").count() == sum(n > 12 for n in model.values())
    before = table.snapshots()[0].id
    table.compact()
    table.write(frame(spark, [(key(), 1_000)], ddl))
    assert dict(tuple(row) for row in table.read(snapshot=before).collect()) == model


def test_every_type_and_any_name(
    spark: SparkSession, tmp_path: Path, merged: Callable[[TableStore], DataFrame]
) -> None:
    ddl = f"{TYPES.replace('id bigint', '`i.d``` bigint')}, _metadata string, `__________` int"
    given = spark.createDataFrame([(*value, "mine", 3) for value in VALUES], ddl)
    table = TableStore.create(spark, tmp_path / "it's 100% ü", ddl, primary_key=["i.d`"], options={"bucket": 1})
    table.write(given.where("`i.d``` < 3"))
    table.compact()
    table.write(given.where("`i.d``` > 1"))
    table.delete(spark.createDataFrame([(4,)], "`i.d``` bigint"))
    read = table.read()
    assert is_scan(read)
    assert read.columns == given.columns
    assert [f.dataType for f in read.schema.fields] == [f.dataType for f in merged(table).schema.fields]

    def found(of: DataFrame) -> list[Any]:
        return [comparable(tuple(row)) for row in of.orderBy("`i.d```").collect()]

    assert found(read) == found(given.where("`i.d``` < 4")) == found(merged(table))
    assert table.read(columns=["s", "i.d`"]).columns == ["s", "i.d`"]


def test_spark_reads_the_columns_that_are_used_and_a_frame_outlives_a_compaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    ddl = "id int, a int, b string"
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["id"], options={"compaction.auto": "false"})
    table.write(frame(spark, [(i, i, "b") for i in range(50)], ddl))
    table.compact()
    table.write(frame(spark, [(i, -i, "c") for i in range(40, 60)], ddl))
    read = table.read()
    total = read.agg(F.sum("a"))
    assert "ReadSchema: struct<id:int,a:int,_kind:tinyint>" in plan(total)
    assert "PushedFilters: [IsNotNull(a), GreaterThan(a,7)]" in plan(read.where("a > 7"))
    expected = sum(range(40)) - sum(range(40, 60))
    assert total.first()[0] == expected
    table.compact()
    table.write(frame(spark, [(0, 1_000_000, "d")], ddl))
    table.compact()
    assert read.agg(F.sum("a")).first()[0] == expected
    twice = read.alias("x").join(read.alias("y"), "id").where("x.a = y.a")
    assert twice.count() == 60


def test_a_stream_may_be_joined_with_it(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", compaction__auto="false")
    table.write(frame(spark, [(k, "a") for k in range(10)]))
    table.compact()
    table.write(changes(spark, [(1, "b", "insert"), (2, None, "delete")]))
    events = make(spark, tmp_path / "events", key=False)
    events.write(frame(spark, [(k, "event") for k in range(4)]))
    still = table.read().withColumnRenamed("v", "found")
    assert is_scan(still)
    joined = events.read_stream().join(still, "id").select("id", "found")
    assert sorted(row for row in Follower(tmp_path / "c", lambda: joined).rows()) == [(0, "a"), (1, "b"), (3, "a")]


def test_what_does_not_fit_is_read_as_ever(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(name: str, ddl: str, key: list[str], **more: Any) -> TableStore:
        table = TableStore.create(spark, tmp_path / name, ddl, primary_key=key, options={"bucket": 1}, **more)
        table.write(frame(spark, [(1, 2), (3, 4)], ddl))
        table.compact()
        table.write(frame(spark, [(3, 5)], ddl))
        return table

    tables = [
        changed("two keys", "a int, b int", ["a", "b"]),
        changed("partitions", "a int, b int", ["a"], partition_by=["b"]),
        changed("a[b]", "a int, b int", ["a"]),
    ]
    assert not any(is_scan(table.read()) for table in tables)
    assert rows(tables[1].read()) == rows(tables[2].read()) == {1: 2, 3: 5}
    altered = changed("altered", "a int, b int", ["a"])
    assert is_scan(altered.read())
    altered.alter.add_column("c", "int")
    assert not is_scan(altered.read())
    far = changed("far", "a bigint, b int", ["a"])
    far.write(frame(spark, [(1 << 60, 6), (-(1 << 60), 7)], "a bigint, b int"))
    assert not is_scan(far.read())
    assert rows(far.read()) == {1: 2, 3: 5, 1 << 60: 6, -(1 << 60): 7}
    many = changed("many", "a int, b int", ["a"])
    monkeypatch.setattr(bitmap_scan, "_FILES_MAX", 2)
    many.write(frame(spark, [(3, 6)], "a int, b int"))
    assert is_scan(many.read())
    many.write(frame(spark, [(3, 7)], "a int, b int"))
    assert not is_scan(many.read())
    monkeypatch.setattr(bitmap_scan, "_ROWS_MAX", 0)
    assert not is_scan(changed("large", "a int, b int", ["a"]).read())


def test_a_change_file_that_is_gone_is_named(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", compaction__auto="false")
    table.write(frame(spark, [(1, "a")]))
    table.compact()
    table.write(changes(spark, [(1, "b", "insert")]))
    file = max((tmp_path / "t" / "_changes").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    file.unlink()
    with pytest.raises(DataLostError, match=file.name):
        table.read()
