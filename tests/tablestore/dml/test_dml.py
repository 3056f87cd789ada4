"""Delete, update, overwrite, truncate, merge: each is one snapshot, and files, log and streams hold what it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from snapshot.errors import ConflictError, InvalidInputError
from snapshot.records import Snapshot
from snapshot.row_kind import RowKind
from tablestore import TableStore, when_matched, when_not_matched, when_not_matched_by_source
from tablestore.context import TableContext
from tablestore.dml import copy_on_write as unkeyed
from tablestore.dml import merge_on_read
from tablestore.dml.predicate_pushdown import pushed_predicate
from tablestore.write import optimistic_retry
from tests.harness import spark_tables
from tests.harness.local_writes import drain_raw, rows_of
from tests.harness.spark_tables import DDL, Follower, frame, log_options, rows, state
from tests.harness.table_audit import assert_log_is_table
from tests.tablestore.write.test_changelog_lookup import check_changelog, told

LOOKUP: dict[str, object] = {"changelog_producer": "lookup", "log__format": "arrow"}
EVENTUAL: dict[str, object] = {"log__consistency": "eventual"}
SOURCE = "id int, v string, gone boolean"


def make(
    spark: SparkSession, path: Path, servers: str = "", topic: str = "", *, key: bool = True, **options: object
) -> TableStore:
    """A table of ``(id, v)``, partitioned by ``v``."""
    given = {n: v for n, v in log_options(servers, topic, **options).items() if topic or not n.startswith("kafka.")}
    return TableStore.create(
        spark,
        path,
        DDL,
        primary_key=["id"] if key else [],
        partition_by=["v"],
        log_system="kafka" if topic else None,
        options=given,
    )


def merging(table: TableStore, source: DataFrame, **more: Any) -> Snapshot | None:
    return table.merge(
        source,
        "id",
        [
            when_matched("source.gone").delete(),
            when_matched().update({"v": "source.v"}),
            when_not_matched("not source.gone").insert({"id": "source.id", "v": "source.v"}),
            when_not_matched_by_source("target.v = 'c'").delete(),
        ],
        **more,
    )


@dataclass
class Story:
    """What became of a table with a key, snapshot by snapshot."""

    table: TableStore
    history: dict[int, dict[int, Any]] = field(default_factory=lambda: {0: {}})

    def see(self, made: Snapshot | None, kind: str, now: dict[int, Any], changes: int | None = None) -> None:
        """A verb has made one snapshot of its kind, with so many changes, and these rows are there now."""
        assert made is not None
        assert made.operation == kind
        assert changes is None or made.rows == changes
        assert rows_of(TableContext.open(self.table.path)) == now
        self.history[made.id] = now

    def check(self) -> None:
        """Every snapshot can be read, and the log is the table."""
        opened = TableContext.open(self.table.path)
        assert {s: rows_of(opened, s) for s in self.history} == self.history
        assert rows(self.table.read()) == self.history[max(self.history)]
        assert self.table.verify().ok


@pytest.fixture(params=["small", "large"])
def by_size(request: pytest.FixtureRequest) -> None:
    """Let Spark's Delta reader and data source read the tables, too, as if they were large."""
    if request.param == "large":
        request.getfixturevalue("delta_scans")


