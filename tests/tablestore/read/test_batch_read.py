"""A batch read shows exactly one snapshot: the newest, or the one asked for, whatever has been compacted since."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore import TableStore
from tablestore.read import anti_join_scan, base_table_columns, bitmap_scan
from tests.harness.spark_tables import Follower, changes, frame, log_options, make, rows


@pytest.mark.parametrize("way", ["merged", "overlaid", "scanned"])
def test_every_snapshot_reads_as_it_was_before_and_after_compactions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "overlaid":
        monkeypatch.setattr(base_table_columns, "_BYTES_MIN", 0)
        monkeypatch.setattr(anti_join_scan, "is_worth_it", lambda *_args, **_more: True)
    if way == "scanned":
        monkeypatch.setattr(bitmap_scan, "_BASE_BYTES_MIN", 0)
    table = make(spark, tmp_path / "t", compaction__auto="false")
    model: dict[int, dict[int, str]] = {0: {}}
    now: dict[int, str] = {}
    steps: list[list[tuple[int, str | None]] | None] = [
        [(1, "a"), (2, "b"), (3, "c")],
        [(2, None), (4, "d")],
        None,
        [(1, "A"), (2, "again")],
        [(4, None)],
        None,
        [(5, "e")],
    ]
    for step in steps:
        if step is None:
            made = table.compact()
        else:
            given = [(k, v, "insert" if v else "delete") for k, v in step]
            made = table.write(changes(spark, given))
            now = {k: v for k, v in {**now, **dict(step)}.items() if v is not None}
        assert made is not None
        model[made.id] = dict(now)
    for again in (False, True):
        assert {s.id: rows(table.read(snapshot=s.id)) for s in table.snapshots()} == model
        if not again:
            table.compact()
            model[table.snapshots()[0].id] = dict(now)
    third = table.snapshots()[-4]
    assert third.id == 3
    for moment in (third.time, third.time.isoformat(), third.timestamp_ms, third.timestamp_ms + 1):
        assert rows(table.read(timestamp=moment)) == model[3]


def test_what_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a")]))
    with pytest.raises(NotFoundError, match="no snapshot 7; the newest is 1"):
        table.read(snapshot=7)
    with pytest.raises(NotFoundError, match="no snapshot at that time; the oldest is 0, of "):
        table.read(timestamp=dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(InvalidInputError, match="exclude each other"):
        table.read(snapshot=1, timestamp=5)
    with pytest.raises(InvalidInputError, match=r"\['w'\].*\['id', 'v'\]"):
        table.read(columns=["id", "w"])
    with pytest.raises(InvalidInputError, match="ISO-8601"):
        table.read(timestamp="yesterday")


@pytest.mark.usefixtures("delta_scans")
def test_only_the_wanted_columns_come_in_the_order_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    table = TableStore.create(spark, tmp_path / "t", "id int, a int, b int, c int", primary_key=["id"])
    table.write(frame(spark, [(1, 2, 3, 4)], "id int, a int, b int, c int"))
    for _ in range(2):
        assert table.read(columns=["c", "a"]).columns == ["c", "a"]
        assert [tuple(r) for r in table.read(columns=["c", "a"]).collect()] == [(4, 2)]
        assert [tuple(r) for r in table.read().select("b").collect()] == [(3,)]
        assert table.read().count() == 1
        table.compact()


def test_sql_filters_are_pushed_below_the_merge_and_a_view_joins_itself(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", compaction__auto="false")
    table.write(frame(spark, [(k, f"v{k}") for k in range(20)]))
    table.compact()
    table.write(changes(spark, [(3, "new", "insert"), (4, None, "delete")]))

    def view(**options: str) -> None:
        given = ", ".join(f"{name} '{value}'" for name, value in {"path": table.path, **options}.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING tablestore OPTIONS ({given})")

    def answer(condition: str, *, pushable: bool = True) -> set[tuple[Any, ...]]:
        answers = []
        for pushed in (True, False):
            view(pushFilters=str(pushed))
            found = spark.sql(f"SELECT * FROM seen WHERE {condition}")
            plan = found._jdf.queryExecution().executedPlan().toString()
            assert (pushed and pushable) != ("Filter " in plan), plan
            answers.append({tuple(row) for row in found.collect()})
        assert answers[0] == answers[1]
        return answers[0]

    assert answer("id = 3") == {(3, "new")}
    assert answer("id = 4") == set()
    assert answer("v = 'v3'") == set()
    assert answer("length(v) > 2 AND id = 12", pushable=False) == {(12, "v12")}
    assert answer("id IN (3, 4, 5)") == {(3, "new"), (5, "v5")}
    assert answer("id > 17 AND v IS NOT NULL") == {(18, "v18"), (19, "v19")}
    view()
    joined = spark.sql("SELECT a.id, b.v FROM seen a JOIN seen b ON a.id = b.id WHERE a.id < 5")
    assert {tuple(r) for r in joined.collect()} == {(0, "v0"), (1, "v1"), (2, "v2"), (3, "new")}
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == 19
    both = "SELECT a.v, count(*) FROM seen a CROSS JOIN seen b WHERE a.id = 3 GROUP BY 1"
    assert [tuple(r) for r in spark.sql(both).collect()] == [("new", 19)]
    spark.sql("INSERT INTO seen SELECT id + 100, v FROM seen WHERE id = 3")
    assert answer("id >= 100") == {(103, "new")}
    old = spark.read.format("tablestore").option("path", table.path).option("snapshot", "1").load()
    assert old.count() == 20


def test_spark_prunes_the_base_under_few_changes_and_the_frame_outlives_compactions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ddl = "`a.b` string, n decimal(10,2), at timestamp, day int, v string"
    key = ["a.b", "n", "at"]
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=key, partition_by=["day"])
    moments = [dt.datetime(2024, 1, 1, h, tzinfo=dt.UTC) for h in range(4)]
    first = [(f"k`{i}", Decimal(i) / 4, moments[i % 4], i % 3, f"v{i}") for i in range(12)]
    table.write(frame(spark, first, ddl))
    table.compact()
    moved, new = (*first[3][:3], 7, "moved"), ("new", Decimal(1), moments[0], 0, "new")
    table.write(frame(spark, [(*first[3][:4], "lost"), moved, new], ddl))
    table.delete(table.read().where("v = 'v5'"))
    table.write(frame(spark, [moved], ddl))
    expected = rows_of(table.read())
    assert {row[4] for row in expected} == {f"v{i}" for i in range(12) if i not in (3, 5)} | {"moved", "new"}
    monkeypatch.setattr(anti_join_scan, "_BASE_BYTES_MIN", 0)
    read = table.read()
    plan = read.where("day = 1 AND v > 'v2'").select("n")._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [isnotnull(day" in plan
    assert "PushedFilters: [IsNotNull(v), GreaterThan(v,v2)" in plan
    assert rows_of(read) == expected
    assert rows_of(read.where("day = 1")) == [row for row in expected if row[3] == 1]
    assert read.where("v = 'v3'").count() == 0
    assert [tuple(r) for r in table.read(columns=["v", "day"]).where("v = 'moved'").collect()] == [("moved", 7)]
    table.compact()
    table.write(frame(spark, [(*first[0][:4], "later")], ddl))
    table.compact()
    assert rows_of(read) == expected


def test_the_ways_to_read_agree(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's reader under the changed rows, parts that are planned here, and the data source; with filters."""
    ddl, key = "`k.1` string, n int, p int, v string, x float", ["n", "k.1"]
    options = {"bucket": 3, "compaction.auto": "false"}
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=key, partition_by=["p"], options=options)
    dice, model = random.Random(11), dict[tuple[str, int], tuple[Any, ...]]()

    def write(count: int, *more: float | None) -> None:
        given = {}
        for _ in range(count):
            row = (
                f"k`{dice.randrange(9)}",
                dice.randrange(40),
                dice.choice([None, 1, 2]),
                f"v{dice.random()}",
                0.5,
                *more,
            )
            given[row[:2]] = (*row, dice.choice(["insert", "update_postimage", "delete"]))
        table.write(frame(spark, list(given.values()), f"{columns}, _change_type string"))
        for name, (*row, kind) in given.items():
            model.pop(name, None) if kind == "delete" else model.update({name: tuple(row)})

    columns = ddl
    write(300)
    table.compact()
    write(60)
    table.alter.add_column("more", "int")
    table.alter.widen_column("x", "double")
    columns = "`k.1` string, n int, p int, v string, x double, more int"
    model = {name: (*row, None) for name, row in model.items()}
    for more in (7, None):
        write(60, more)
    source = spark.read.format("tablestore").option("path", table.path).load()
    for least, way in ((0, "MapInArrow.*BroadcastHashJoin|BroadcastHashJoin.*MapInArrow"), (1 << 40, "MapInArrow")):
        monkeypatch.setattr(anti_join_scan, "_BASE_BYTES_MIN", least)
        read = table.read()
        plan = read._jdf.queryExecution().executedPlan().toString()
        assert re.search(way, plan, re.DOTALL), plan
        assert ("BroadcastHashJoin" in plan) == (least == 0)
        assert {(r[0], r[1]): tuple(r) for r in read.collect()} == model
        for condition in ("p = 1", "p IS NULL AND v > 'v0.5'", "more = 7", "`k.1` = 'k`3' AND n < 9"):
            seen = sorted(map(repr, read.where(condition).select("v", "n").collect()))
            assert seen == sorted(map(repr, source.where(condition).select("v", "n").collect())), condition
            assert seen
        assert table.read(columns=["x", "k.1"]).where("x = 0.5").count() == len(model)
    assert {(r[0], r[1]): tuple(r) for r in source.collect()} == model


