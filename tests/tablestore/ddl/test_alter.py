"""Schema change as users see it: verbs of ``TableStore`` on Spark, with a log, streams, old snapshots and strangers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DateType, DoubleType, IntegerType

from snapshot.errors import ConflictError, InvalidInputError
from snapshot.schema.evolution import AddColumn, DropColumn, MoveColumn, RenameColumn, WidenColumn
from tablestore import TableStore, open_local
from tablestore.datasource import TableStoreDataSource
from tablestore.read import base_table_columns
from tablestore.write.writer import Writer
from tests.harness.local_writes import drain_raw
from tests.harness.spark_tables import AVAILABLE, Follower, frame, log_options, state

DDL = "id bigint, n int, v string, s struct<x: int, y: string>"
ROWS = [(1, 1, "a", (1, "p")), (2, 2, "b", (2, "q"))]
OWN = [{"id": i, "n": n, "v": v, "s": {"x": x, "y": y}} for i, n, v, (x, y) in ROWS]
OLD = [
    {"s": {"new": None, "x": x, "z": z}, "id": i, "n": n, "w": None, "text": v, "v": None} for i, n, v, (x, z) in ROWS
]
BIG = 1 << 40
NEW = {"s": {"new": "n", "x": BIG, "z": "r"}, "id": 3, "n": BIG, "w": 0.5, "text": "c", "v": 7}


def table_of(rows: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in rows.collect()), key=lambda row: row["id"])


def make(spark: SparkSession, path: Path, kafka: Any, topic: str, *, key: bool, log_format: str) -> TableStore:
    options = log_options(kafka.bootstrap_servers, topic, log__format=log_format, compaction__auto=False)
    keys = ["id"] if key else []
    made = TableStore.create(spark, path, DDL, primary_key=keys, log_system="kafka", options=options)
    made.write(frame(spark, ROWS, DDL))
    return made


def change(table: TableStore) -> None:
    added = table.alter.add_column("w", "double", after="n", comment="why")
    assert (added.operation, added.rows) == ("alter", 0)
    table.alter.widen_column("n", "bigint")
    table.alter.rename_column("v", "text")
    table.alter.add_column("v", "int")
    table.alter.rename_column("s.y", "z")
    table.alter.add_column("s.new", "string", first=True)
    table.alter.widen_column("s.x", "bigint")
    table.alter.move_column("s", first=True)
    expected = "struct<s:struct<new:string,x:bigint,z:string>,id:bigint,n:bigint,w:double,text:string,v:int>"
    assert table.schema.simpleString() == expected


@pytest.mark.parametrize(("key", "log_format"), [(True, "json"), (False, "arrow")])
def test_a_table_through_all_changes(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], key: bool, log_format: str
) -> None:

    def seen(**how: Any) -> list[dict[str, Any]]:
        """Read the table by tasks, and by Spark's Delta reader as if it were large."""
        found = table_of(table.read(**how))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base_table_columns, "_BYTES_MIN", 0)
            assert table_of(table.read(**how)) == found
        return found

    name = topic()
    table = make(spark, tmp_path / "t", kafka, name, key=key, log_format=log_format)
    follower = Follower(tmp_path / "cp", table.read_stream)
    assert len(follower.rows()) == 2
    if key:
        table.compact()
    first = table.snapshots()[0].id
    change(table)
    assert seen() == OLD
    assert seen(snapshot=first) == OLD
    assert seen(snapshot=first, schema="own") == OWN
    assert seen(columns=["v", "id"]) == [{"v": None, "id": 1}, {"v": None, "id": 2}]

    table.write(spark.createDataFrame([NEW], table.schema))
    assert seen() == [*OLD, NEW]
    # The stream was stopped before the changes, and goes on with the columns of now.
    (read,) = follower.follow()
    assert [row[:6] for row in read] == [(("n", BIG, "r"), 3, BIG, 0.5, "c", 7)]

    table.compact()
    assert seen() == [*OLD, NEW]
    assert seen(snapshot=first, schema="own") == OWN
    assert table_of(TableStore.open(spark, table.path).read().where("text = 'a' and n = 1 and s.x = 1")) == OLD[:1]

    dropped = table.alter(DropColumn("v"), DropColumn("s.new"), AddColumn("d", "double"))
    assert seen() == [without(row) for row in [*OLD, NEW]]
    assert seen(snapshot=dropped.id - 1, schema="own") == [*OLD, NEW]
    check_root(spark, table, compacted=key)
    check_log(table, kafka, name, tmp_path / "cp2", log_format)