@pytest.mark.usefixtures("by_size")
def test_each_verb_of_a_table_with_a_key_is_one_snapshot(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = make(spark, tmp_path / "t", servers, name := topic())
    story = Story(table)
    see = story.see
    see(table.write(frame(spark, [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "n")])), "upsert",
        {1: "a", 2: "b", 3: "c", 4: "a", 5: "n"}, 5)  # fmt: skip
    see(table.delete("v = 'b' or id = 77"), "delete", {1: "a", 3: "c", 4: "a", 5: "n"}, 1)
    assert table.delete(F.col("v") == "gone") is None
    see(table.update(F.col("id") > 3, {"V": "concat(v, '!')"}), "update", {1: "a", 3: "c", 4: "a!", 5: "n!"}, 2)
    table.compact()
    see(table.update("v in ('a', 'c')", {"id": "if(id = 1, 3, id + 10)"}), "update",
        {3: "a", 13: "c", 4: "a!", 5: "n!"}, 3)  # fmt: skip
    see(table.overwrite(frame(spark, [(3, "x"), (20, "c"), (20, "c")]), "v in ('a', 'c', 'x')"), "overwrite",
        {3: "x", 20: "c", 4: "a!", 5: "n!"}, 3)  # fmt: skip
    see(table.overwrite(frame(spark, [(21, "c"), (4, "n!")]), dynamic=True), "overwrite",
        {3: "x", 21: "c", 4: "n!"}, 4)  # fmt: skip
    source = frame(spark, [(4, "z", False), (3, "", True), (30, "new", False), (31, "", True)], SOURCE)
    see(merging(table, source), "merge", {4: "z", 30: "new"}, 4)
    see(table.overwrite(frame(spark, [(1, "q"), (4, "z")])), "overwrite", {1: "q", 4: "z"}, 3)
    see(table.update("true", {"v": F.lit("r")}, batch=("job", 1)), "update", {1: "r", 4: "r"}, 2)
    again = table.update("true", {"v": F.lit("s")}, batch=("job", 1))
    assert again == table.snapshots(limit=1)[0], "a batch that has landed is not done again"
    see(table.truncate(), "truncate", {}, 2)
    assert table.truncate() is None
    story.check()
    assert_log_is_table(Path(table.path), servers, name, 2)


@pytest.mark.parametrize("options", [LOOKUP, EVENTUAL], ids=["lookup", "eventual"])
def test_verbs_with_the_rows_before_them_and_before_the_commit(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str], options: dict[str, object]
) -> None:
    table = make(spark, tmp_path / "t", servers, name := topic(), **options)
    story = Story(table)
    see = story.see
    see(table.write(frame(spark, [(1, "a"), (2, "b"), (3, "c"), (4, "d")])), "upsert", {1: "a", 2: "b", 3: "c", 4: "d"})
    see(table.update("id < 3", {"id": "3 - id"}), "update", {2: "a", 1: "b", 3: "c", 4: "d"})
    see(table.overwrite(frame(spark, [(1, "b"), (5, "a")]), "v in ('a', 'b')"), "overwrite",
        {1: "b", 5: "a", 3: "c", 4: "d"})  # fmt: skip
    source = frame(spark, [(4, "z", False), (1, "", True), (30, "new", False)], SOURCE)
    see(merging(table, source), "merge", {4: "z", 5: "a", 30: "new"})
    see(table.truncate(), "truncate", {})
    story.check()
    if options is EVENTUAL:
        spark_tables.assert_log_is_table(table, servers, name)
        return
    now: dict[int, Any] = {}
    for each in sorted(story.history)[1:]:
        now = check_changelog(now, told(TableContext.open(table.path), each))
        assert now == story.history[each]