def delta_scan(table: TableStore) -> DataFrame:
    """Read as if the files were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_table_columns, "_BYTES_MIN", 0)
        return table.read()


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_tasks_read_few_small_files_and_spark_reads_many_or_large_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bool
) -> None:
    table = make(spark, tmp_path / "t", key=key)
    table.write(frame(spark, [(1, "a"), (2, "b")]))
    if key:
        table.compact()
    small, large = table.read(), delta_scan(table)
    monkeypatch.setattr(base_table_columns, "_FILES_MIN", 1)
    for read, by_spark in ((small, False), (large, True), (table.read(), True)):
        assert ("MapInArrow" not in read._jdf.queryExecution().executedPlan().toString()) == by_spark
        assert rows(read) == {1: "a", 2: "b"}


def rows_of(read: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in read.collect()), key=lambda row: row[4])


def test_a_frame_may_be_used_again_with_other_filters(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(k, "a") for k in range(10)]))
    read = table.read()
    assert [read.count(), read.where("id = 3").count(), read.count()] == [10, 1, 10]
    assert read.where("id = 3").union(read).union(read.where("id = 4")).count() == 12
    assert read.where("id = 3").crossJoin(read.select(F.col("id").alias("other"))).count() == 10


def test_each_query_of_a_view_or_frame_of_the_data_source_reads_the_current_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a")]))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW current USING tablestore OPTIONS (path '{table.path}')")
    found = spark.read.format("tablestore").load(table.path)
    first = spark.read.format("tablestore").load(table.path, snapshot=1)
    assert [spark.table("current").count(), found.count(), first.count()] == [1, 1, 1]
    spark.sql("INSERT INTO current VALUES (2, 'b')")
    table.write(frame(spark, [(3, "c")]))
    assert [spark.table("current").count(), found.count(), first.count()] == [3, 3, 1]
    both = "SELECT count(*) FROM current JOIN current AS other USING (id) WHERE id IN (SELECT max(id) FROM current)"
    assert spark.sql(both).collect()[0][0] == 1
    kept = found.cache()
    try:
        assert kept.count() == 3
        table.write(frame(spark, [(4, "d")]))
        assert [kept.count(), spark.table("current").count()] == [3, 4]
    finally:
        kept.unpersist()


ODD = [
    "plain",
    "with space",
    "a/b",
    "a=b%20c",
    "ünï→☃",
    "'q\"",
    "__HIVE_DEFAULT_PARTITION__x",
    "tab\there",
    None,
    ".",
]


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_odd_partition_values_are_kept(spark: SparkSession, tmp_path: Path, key: bool) -> None:
    ddl = "id int, p string, d date, n decimal(12,9), b boolean"
    table = TableStore.create(
        spark, tmp_path / "t", ddl, primary_key=["id"] if key else [], partition_by=["p", "d", "n", "b"]
    )
    days = [dt.date(2024, 2, 29), dt.date(1, 1, 1), None]
    # No negative ones: deltalake writes a partition value of -12.5 as "-12.-5" when it reads the table.
    numbers = [Decimal("0.000000001"), Decimal("12.5"), Decimal("0"), None]
    given = [(i, p, days[i % 3], numbers[i % 4], [True, False, None][i % 3]) for i, p in enumerate(ODD)]
    table.write(frame(spark, given, ddl))
    expected = sorted(given)

    def found(of: Any) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in of.select("id", "p", "d", "n", "b").collect()), key=lambda row: row[0])

    assert found(table.read()) == expected
    feed = Follower(tmp_path / "checkpoint", table.read_stream).rows()
    assert sorted((row[:5] for row in feed), key=lambda row: row[0]) == expected
    table.compact()
    assert found(table.read()) == found(delta_scan(table)) == expected
    assert found(spark.read.format("delta").load(table.path)) == expected
    other = DeltaTable(table.path).to_pyarrow_table().select(["id", "p", "d", "n", "b"]).to_pylist()
    assert sorted((tuple(row.values()) for row in other), key=lambda row: row[0]) == expected
    if key:
        table.write(frame(spark, [(0, "moved / elsewhere", None, None, None)], ddl))
        table.delete(frame(spark, [(1,)], "id int"))
        changed = [(0, "moved / elsewhere", None, None, None), *expected[2:]]
        assert found(table.read()) == changed
        table.compact()
        assert found(table.read()) == changed
    assert found(table.read().where(F.col("p") == "a/b"))[0][0] == 2


TYPES = """
  id bigint, flag boolean, tiny tinyint, small smallint, i int, f float, d double, money decimal(38,18),
  small_money decimal(5,2), s string, raw binary, day date, at timestamp, at_local timestamp_ntz,
  list array<int>, lists array<array<string>>, m map<string, decimal(10,3)>,
  st struct<a: int, b: struct<c: timestamp, d: array<binary>>>, `odd name, (x)` string
