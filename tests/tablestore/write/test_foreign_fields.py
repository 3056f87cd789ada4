"""Fields that other Delta writers have added within columns: logs, streams, tables with a key, and schema changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType, StructType
from pyspark.sql import SparkSession

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import CorruptedError, InvalidInputError
from tablestore import LocalTable, TableStore, create_local, open_local
from tablestore.context import TableContext
from tablestore.read import anti_join_scan, base_table_columns, bitmap_scan
from tests.harness.local_writes import drain_raw
from tests.harness.log_audit import verify
from tests.harness.spark_tables import Follower, log_options

COLUMNS = "id bigint, s struct<a: int>, l array<struct<a: int>>"
_PART = pa.struct([("a", pa.int32()), ("b", pa.string())])
THEIRS = pa.schema([("id", pa.int64()), ("s", _PART), ("l", pa.list_(_PART))])


def ours(number: int) -> dict[str, Any]:
    return {"id": number, "s": {"a": number}, "l": [{"a": number}]}


def theirs(number: int) -> dict[str, Any]:
    inner = {"a": number, "b": "theirs"}
    return {"id": number, "s": inner, "l": [inner]}


def append(path: Path, *numbers: int) -> None:
    rows = pa.Table.from_pylist([theirs(number) for number in numbers], THEIRS)
    write_deltalake(path, rows, mode="append", schema_mode="merge")


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def held(table: LocalTable) -> list[dict[str, Any]]:
    return by_id(table.to_arrow().to_pylist())


def by_delta_rs(path: Path) -> list[dict[str, Any]]:
    return by_id(DeltaTable(path).to_pyarrow_table().to_pylist())


def add_fields(path: Path) -> None:
    part = StructType([Field("b", PrimitiveType("string"))])
    fields = [Field("s", part), Field("l", ArrayType(part, contains_null=True))]
    DeltaTable(path).alter.add_columns(fields)


def add_fields_by_spark(spark: SparkSession, path: Path) -> None:
    for column in ("s.b", "l.element.b"):
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN {column} string")


@pytest.mark.parametrize("log_format", ["json", "arrow"])
def test_streams_and_the_log_do_not_have_them(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], log_format: str
) -> None:
    path, name = tmp_path / "t", topic()
    options = log_options(kafka.bootstrap_servers, name, log__format=log_format)
    with create_local(path, COLUMNS, log_system="kafka", options=options) as made:
        made.write([ours(1)])
    table = TableStore.open(spark, path)
    follower = Follower(tmp_path / "checkpoint", lambda: table.read_stream(scan_mode="earliest"))
    assert [tuple(row[0] for row in batch) for batch in follower.follow()] == [(1,)]
    append(path, 2, 3)
    table.write([ours(4)])
    expected = [ours(number) for number in (1, 2, 3, 4)]
    assert by_id([row.asDict(recursive=True) for row in table.read().collect()]) == expected
    rows = [row for batch in follower.follow() for row in batch]
    columns = table.read_stream().columns
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    assert (
        by_id([{"id": r["id"], "s": r["s"].asDict(), "l": [e.asDict() for e in r["l"]]} for r in found]) == expected[1:]
    )
    feed = table.changes(0).select("id", "s", "l").collect()
    assert by_id([row.asDict(recursive=True) for row in feed]) == expected
    loaded = spark.read.format("tablestore").load(str(path))
    assert by_id([row.asDict(recursive=True) for row in loaded.collect()]) == expected
    records = [record.value() for part in drain_raw(kafka.bootstrap_servers, name, 2) for record in part]
    assert not any(b"theirs" in value for value in records)
    if log_format == "json":
        values = [{key: value for key, value in json.loads(each).items() if key in expected[0]} for each in records]
        assert by_id(values) == expected
    else:
        table.update("id = 2", {"s": "named_struct('a', 20)"})
        table.delete("id = 3")
        assert [row["s"] for row in by_delta_rs(path)] == [
            {"a": 1, "b": None}, {"a": 20, "b": "theirs"}, {"a": 4, "b": None}
        ]  # fmt: skip
    assert verify(TableContext.open(str(path))).ok


@pytest.mark.parametrize("way", ["local", "merged", "overlaid", "scanned"])
@pytest.mark.parametrize("place", [".", "_changes"])
def test_tables_with_a_key_do_not_have_them(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, way: str
) -> None:
    path = tmp_path / "t"
    with create_local(path, COLUMNS, primary_key="id", options={"bucket": 1, "compaction.auto": False}) as made:
        made.write([ours(1), ours(2)])
        made.compact()
        made.write([ours(2), ours(3)])
    if way == "local":
        add_fields(path / place)
        table: LocalTable | TableStore = open_local(path)
    else:
        spark: SparkSession = request.getfixturevalue("spark")
        add_fields_by_spark(spark, path / place)
        table = TableStore.open(spark, path)
        if way == "overlaid":
            monkeypatch.setattr(base_table_columns, "_BYTES_MIN", 0)
            monkeypatch.setattr(anti_join_scan, "is_worth_it", lambda *_args, **_more: True)
        if way == "scanned":
            monkeypatch.setattr(bitmap_scan, "_BASE_BYTES_MIN", 0)

    def check(*numbers: int) -> None:
        expected = [ours(number) for number in numbers]
        assert held(open_local(path)) == expected
        if isinstance(table, TableStore):
            assert by_id([row.asDict(recursive=True) for row in table.read().collect()]) == expected
        assert {row["id"] for batch in open_local(path).changes(0) for row in batch.to_pylist()} >= set(numbers)

    check(1, 2, 3)
    table.write([ours(4)])
    table.delete("s.a = 1")
    check(2, 3, 4)
    table.compact()
    check(2, 3, 4)
    assert [{"id": row["id"], "a": row["s"]["a"]} for row in by_delta_rs(path)] == [
        {"id": number, "a": number} for number in (2, 3, 4)
    ]
    table.alter.add_column("s.b", "int")
    open_local(path).write([{"id": 5, "s": {"a": 5, "b": 6}, "l": None}])
    table.compact()
    own = [row["s"] for row in held(open_local(path))]
    assert own == [{"a": number, "b": 6 if number == 5 else None} for number in (2, 3, 4, 5)]
    assert verify(TableContext.open(str(path))).ok


def test_a_field_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    """As with columns: it has none of their values, and for other tools both are there."""
    path = tmp_path / "t"
    with create_local(path, COLUMNS) as table:
        table.write([ours(1)])
        append(path, 2)
        table.alter.add_column("s.b", "int")
        table.alter.add_column("l.element.other", "int")
        table.write([{"id": 3, "s": {"a": 3, "b": 4}, "l": [{"a": 3, "other": 5}]}])
        expected = [
            {"id": 1, "s": {"a": 1, "b": None}, "l": [{"a": 1, "other": None}]},
            {"id": 2, "s": {"a": 2, "b": None}, "l": [{"a": 2, "other": None}]},
            {"id": 3, "s": {"a": 3, "b": 4}, "l": [{"a": 3, "other": 5}]},
        ]
        assert held(table) == expected
        seen = [
            {"id": 1, "s": {"a": 1, "b": None, "b_2": None}, "l": [{"a": 1, "b": None, "other": None}]},
            {"id": 2, "s": {"a": 2, "b": "theirs", "b_2": None}, "l": [{"a": 2, "b": "theirs", "other": None}]},
            {"id": 3, "s": {"a": 3, "b": None, "b_2": 4}, "l": [{"a": 3, "b": None, "other": 5}]},
        ]
        for act in (lambda: None, table.compact, lambda: table.update("id = 2", {"id": "id"})):
            act()
            assert by_delta_rs(path) == seen
            assert held(table) == expected
        table.alter.rename_column("s.b", "mine")
        table.update("id = 2", {"s": "{'a': 8, 'mine': 9}"})
        assert held(table)[1]["s"] == {"a": 8, "mine": 9}
        assert by_delta_rs(path)[1]["s"] == {"a": 8, "b": "theirs", "b_2": 9}
        table.alter.drop_column("s.mine")
        table.alter.drop_column("l")
        assert by_delta_rs(path) == [{"id": row["id"], "s": {"a": row["s"]["a"], "b": row["s"]["b"]}} for row in (
            seen[0], {"id": 2, "s": {"a": 8, "b": "theirs"}}, seen[2]
        )]  # fmt: skip


def replaced(path: Path, inner: pa.DataType) -> None:
    """Replace the table by one with another struct."""
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.nulls(1, inner), "l": pa.nulls(1, pa.list_(_PART))})
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(
    "inner",
    [
        pa.struct([("a", pa.int64())]),
        pa.struct([("b", pa.int32())]),
        pa.struct([("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)]),
        pa.struct([("A", pa.int32()), ("b", pa.int32())]),
        pa.int32(),
    ],
    ids=["type", "gone", "NOT NULL", "case", "no struct"],
)
def test_fields_with_another_type_are_refused_with_the_table(tmp_path: Path, inner: pa.DataType) -> None:
    path = tmp_path / "t"
    with create_local(path, COLUMNS) as table:
        table.write([ours(1)])
    replaced(path, inner)
    for use in (lambda t: t.to_arrow(), lambda t: t.write([ours(2)]), lambda t: t.compact()):
        with pytest.raises(CorruptedError, match=r"columns \['s'\] are missing or have another type"):
            use(open_local(path))


def test_keys_of_maps_are_refused_with_the_table(tmp_path: Path) -> None:
    """Two keys that differ in the field alone would be one."""
    path = tmp_path / "t"
    with create_local(path, "id bigint, m map<struct<a: int>, int>") as table:
        table.write([{"id": 1, "m": [({"a": 1}, 1)]}])
    rows = pa.table({"id": pa.array([2], pa.int64()), "m": pa.nulls(1, pa.map_(_PART, pa.int32()))})
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(CorruptedError, match=r"columns \['m'\] are missing or have another type"):
        open_local(path).to_arrow()


def test_a_field_whose_type_is_unknown_has_no_values(tmp_path: Path) -> None:
    """Within an array it is in files, which are not rewritten."""
    path = tmp_path / "t"
    with create_local(path, COLUMNS) as table:
        table.write([ours(1), ours(2)])
        nothing = pa.struct([("a", pa.int32()), ("nothing", pa.null())])
        rows = pa.Table.from_pylist([{"id": 3, "s": {"a": 3}}], pa.schema([("id", pa.int64()), ("s", nothing)]))
        write_deltalake(path, rows, mode="append", schema_mode="merge")
        table.compact()
        table.update("id = 3", {"id": 4})
        assert held(table) == [ours(1), ours(2), {"id": 4, "s": {"a": 3}, "l": None}]
        lists = pa.struct([("a", pa.int32()), ("nothing", pa.list_(pa.null()))])
        rows = pa.Table.from_pylist([{"id": 5, "s": {"a": 5}}], pa.schema([("id", pa.int64()), ("s", lists)]))
        write_deltalake(path, rows, mode="append", schema_mode="merge")
        for statement in (lambda: table.update("id = 1", {"id": 3}), table.compact):
            with pytest.raises(InvalidInputError, match=r"'s.nothing.element', .*another Delta writer.*'void' is not"):
                statement()
        assert [row["id"] for row in held(table)] == [1, 2, 4, 5]