@pytest.mark.usefixtures("by_size")
def test_verbs_of_a_table_without_a_key(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """Only files that hold rows concerned are touched; files and log hold the true changes."""
    table = make(spark, tmp_path / "t", servers, topic(), key=False, log__format="debezium-json")
    now: Counter[tuple[int, Any]] = Counter()
    expected: dict[int, Counter[tuple[int, Any, RowKind]]] = {}

    def see(made: Snapshot | None, kind: str, *changes: tuple[int, Any, str], adds: int, removes: int) -> None:
        assert made is not None
        assert (made.operation, made.rows) == (kind, len(changes))
        for key, value, change in changes:
            now[key, value] += -1 if change in ("-D", "-U") else 1
        plain = DeltaTable(table.path)
        assert Counter((r["id"], r["v"]) for r in plain.to_pyarrow_table().to_pylist()) == +now
        done = TableContext.open(table.path).files.log.commit_at(made.id)
        assert (len(done.added), len(done.removed)) == (adds, removes)
        kinds = {"+I": RowKind.INSERT, "-D": RowKind.DELETE, "-U": RowKind.UPDATE_BEFORE, "+U": RowKind.UPDATE_AFTER}
        expected[made.id] = Counter((key, value, kinds[change]) for key, value, change in changes)

    see(table.write(frame(spark, [(1, "a"), (2, "a"), (3, "b"), (3, "b")])), "append",
        (1, "a", "+I"), (2, "a", "+I"), (3, "b", "+I"), (3, "b", "+I"), adds=2, removes=0)  # fmt: skip
    see(table.write(frame(spark, [(4, "b"), (5, None)])), "append",
        (4, "b", "+I"), (5, None, "+I"), adds=2, removes=0)  # fmt: skip
    see(table.delete("id = 1"), "delete", (1, "a", "-D"), adds=1, removes=1)
    see(table.delete("v = 'b' and id < 4"), "delete", (3, "b", "-D"), (3, "b", "-D"), adds=0, removes=1)
    assert table.delete("id = 77") is None
    see(table.update("id in (2, 5)", {"v": "coalesce(v, 'n')", "id": "id * 10"}), "update",
        (2, "a", "-U"), (20, "a", "+U"), (5, None, "-U"), (50, "n", "+U"), adds=2, removes=2)  # fmt: skip
    see(table.overwrite(frame(spark, [(6, "b"), (7, "n")]), "v = 'b' or v = 'n'"), "overwrite",
        (4, "b", "-D"), (50, "n", "-D"), (6, "b", "+I"), (7, "n", "+I"), adds=2, removes=2)  # fmt: skip
    see(table.overwrite(frame(spark, [(8, "b"), (9, "m")]), dynamic=True), "overwrite",
        (6, "b", "-D"), (8, "b", "+I"), (9, "m", "+I"), adds=2, removes=1)  # fmt: skip
    source = frame(spark, [(20, "A", False), (9, "", True), (30, "new", False), (31, "", True)], SOURCE)
    see(merging(table, source), "merge",
        (20, "a", "-U"), (20, "A", "+U"), (9, "m", "-D"), (30, "new", "+I"), adds=2, removes=2)  # fmt: skip
    made = table.overwrite(frame(spark, [(1, "q")]), batch=("job", 1))
    see(made, "overwrite", (20, "A", "-D"), (7, "n", "-D"), (8, "b", "-D"), (30, "new", "-D"), (1, "q", "+I"),
        adds=1, removes=4)  # fmt: skip
    assert table.overwrite(frame(spark, [(2, "q")]), batch=("job", 1)) == made
    see(table.truncate(), "truncate", (1, "q", "-D"), adds=0, removes=1)
    assert table.truncate() is None
    assert table.read().collect() == []
    # What a stream reads where there is no log, or its retention has passed.
    assert {s: Counter(told(TableContext.open(table.path), s)) for s in expected} == expected
    # ``debezium-json`` says an update as a delete and an insert.
    splits = {RowKind.UPDATE_BEFORE: RowKind.DELETE, RowKind.UPDATE_AFTER: RowKind.INSERT}
    logged = [
        (key, value, splits.get(kind, kind).change_type, s)
        for s, changes in expected.items()
        for key, value, kind in changes.elements()
    ]
    feed = Follower(tmp_path / "c", lambda: table.read_stream(scan_mode="earliest")).rows()
    assert Counter(row[:4] for row in feed) == Counter(logged)
    report = table.verify()
    assert report.ok, report
    assert not report.pending


@pytest.mark.parametrize(("log_format", "key"), [("json", True), ("json", False), ("arrow", False)])
def test_one_record_of_each_partition_says_that_all_rows_are_gone(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str], log_format: str, key: bool
) -> None:
    """A plain consumer gets one record; a stream of ours gets the rows that go, whatever the log's format can say."""
    name, option = topic(), "log.truncate-record"
    table = spark_tables.make(
        spark, tmp_path / "t", servers, name, key=key, log__format=log_format, log__truncate_record=True
    )
    stream = Follower(tmp_path / "c", lambda: table.read_stream(scan_mode="earliest", max_snapshots=4))
    table.write(frame(spark, [(1, "a"), (2, "b"), (3, "c")]))
    table.overwrite(frame(spark, [(2, "b"), (4, "d")]))
    table.write(frame(spark, [(5, "e")]))
    assert table.truncate().rows == 3
    table.write(frame(spark, [(6, "f")]))
    feed = stream.rows()
    table.alter.set_options({option: "false"})
    if (log_format, key) == ("json", False):
        with pytest.raises(InvalidInputError, match=r"truncate: log\.format='json'"):
            table.truncate()
    else:
        table.truncate()
    feed += stream.rows()
    gone = {"json": b'{"_change_type":"truncate"}', "debezium-json": b'{"before":null,"after":null,"op":"t"}'}
    for partition in drain_raw(servers, name, 2):
        values = [message.value() for message in partition]
        if log_format == "arrow":
            kinds = [pa.ipc.open_stream(value).read_all()["_kind"].to_pylist() for value in values]
            assert sum(each == [4] for each in kinds) == 2
            assert sum(kind == RowKind.DELETE for each in kinds for kind in each) <= 1
        else:
            assert values.count(gone[log_format]) == 2
            assert sum(value is None or b'"op":"d"' in value for value in values) <= 1
    deletes = Counter((row[0], row[3]) for row in feed if row[2] == "delete")
    went = {(1, 2), (3, 2), (2, 4), (4, 4), (5, 4)} | (set() if key else {(2, 2)})
    assert {each for each in deletes if each[1] <= 5} == went
    assert max(deletes.values()) == 1
    now = Counter(row[0] for row in feed if row[2] != "delete") - Counter(row[0] for row in feed if row[2] == "delete")
    # An upsert of a row that is there is one in the feed too.
    assert now == Counter(row[0] for row in table.read().collect()) + Counter([2] if key else [])
    report = table.verify()
    assert report.ok, report
    assert report.snapshots >= 5


