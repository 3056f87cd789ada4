"""Partition columns outside the key: a merged row stays in the partition where it was first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tablestore import TableStore

COLUMNS = "p int, k int, v int, w int"
AGGREGATION = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}


def made(spark: SparkSession, folder: Path, options: dict[str, str]) -> TableStore:
    return TableStore.create(spark, folder / "t", COLUMNS, primary_key=["k"], partition_by=["p"], options=options)


def write(spark: SparkSession, table: TableStore, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    table.write(spark.createDataFrame(list(rows), COLUMNS).coalesce(1))
    return sorted(map(tuple, table.read().collect()))


@pytest.mark.parametrize(
    ("options", "moved", "late"),
    [
        ({"merge-engine": "partial-update"}, (1, 3, 3, 5), (1, 3, 9, 5)),
        ({"merge-engine": "partial-update", "sequence.field": "w"}, (1, 3, 3, 5), (1, 3, 3, 5)),
        ({"merge-engine": "partial-update", "fields.w.sequence-group": "v"}, (1, 3, None, 5), (1, 3, None, 5)),
        ({"merge-engine": "first-row"}, (1, 3, 3, 3), (1, 3, 3, 3)),
        (AGGREGATION, (1, 3, 3, 5), (1, 3, 12, 4)),
        (AGGREGATION | {"sequence.field": "w"}, (1, 3, 3, 5), (1, 3, 12, 5)),
        (AGGREGATION | {"fields.p.aggregate-function": "max"}, (3, 3, 3, 5), (3, 3, 12, 4)),
        ({}, (3, 3, None, 5), (2, 3, 9, 4)),
    ],
)
def test_a_merged_row_stays_where_it_was_first(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], moved: tuple[Any, ...], late: tuple[Any, ...]
) -> None:
    table = made(spark, tmp_path, options)
    assert write(spark, table, (1, 3, 3, 3), (2, 4, 4, 4))[0] == (1, 3, 3, 3)
    assert write(spark, table, (3, 3, None, 5)) == sorted([moved, (2, 4, 4, 4)])
    table.compact()
    found = write(spark, table, (2, 3, 9, 4))
    expected = late if options.get("merge-engine") != "partial-update" or len(options) > 1 else (*late[:3], 4)
    assert found == sorted([expected, (2, 4, 4, 4)])


def test_rows_of_one_write_and_rows_that_are_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path, AGGREGATION | {"fields.w.ignore-retract": "true"})
    assert write(spark, table, (1, 3, 1, 1), (2, 3, 2, 3), (1, 3, 3, 3), (2, 3, 4, 4)) == [(1, 3, 10, 4)]
    changes = spark.createDataFrame([(2, 3, 4, 4, "delete")], f"{COLUMNS}, _change_type string")
    table.write(changes)
    assert sorted(map(tuple, table.read().collect())) == [(1, 3, 6, 4)]
    assert [row.p for row in table.read().where("p = 1").collect()] == [1]