def check_root(spark: SparkSession, table: TableStore, *, compacted: bool) -> None:
    """Strangers open the root: columns have the names they are stored by, those of the last compaction."""
    names = ["n", "v", "v_2"] if compacted else ["n", "v"]
    expected = [row[: len(names)] for row in [(1, "a", None), (2, "b", None), (BIG, "c", 7)]]
    by_rust = DeltaTable(table.path).to_pyarrow_table().sort_by("id").to_pylist()
    assert [tuple(row[name] for name in names) for row in by_rust] == expected
    by_spark = spark.read.format("delta").load(table.path).orderBy("id").collect()
    assert [tuple(row[name] for name in names) for row in by_spark] == expected


def check_log(table: TableStore, kafka: Any, topic: str, checkpoint: Path, log_format: str) -> None:
    """Each record has the names and types of its own snapshot, and is read with those of now."""
    if log_format == "json":
        values = [json.loads(m.value()) for held in drain_raw(kafka.bootstrap_servers, topic, 2) for m in held]
        assert sorted(values, key=lambda row: row["id"]) == [*OWN, NEW]
    again = Follower(checkpoint, lambda: table.read_stream(scan_mode="earliest")).rows()
    names = table.schema.fieldNames()
    seen = sorted((dict(zip(names, row, strict=False)) for row in again), key=lambda row: row["id"])
    assert [(row["id"], row["text"], row["n"], row["s"].z, row["d"]) for row in seen] == [
        (1, "a", 1, "p", None),
        (2, "b", 2, "q", None),
        (3, "c", BIG, "r", None),
    ]
    assert table.verify().ok
    assert table.log.repair().ok


def without(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name != "v"}
    return kept | {"s": {k: v for k, v in row["s"].items() if k != "new"}, "d": None}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> TableStore:
    """A key table without a log: two rows of ``(id, n, v)``."""
    made = TableStore.create(spark, tmp_path / "t", "id bigint, n int, v string", primary_key=["id"])
    made.write(frame(spark, [(1, 1, "a"), (2, 2, "b")], "id bigint, n int, v string"))
    return made


@contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[None]:
    """Do something between the next staging of rows and their commit."""
    real, done = Writer.write_staged, []

    def write_staged(self: Writer, *args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(do())
        return real(self, *args, **kwargs)

    Writer.write_staged = write_staged  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writer.write_staged = real  # type: ignore[method-assign]


def test_a_writer_finds_out_that_columns_were_changed_while_it_staged(spark: SparkSession, table: TableStore) -> None:
    other = TableStore.open(spark, table.path)
    rows = frame(spark, [(3, 3, "c")], "id bigint, n int, v string")
    with meanwhile(lambda: other.alter(AddColumn("w", DoubleType(), first=True))):
        table.write(rows)
    assert table_of(table.read())[2] == {"w": None, "id": 3, "n": 3, "v": "c"}
    with meanwhile(lambda: other.alter.drop_column("v")), pytest.raises(InvalidInputError, match=r"unknown \['v'\]"):
        table.write(rows)
    # Spark stages for its data source in tasks, and commits later, in a process of its own.
    sink = TableStoreDataSource({"path": table.path}).writer(table.refresh().schema, overwrite=False)
    staged = sink.write(iter(spark.createDataFrame([(4.5, 4, 4)], table.schema).toArrow().to_batches()))
    other.alter.add_column("x", "int")
    with pytest.raises(ConflictError, match="its columns were changed"):
        sink.commit([staged])
    sink.abort([staged])
    assert [row["id"] for row in table_of(table.read())] == [1, 2, 3]
    # Who wrote before a column was added goes on.
    frame(spark, [(4, 4)], "id bigint, n int").write.format("tablestore").mode("append").save(table.path)
    assert table_of(table.read())[3] == {"w": None, "id": 4, "n": 4, "x": None}


def test_merging_the_schema_of_a_frame(spark: SparkSession, table: TableStore) -> None:
    before = state(table)
    with pytest.raises(InvalidInputError, match=r"expected int, got string"):
        table.write(frame(spark, [(3, "x", 1)], "id bigint, n string, new int"), merge_schema=True)
    rows = frame(spark, [(3, BIG, (1,))], "id bigint, n bigint, s struct<x: int>")
    table.write(rows, merge_schema=True)
    assert table_of(table.read())[2] == {"id": 3, "n": BIG, "v": None, "new": None, "s": {"x": 1}}
    wider = frame(spark, [(3, 1, "z", 1, (1, "y"))], "id bigint, n int, v string, new int, s struct<x: int, y: string>")
    table.write(wider, merge_schema=True)
    assert table_of(table.read())[2]["s"] == {"x": 1, "y": "y"}
    assert [s.operation for s in table.snapshots(4)] == ["upsert", "alter", "upsert", "alter"]
    assert before[0] == table.snapshots()[-1].id + 1


def test_a_running_stream_keeps_its_columns_or_says_that_it_cannot(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    options = log_options(kafka.bootstrap_servers, topic())
    ddl = "id bigint, n int, v string"
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["id"], log_system="kafka", options=options)
    table.write(frame(spark, [(1, 1, "a")], ddl))
    seen: list[tuple[Any, ...]] = []
    query = (
        table.read_stream()
        .writeStream.foreachBatch(lambda batch, _: seen.extend(tuple(row)[:3] for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    try:
        query.processAllAvailable()
        table.alter(AddColumn("w", DoubleType(), first=True), DropColumn("v"))
        table.alter.rename_column("n", "m")
        table.write(frame(spark, [(2.5, 2, 2)], "w double, id bigint, m int"))
        query.processAllAvailable()
        assert seen == [(1, 1, "a"), (2, 2, None)]
        table.alter.widen_column("m", "bigint")
        table.write(frame(spark, [(3.5, 3, BIG)], "w double, id bigint, m bigint"))
        with pytest.raises(PySparkException, match="start it again"):
            query.processAllAvailable()
    finally:
        query.stop()
    again = table.read_stream().writeStream.foreachBatch(lambda b, _: seen.extend(tuple(r)[:3] for r in b.collect()))
    again.option("checkpointLocation", str(tmp_path / "cp")).trigger(**AVAILABLE).start().awaitTermination()
    assert seen[2:] == [(3.5, 3, BIG)]


@pytest.mark.parametrize("primary_key", ["id", []], ids=["key", "append"])
def test_a_frame_keeps_its_columns_or_says_that_it_cannot(
    spark: SparkSession, tmp_path: Path, primary_key: str | list[str]
) -> None:
    """Spark knows the columns of a frame by name only, and two of one type may exchange their names."""
    path = str(tmp_path / "t")
    ddl = "id bigint, n int, m int, s struct<x: int, y: int>"
    table = TableStore.create(spark, path, ddl, primary_key=primary_key)
    table.write(frame(spark, [(1, 2, 3, (4, 5))], ddl))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kept USING tablestore OPTIONS (path '{path}')")
    frames = [spark.read.format("tablestore").load(path), spark.table("kept"), table.changes(0)]
    stream = spark.readStream.format("tablestore").option("readChangeFeed", "true").load(path)
    pinned = table.read()

    def rows(of: DataFrame) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in of.select("id", "n", "m", "s.x", "s.y").collect()]

    assert [rows(each) for each in frames] == [[(1, 2, 3, 4, 5)]] * 3
    table.alter(AddColumn("s.new", IntegerType(), first=True), MoveColumn("s.y", first=True))
    table.alter(AddColumn("w", DoubleType()), MoveColumn("m", after="id"))
    assert [rows(each) for each in frames] == [[(1, 2, 3, 4, 5)]] * 3
    table.alter(RenameColumn("s.x", "z"), RenameColumn("s.y", "x"), RenameColumn("s.z", "y"))
    for each in frames:
        with pytest.raises(
            PySparkException, match=r"columns \['s'\] were renamed, dropped or changed .* Make it again"
        ):
            rows(each)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    with pytest.raises(PySparkException, match=r"columns \['s'\] were renamed"):
        query.processAllAvailable()
    assert rows(pinned) == [(1, 2, 3, 4, 5)]
    assert rows(spark.read.format("tablestore").load(path)) == [(1, 2, 3, 5, 4)]


def test_options_change_or_are_refused_by_name(spark: SparkSession, table: TableStore) -> None:
    other = TableStore.open(spark, table.path)
    table.alter.set_options({"compaction.commits": 3, "write.target-file-size": "1 mb"})
    assert (other.refresh().options.compaction.commits, other.refresh().options.write.target_file_size_bytes) == (
        3,
        1 << 20,
    )
    before = state(table)
    for wrong, words in [
        ({"bucket": 4}, "'bucket' cannot change after create"),
        ({"log.format": "arrow"}, "'log.format' cannot change"),
        ({"compaction.commit": 4}, "Did you mean 'compaction.commits'"),
        ({"compaction.commits": 0}, "1 or more"),
        ({"log.headers": "all"}, "needs a Kafka log"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            table.alter.set_options(wrong)
    assert state(table) == before
    assert table.alter.set_options({"compaction.commits": "3"}) is None
    table.alter.reset_options("compaction.commits")
    assert other.refresh().options.compaction.commits == 100
    table.alter.set_options({"consumer.expiration-time": "1 h"})
    assert other.refresh().options.consumer_expiration_ms == 3_600_000


@pytest.mark.parametrize("key", [["id"], []])
def test_types_may_change_until_there_are_rows(spark: SparkSession, tmp_path: Path, key: list[str]) -> None:
    columns = "id bigint, a bigint, b string, s struct<x: string>"
    table = TableStore.create(spark, tmp_path / "t", columns, primary_key=key)
    other = TableStore.open(spark, tmp_path / "t")
    table.alter.widen_column("a", "string")
    table.alter.add_column("c", "double", after="a")
    table.alter(WidenColumn("b", IntegerType()), WidenColumn("s.x", DateType()), WidenColumn("c", BooleanType()))
    assert table.schema.simpleString() == "struct<id:bigint,a:string,c:boolean,b:int,s:struct<x:date>>"
    with pytest.raises(InvalidInputError, match="in the primary key" if key else "widen a nested type by its path"):
        table.alter.widen_column(*(("id", "string") if key else ("s", "string")))
    rows = [(1, "x", True, 7, (date(2026, 1, 2),))]
    other.write(spark.createDataFrame(rows, table.schema))
    table.compact()
    assert [tuple(row) for row in table.read().collect()] == rows
    base = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert [(each["a"], each["b"], each["s"]) for each in base] == [("x", 7, {"x": date(2026, 1, 2)})]
    changes = [batch.to_pylist() for batch in open_local(tmp_path / "t").tail(scan_mode="earliest", follow=False)]
    assert [(each["a"], each["c"]) for batch in changes for each in batch] == [("x", True)]
    table.truncate()
    with pytest.raises(InvalidInputError, match="'a' cannot change from string to bigint: once there were rows"):
        table.alter.widen_column("a", "bigint")


def test_what_cannot_be_changed_is_refused_before_anything_is_written(spark: SparkSession, table: TableStore) -> None:
    before = state(table)
    for wrong in (
        lambda: table.alter.drop_column("id"),
        lambda: table.alter.rename_column("n", "v"),
        lambda: table.alter.add_column("_kind", "int"),
        lambda: table.alter.add_column("x", "interval day"),
        lambda: table.alter.add_column("x", "nonsense"),
        lambda: table.alter.widen_column("n", "smallint"),
        lambda: table.alter(AddColumn("x", DoubleType()), DropColumn("nix")),
    ):
        with pytest.raises(InvalidInputError):
            wrong()
    assert state(table) == before
