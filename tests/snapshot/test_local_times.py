"""Timestamps without a zone, wherever they are in a column: the table lists the feature that they need."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from snapshot.errors import AlreadyExistsError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore import create_local, open_local

NOON = dt.datetime(2026, 1, 1, 12)
COLUMNS: dict[str, Any] = {
    "timestamp_ntz": NOON,
    "array<timestamp_ntz>": [NOON],
    "map<string, timestamp_ntz>": [("a", NOON)],
    "map<timestamp_ntz, int>": [(NOON, 1)],
    "array<map<int, array<timestamp_ntz>>>": [[(1, [NOON])]],
    "struct<a: map<int, struct<b: timestamp_ntz>>>": {"a": [(1, {"b": NOON})]},
}


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("data_type", COLUMNS)
def test_a_table_holds_them(tmp_path: Path, data_type: str, key: bool) -> None:
    path, row = tmp_path / "t", {"id": 1, "x": COLUMNS[data_type]}
    with create_local(path, f"id bigint not null, x {data_type}", primary_key=["id"] if key else []) as table:
        table.write([row])
        table.compact()
    with open_local(path) as table:
        assert table.to_arrow().to_pylist() == [row]
        table.delete("id = 1")
        assert table.count() == 0
    assert DeltaTable(path).protocol().reader_features == ["timestampNtz"]


def test_spark_reads_them_in_a_map(spark: SparkSession, tmp_path: Path) -> None:
    with create_local(tmp_path / "t", "id bigint, x map<string, timestamp_ntz>") as table:
        table.write([{"id": 1, "x": [("a", NOON)]}])
    assert spark.read.format("delta").load(str(tmp_path / "t")).collect()[0].x == {"a": NOON}


def test_of_two_that_create_such_a_table_one_succeeds(tmp_path: Path) -> None:
    with create_local(tmp_path / "t", "id bigint, x map<string, timestamp_ntz>") as table:
        spec = table._table.spec
    with pytest.raises(AlreadyExistsError, match="exists already"):
        TableFiles.create(Storage.at(tmp_path / "t"), spec)