UNDERSTOOD = (
    "id % 3 = 1", "id % 4 = -1", "mod(ID, 5) in (0, 2)", "id > -2 and v = 'a'", "v in ('a', 'B') and not id = 1",
    "(id between -1 and 4) and v is not null", "v = 'a ' and id < 9", "v >= 'B'",
)  # fmt: skip
NOT_UNDERSTOOD = ("id <= 1 or v = 'a'", "-id = 1", "id = '3'", "id % -3 = 1", "v = 'a '")


def test_rows_are_left_out_early_only_where_no_condition_selects_them(spark: SparkSession, tmp_path: Path) -> None:
    """What our reader takes of a condition in Spark's SQL selects all that Spark does; then a verb is right with it."""
    held = [(n, v) for n in range(-6, 7) for v in ("a", "a ", "b", "B", "1", None)]
    asked = frame(spark, held)
    with duckdb.connect() as engine:
        engine.register("held", asked.toArrow())
        for text in (*UNDERSTOOD, *NOT_UNDERSTOOD):
            needs = pushed_predicate(text, asked.schema)
            kept = engine.execute(f"SELECT * FROM held WHERE {needs.sql}", list(needs.parameters)).fetchall()
            assert set(map(tuple, asked.where(text).collect())) <= set(kept), text
            assert bool(needs.conditions) == (text in UNDERSTOOD), text
    table = spark_tables.make(spark, tmp_path / "t")
    table.write(frame(spark, [(n, "old") for n in range(-20, 20)]))
    table.compact()
    table.write(frame(spark, [(n, "new") for n in range(0, 20, 2)]))
    now = rows(table.read())
    assert table.update("id % 4 = 0 and v = 'new'", {"v": "concat(v, id)"}).rows == 5
    now |= {n: f"new{n}" for n in range(0, 20, 4)}
    assert table.delete("id % 2 = 0 and v = 'old'").rows == 10
    assert rows(table.read()) == {n: v for n, v in now.items() if n % 2 or v != "old"}
    assert table.delete("id % 2 = 0 and v = 'old'") is None


