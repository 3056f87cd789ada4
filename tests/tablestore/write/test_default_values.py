"""Options ``fields.<column>.default-value``: what is written in place of NULL, in every way to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore import TableStore, open_local
from tests.tablestore.write.test_rowkind_field import WAYS

COLUMNS = "k int, v int, s string"
ROWS = [(1, None, "a"), (2, 2, None), (3, None, None)]
FILLED = [(1, 7, "a"), (2, 2, "it's"), (3, 7, "it's")]
OPTIONS = {"fields.v.default-value": 7, "fields.s.default-value": "'it's'"}


def made(spark: SparkSession, folder: Path, key: str = "k", **options: str) -> TableStore:
    return TableStore.create(spark, folder / "t", COLUMNS, primary_key=[*key], options=OPTIONS | options)


def rows(table: TableStore) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, table.read().collect()), key=repr)


def overwritten_locally(table: TableStore, frame: DataFrame) -> None:
    with open_local(table.path) as opened:
        opened.overwrite(frame.toArrow())


ALL: dict[str, Callable[[TableStore, DataFrame], Any]] = WAYS | {
    "overwrite": lambda table, frame: table.overwrite(frame),
    "local overwrite": overwritten_locally,
}


@pytest.mark.parametrize("key", ["k", ""])
@pytest.mark.parametrize("way", ALL)
def test_null_becomes_the_default(spark: SparkSession, tmp_path: Path, way: str, key: str) -> None:
    table = made(spark, tmp_path, key)
    ALL[way](table, spark.createDataFrame(ROWS, COLUMNS))
    assert rows(table) == FILLED


@pytest.mark.parametrize("way", ALL)
def test_rows_may_lack_columns_with_defaults(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table = made(spark, tmp_path)
    ALL[way](table, spark.createDataFrame([(1, 1)], "k int, v int"))
    assert rows(table) == [(1, 1, "it's")]


@pytest.mark.parametrize("way", ["rows", "job"])
def test_deletes_have_none(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table = made(spark, tmp_path)
    table.write(spark.createDataFrame(ROWS, COLUMNS))
    kinds = [(1, None, "a", "delete"), (2, None, None, "insert")]
    ALL[way](table, spark.createDataFrame(kinds, f"{COLUMNS}, _change_type string"))
    changes = table.changes(1).select("_change_type", *"kvs").collect()
    assert sorted(map(tuple, changes)) == [("delete", 1, None, "a"), ("update_postimage", 2, 7, "it's")]


@pytest.mark.parametrize("way", ["delete", *WAYS])
def test_a_delete_has_the_default_of_its_sequence(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table = made(spark, tmp_path, **{"sequence.field": "v"})
    table.write(spark.createDataFrame(ROWS, COLUMNS))
    if way == "delete":
        table.delete(spark.createDataFrame([(1, None), (2, None)], "k int, v int"))
    else:
        kinds = [(1, None, "a", "delete"), (2, None, None, "delete")]
        WAYS[way](table, spark.createDataFrame(kinds, f"{COLUMNS}, _change_type string"))
    assert rows(table) == [FILLED[2]], "7 is at least the sequence of both rows"


@pytest.mark.parametrize("way", ["rows", "job"])
def test_what_was_added_is_taken_back(spark: SparkSession, tmp_path: Path, way: str) -> None:
    table = made(spark, tmp_path, **{"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"})
    kinds = [(1, None, "a", "insert"), (1, None, "a", "insert"), (1, None, "a", "delete"), (2, None, "b", "insert")]
    ALL[way](table, spark.createDataFrame(kinds, f"{COLUMNS}, _change_type string").coalesce(1))
    assert [row[:2] for row in rows(table)] == [(1, 7), (2, 7)]


def test_verbs_set_null(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path)
    table.write(spark.createDataFrame(ROWS, COLUMNS))
    table.update("k = 1", {"v": "NULL"})
    table.maintenance.rollback(1)
    assert rows(table) == FILLED
    table.update("k = 1", {"v": "NULL"})
    assert rows(table)[0] == (1, None, "a")


def test_a_default_may_change_later_and_keeps_its_column(spark: SparkSession, tmp_path: Path) -> None:
    table = TableStore.create(spark, tmp_path / "t", COLUMNS, primary_key=["k"])
    table.write([{"k": 1, "v": None, "s": None}])
    table.alter.set_options({"fields.v.default-value": "1"})
    table.write([{"k": 2, "v": None, "s": None}])
    table.alter.set_options({"fields.v.default-value": "2"})
    with pytest.raises(InvalidInputError, match=r"'fields\.v\.default-value' names it; reset that first"):
        table.alter.drop_column("v")
    with pytest.raises(InvalidInputError, match=r"there is no column 'zz'"):
        table.alter.set_options({"fields.zz.default-value": "1"})
    table.write([{"k": 3, "v": None, "s": None}])
    table.alter.reset_options("fields.v.default-value")
    table.write([{"k": 4, "v": None, "s": None}])
    assert [row[1] for row in rows(table)] == [None, 1, 2, None]
    table.alter.drop_column("v")


def test_a_not_null_column_takes_its_default(spark: SparkSession, tmp_path: Path) -> None:
    options = {"fields.v.default-value": "1"}
    table = TableStore.create(spark, tmp_path / "t", "k int, v int not null", primary_key=["k"], options=options)
    table.write(spark.createDataFrame([(1, None)], "k int, v int"))
    assert rows(table) == [(1, 1)]


def test_values_of_all_types(spark: SparkSession, tmp_path: Path) -> None:
    columns = "b boolean, y tinyint, n decimal(5,2), f float, d date, t timestamp_ntz, z timestamp, x binary"
    texts = ["true", "-3", "1.5", "0.5", "2024-01-31", "2024-01-31 10:00:00.5", "2024-01-31 10:00:00", "ab"]
    options = {f"fields.{name}.default-value": text for name, text in zip("bynfdtzx", texts, strict=True)}
    table = TableStore.create(spark, tmp_path / "t", f"k int, {columns}", primary_key=["k"], options=options)
    frame = spark.createDataFrame([(1, *[None] * 8)], f"k int, {columns}")
    table.write(frame)
    table.write(frame.withColumn("k", frame.k + 1).repartition(2))
    wanted = (True, -3, Decimal("1.50"), 0.5, date(2024, 1, 31), datetime(2024, 1, 31, 10, 0, 0, 500000))
    for row in table.read().selectExpr("*", "date_format(to_utc_timestamp(z, current_timezone()), 'HH:mm')").collect():
        assert (*row[1:7], bytes(row[8]), row[9]) == (*wanted, b"ab", "10:00")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"fields.v.default-value": "x"},
            r"option 'fields\.v\.default-value': expected a value of type int32, got 'x'",
        ),
        ({"fields.a.default-value": "[1]"}, r"expected a value of type list<.*>, got '\[1\]'"),
        ({"fields.k.default-value": "1"}, r"'fields\.k\.default-value': column 'k' is in the primary key"),
        ({"fields.w.default-value": "1"}, r"'fields\.w\.default-value': there is no column 'w'"),
        ({"fields.v.default-value": "1", "merge-engine": "partial-update"}, r"needs merge-engine='deduplicate' or"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        TableStore.create(spark, tmp_path / "t", "k int, v int, a array<int>", primary_key=["k"], options=options)