"""
NEW_YEAR = dt.datetime(2024, 12, 31, 23, 59, 59, 999_999)
VALUES: list[tuple[Any, ...]] = [
    (
        1, True, -128, 32767, -(2**31), 1.5, math.pi, Decimal("12345678901234567890.123456789012345678"),
        Decimal("-999.99"), 'quo"te\\ \n ☃ \x00', b"\x00\xff\n", dt.date(1969, 12, 31), NEW_YEAR, NEW_YEAR,
        [1, None, 3], [["a"], [], None], {"k": Decimal("1.500"), "": None},
        (1, (NEW_YEAR, [b"\x00", b""])), "odd",
    ),
    (2, *[None] * 18),
    (
        3, False, 0, 0, 0, float("nan"), float("nan"), Decimal("0"), Decimal("0.00"), "", b"", dt.date(1, 1, 1),
        dt.datetime(1900, 1, 1, 12), dt.datetime(1, 1, 1), [], [], {}, (None, None), "",
    ),
    (
        4, True, 127, -1, 7, float("inf"), float("-inf"), Decimal("-0.000000000000000001"), Decimal("1"), "null",
        b"null", dt.date(9999, 12, 31), dt.datetime(2024, 3, 10, 3, 30), dt.datetime(9999, 12, 31, 23, 59, 59),
        [None], [[None]], {"nan": Decimal("0.001")}, (5, (None, None)), "{}",
    ),
]  # fmt: skip


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def comparable(value: Any) -> Any:
    """Give a value of which equal ones compare equal: NaN too, and rows as tuples."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map(comparable, value))
    return [comparable(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("local", [True, False], ids=["rows of this process", "a Spark job"])
@pytest.mark.parametrize("log_format", ["json", "arrow", "no log"])
def test_every_type_comes_back_as_it_went(
    new_york: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], log_format: str, local: bool
) -> None:
    spark = new_york
    logged = log_format != "no log"
    table = TableStore.create(
        spark, tmp_path / "t", TYPES, primary_key=["id"], log_system="kafka" if logged else None,
        options=log_options(kafka.bootstrap_servers, topic(), log__format=log_format) if logged else {},
    )  # fmt: skip
    given = spark.createDataFrame(VALUES, TYPES)
    expected = [comparable(tuple(row)) for row in given.collect()]
    table.write(given if local else given.coalesce(1))

    def found(of: Any) -> list[Any]:
        return [comparable(tuple(row)) for row in of.orderBy("id").collect()]

    assert found(table.read()) == expected
    feed = Follower(tmp_path / "checkpoint", lambda: table.read_stream(scan_mode="from-snapshot", snapshot=1)).rows()
    assert sorted((comparable(row[: len(expected[0])]) for row in feed), key=lambda row: row[0]) == expected
    if not logged:
        table.compact()
        assert found(table.read()) == found(delta_scan(table)) == expected
        assert found(spark.read.format("delta").load(table.path).drop("_bucket")) == expected


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("string", "a/b", "ü"), ("binary", b"\x00", b"\x00\x00"), ("boolean", True, False),
        ("decimal(38,10)", Decimal("1.5"), Decimal("-1.5")), ("date", dt.date(2024, 1, 1), dt.date(1, 1, 1)),
        ("timestamp", NEW_YEAR, dt.datetime(1900, 1, 1)), ("timestamp_ntz", NEW_YEAR, dt.datetime(1900, 1, 1)),
        ("tinyint", -1, 1), ("smallint", -1, 1), ("int", -1, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("local", [True, False], ids=["rows of this process", "a Spark job"])
def test_a_key_may_be_of_any_key_type(
    new_york: SparkSession, tmp_path: Path, kind: str, first: Any, second: Any, local: bool
) -> None:
    spark, ddl = new_york, f"k {kind}, n int"
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["k"], options={"bucket": 3})
    for rows_ in ([(first, 1), (second, 2), (first, 3)], [(second, 4)]):
        given = spark.createDataFrame(rows_, ddl)
        table.write(given if local else given.coalesce(1))
    assert {comparable(row.k): row.n for row in table.read().collect()} == {first: 3, second: 4}