def test_rows_that_would_share_a_key_are_refused_and_moves_that_do_not_go_through(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a"), (2, "b"), (3, "c")]))
    before = state(table)
    twice = frame(spark, [(1, "x", False), (1, "y", False)], SOURCE)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("two rows would have the same primary key", lambda: table.update("id = 1", {"id": F.lit(2)})),
        ("two rows would have the same primary key", lambda: table.update("id < 3", {"id": F.lit(9)})),
        ("must not contain NULL", lambda: table.update("id = 1", {"id": F.lit(None)})),
        ("every row must satisfy where", lambda: table.overwrite(frame(spark, [(1, "z")]), "v = 'a'")),
        ("ambiguous", lambda: table.merge(twice, "id", [when_matched().update({"v": "source.v"})])),
        (
            "two rows would have the same primary key",
            lambda: table.merge(twice, "target.v = source.v", [when_not_matched().insert({"id": "7", "v": "'n'"})]),
        ),
        (
            "two rows would have the same primary key",
            lambda: table.merge(
                twice, "target.v = source.v", [when_not_matched("source.v = 'x'").insert({"id": "1", "v": "'n'"})]
            ),
        ),
    ]
    for message, act in refused:
        with pytest.raises(InvalidInputError, match=message):
            act()
        assert state(table) == before
    assert table.merge(twice, "id", [when_matched().delete()]).rows == 1, "deleted twice is deleted"
    table.update("true", {"id": "5 - id"})
    assert rows(table.read()) == {3: "b", 2: "c"}, "two rows may change places"
    again = frame(spark, [(3, "b"), (2, "c")])
    table.merge(
        again, "target.v = source.v", [when_matched("source.id = 3").delete(), when_matched().update({"id": "3"})]
    )
    assert rows(table.read()) == {3: "c"}, "a key that is deleted is free"


def test_what_is_wrong_is_said_before_anything_is_written(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    keyed_, plain = make(spark, tmp_path / "k"), spark_tables.make(spark, tmp_path / "a", key=False)
    logged = spark_tables.make(spark, tmp_path / "l", servers, topic(), key=False)
    one = frame(spark, [(1, "a")])
    for table in (keyed_, plain, logged):
        table.write(one)
    before = [state(table) for table in (keyed_, plain, logged)]
    feed = one.withColumn("_change_type", F.lit("insert"))
    refused: list[tuple[str, Callable[[], object]]] = [
        ("delete: where 'w = 1' cannot be evaluated here: .*w", lambda: keyed_.delete("w = 1")),
        ("delete: where 'id \\+' cannot", lambda: plain.delete("id +")),
        ("delete: where 'id' cannot", lambda: plain.delete("id")),
        ("delete: where: expected a Spark column or SQL text, got int", lambda: plain.delete(3)),
        ("delete: this table has no primary key", lambda: plain.delete(one)),
        ("update: set: 'w' is not a column", lambda: keyed_.update("true", {"w": "1"})),
        ("update: set: 'ID' is set twice", lambda: keyed_.update("true", {"id": "1", "ID": "2"})),
        ("update: set: expected a mapping of columns to new values", lambda: plain.update("true", {})),
        ("column 'v' is string, got int; use cast", lambda: plain.update("true", {"v": "1"})),
        ("missing \\['v'\\]", lambda: plain.overwrite(one.select("id"))),
        ("Drop it, or write\\(\\) the changes", lambda: keyed_.overwrite(feed)),
        ("exclude each other", lambda: keyed_.overwrite(one, "id = 1", dynamic=True)),
        ("this table has none", lambda: plain.overwrite(one, dynamic=True)),
        ("every row must satisfy where; 1 of 1", lambda: plain.overwrite(one, "id = 2")),
        ("merge: when expects clauses", lambda: keyed_.merge(one, "id", [])),
        (
            "'when matched then delete' is never reached",
            lambda: keyed_.merge(one, "id", [when_matched().update(), when_matched().delete()]),
        ),
        ("merge: on expects columns of both", lambda: keyed_.merge(one, ["w"], [when_matched().delete()])),
        (
            "sets all columns, but the source lacks \\['v'\\]",
            lambda: keyed_.merge(one.select("id"), "id", [when_matched().update()]),
        ),
        (
            "merge: when not matched 'target.id = 1' cannot",
            lambda: keyed_.merge(one, "id", [when_not_matched("target.id = 1").insert()]),
        ),
        (
            "merge: when not matched by source 'id = 1' cannot be evaluated here: .*ambiguous",
            lambda: keyed_.merge(one, "id", [when_not_matched_by_source("id = 1").delete()]),
        ),
        ("log.format='arrow' or 'debezium-json', or with a primary key", lambda: logged.delete("id = 1")),
        ("truncate: log.format='json'", logged.truncate),
    ]
    for message, act in refused:
        with pytest.raises(InvalidInputError, match=message):
            act()
    assert [state(table) for table in (keyed_, plain, logged)] == before


@pytest.mark.usefixtures("delta_scans")
def test_verbs_of_a_table_without_a_key_whose_structs_were_changed(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "id bigint, p string, s struct<a: int, b: string>"
    table = TableStore.create(spark, tmp_path / "t", ddl, partition_by=["p"])
    odd = [(1, "a b", (1, "x")), (2, "a b", (2, "y")), (3, "%2F", (3, "z"))]
    table.write(spark.createDataFrame(odd, ddl))
    table.alter.rename_column("s.a", "n")
    table.alter.add_column("s.c", "double")
    table.write(spark.createDataFrame([(4, "a b", (4, "w", 0.5))], table.schema))
    assert table.delete("s.n = 1").rows == 1
    assert table.update("s.c is null and p = '%2F'", {"s": "named_struct('n', 33, 'b', s.b, 'c', 1D)"}).rows == 2
    source = spark.createDataFrame([(2, True), (4, False)], "id bigint, gone boolean")
    clauses = [when_matched("source.gone and target.s.n = 2").delete(), when_matched().update({"p": "'new'"})]
    assert table.merge(source, "id", clauses).rows == 3
    assert sorted(map(tuple, table.read().select("id", "p", "s.n", "s.b", "s.c").collect())) == [
        (3, "%2F", 33, "z", 1.0), (4, "new", 4, "w", 0.5)
    ]  # fmt: skip
    columns = [(row.since, row.until, row.name, row.type) for row in table.inspect.schemas().collect()]
    assert columns[2::3] == [
        (3, None, "s", "struct<n:int,b:string,c:double>"),
        (2, 2, "s", "struct<n:int,b:string>"),
        (0, 1, "s", "struct<a:int,b:string>"),
    ]


def test_who_commits_in_between(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with a key looks again; without one, an append comes after the verb, and a delete makes it look again."""
    keys, plain = make(spark, tmp_path / "k"), spark_tables.make(spark, tmp_path / "a", key=False)
    between: list[Callable[[], object]] = []

    def meanwhile(real: Callable[..., Any]) -> Callable[..., Any]:
        def staged(*args: Any) -> Any:
            found = real(*args)
            if between:
                between.pop(0)()
            return found

        return staged

    other, others = TableStore.open(spark, keys.path), TableStore.open(spark, plain.path)
    for table in (keys, plain):
        table.write(frame(spark, [(1, "a"), (2, "a"), (3, "b")]))
    monkeypatch.setattr(merge_on_read, "run_staging", meanwhile(merge_on_read.run_staging))
    between += [lambda: other.write(frame(spark, [(4, "a")])), other.compact]
    made = keys.delete("v = 'a'")
    assert (made.rows, rows(keys.read())) == (3, {3: "b"})
    monkeypatch.setattr(unkeyed, "run_staging", meanwhile(unkeyed.run_staging))
    between += [lambda: others.write(frame(spark, [(4, "a")]))]
    assert plain.delete("id in (1, 4)").rows == 1
    between += [lambda: others.delete("id = 4")]
    assert plain.update("v = 'a'", {"v": "'A'"}).rows == 2
    assert sorted(map(tuple, plain.read().collect())) == [(2, "A"), (3, "b")]
    monkeypatch.setattr(optimistic_retry, "RETRIES_MAX", 2)
    between += [lambda: other.write(frame(spark, [(5, "a")])), lambda: other.write(frame(spark, [(6, "a")]))]
    with pytest.raises(ConflictError, match="other writers committed 2 times"):
        keys.truncate()
    assert rows(keys.read()) == {3: "b", 5: "a", 6: "a"}
