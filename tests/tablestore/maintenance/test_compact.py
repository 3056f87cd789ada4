"""Compaction changes nothing that anybody reads, wherever it is interrupted, and anybody may open its result."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from snapshot.delta.log import DeltaLog
from snapshot.errors import OutcomeUnknownError, UnavailableError
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.store.table_files import TableFiles
from tablestore import TableStore, create_local
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, make_table, publisher_of, rows_of, run_here, write
from tests.harness.spark_tables import Follower, changes, frame, make, rows
from tests.harness.table_audit import assert_log_is_table

PARTITIONS = 2
BEFORE = {k: f"v{k}" for k in range(6)}


@pytest.fixture
def table(servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
    """A key table with two snapshots, of which nothing is compacted yet."""
    made = make_table(tmp_path / "t", servers, topic(), bucket=PARTITIONS, compaction__auto="false")
    writer = Writer(made, publisher_of(made))
    write(writer, [*BEFORE.items(), (99, "gone")])
    write(writer, [(99, None), (0, "v0")])
    return made


def reopened(table: TableContext) -> TableContext:
    return TableContext.open(table.path)


def audit(table: TableContext, servers: str) -> None:
    assert_log_is_table(Path(table.path), servers, table.log.settings.topic, PARTITIONS)


def root_rows(table: TableContext) -> dict[int, str]:
    """Read the root with deltalake alone, as a stranger does."""
    return {row["id"]: row["v"] for row in DeltaTable(table.path).to_pyarrow_table(columns=["id", "v"]).to_pylist()}


def test_the_root_is_the_table_afterwards_and_every_snapshot_reads_as_before(table: TableContext, servers: str) -> None:
    log = drain(servers, table.log.settings.topic, PARTITIONS)
    made = compact(table, run_here)
    assert made is not None
    assert (made.id, made.operation, made.rows) == (3, "compact", 0)
    assert root_rows(table) == BEFORE
    assert table.files.layout(3).changes == ()
    assert {s: rows_of(table, s) for s in range(4)} == {0: {}, 1: {**BEFORE, 99: "gone"}, 2: BEFORE, 3: BEFORE}
    assert drain(servers, table.log.settings.topic, PARTITIONS) == log
    assert compact(table, run_here) is None

    write(Writer(table, publisher_of(table)), [(0, "new"), (7, "v7")])
    assert root_rows(table) == BEFORE
    compact(table, run_here)
    assert root_rows(table) == rows_of(table) == {**BEFORE, 0: "new", 7: "v7"}
    audit(table, servers)


def test_only_buckets_with_changes_are_rewritten(table: TableContext) -> None:
    compact(table, run_here)
    before = {f.path for f in table.files.base_table.files()}
    write(Writer(table, publisher_of(table)), [(0, "new")])
    compact(table, run_here)
    after = {f.path for f in table.files.base_table.files()}
    assert len(before - after) == len(after - before) == 1


@pytest.mark.parametrize(
    ("owner", "call", "after"),
    [
        (DeltaLog, "commit", False),
        (DeltaLog, "commit", True),
        (TableFiles, "trim", False),
        (TableFiles, "trim", True),
    ],
    ids=["before the root's commit", "after the root's commit", "before the trim", "after the trim"],
)
def test_an_interrupted_compaction_leaves_the_table_right_and_the_next_one_finishes(
    table: TableContext, servers: str, owner: type, call: str, after: bool
) -> None:
    with failing(owner, call, after=after), pytest.raises(Crash):
        compact(table, run_here)
    for again in (reopened(table), table):
        assert {s: rows_of(again, s) for s in (0, 1, 2)} == {0: {}, 1: {**BEFORE, 99: "gone"}, 2: BEFORE}
    writer = Writer(reopened(table), publisher_of(table))
    write(writer, [(1, "later")])
    assert rows_of(table) == {**BEFORE, 1: "later"}
    compact(reopened(table), run_here)
    assert root_rows(table) == rows_of(table) == {**BEFORE, 1: "later"}
    assert table.files.layout(table.files.latest()).changes == ()
    audit(table, servers)


def test_a_root_commit_whose_answer_was_lost_is_not_undone(table: TableContext, servers: str) -> None:
    lost = OutcomeUnknownError("no answer")
    with failing(DeltaLog, "commit", lost, after=True), pytest.raises(OutcomeUnknownError):
        compact(table, run_here)
    assert rows_of(table) == root_rows(table) == BEFORE
    compact(table, run_here)
    audit(table, servers)


def test_of_two_compactions_at_once_one_counts_and_the_table_is_right(table: TableContext, servers: str) -> None:
    barrier = Barrier(2)

    def together(tasks: Any, work: Any) -> list[str]:
        barrier.wait()
        return run_here(tasks, work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: compact(each, together), [table, reopened(table)]))
    root = reopened(table).files.base_table
    assert root.version() == 1
    assert rows_of(table) == root_rows(table) == BEFORE
    listed = {f.path for f in root.files()}
    found = {str(p.relative_to(table.path)) for p in Path(table.path).glob("_bucket=*/*.parquet")}
    assert found == listed
    audit(table, servers)


def test_writers_and_a_compactor_at_once_lose_nothing(table: TableContext, servers: str) -> None:
    def write_many(number: int) -> None:
        own = reopened(table)
        writer = Writer(own, publisher_of(own))
        for batch in range(8):
            write(writer, [(100 * number + batch % 3, str(batch)), (number, None)])

    def compact_often(_: int) -> None:
        own = reopened(table)
        for _ in range(8):
            compact(own, run_here)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda job: job[0](job[1]), [(write_many, 1), (write_many, 2), (compact_often, 0)]))
    compact(reopened(table), run_here)
    assert root_rows(table) == rows_of(table)
    assert {k: v for k, v in rows_of(table).items() if k >= 100} == {100: "6", 101: "7", 102: "5"} | {
        200: "6",
        201: "7",
        202: "5",
    }
    audit(table, servers)


@pytest.mark.parametrize(
    ("options", "writes", "compacted"),
    [
        ({"compaction__commits": 1}, 3, [1, 3, 5]),
        ({"compaction__commits": 3, "compaction__min_commits": 99}, 5, [3]),
        ({"compaction__commits": 99, "compaction__min_commits": 2, "compaction__ratio": 0.5}, 4, [2, 5]),
        ({"compaction__auto": "false", "compaction__commits": 1}, 3, []),
    ],
    ids=["every commit", "by commits", "by ratio", "never"],
)
def test_compaction_comes_on_its_own(spark: SparkSession, tmp_path: Path, options, writes: int, compacted) -> None:
    table = make(spark, tmp_path / "t", **options)
    for number in range(writes):
        table.write(spark.createDataFrame([(k, str(number)) for k in range(4)], "id bigint, v string"))
    root = TableContext.open(table.path).files.base_table
    merged = [commit.info["merged-through"] for commit in root.commits(root.version())]
    assert sorted(merged)[1:] == compacted
    assert rows(table.read()) == dict.fromkeys(range(4), str(writes - 1))
    if options.get("compaction__commits") == 1 and compacted:
        assert rows(spark.read.format("delta").load(table.path).select("id", "v")) == rows(table.read())


def test_a_stream_does_not_notice_compactions(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    for name in ("", topic()):
        table = make(spark, tmp_path / f"t{bool(name)}", servers, name, compaction__commits=1)
        reader = Follower(tmp_path / f"c{bool(name)}", table.read_stream)
        table.write(frame(spark, [(1, "a")]))
        assert [row[:3] for row in reader.rows()] == [(1, "a", "insert")]
        table.write(changes(spark, [(1, None, "delete"), (2, "b", "insert")]))
        table.compact()
        seen = [row[:4] for row in reader.rows()]
        assert {(row[0], row[2], row[3]) for row in seen} == {(1, "delete", 3), (2, "update_postimage", 3)}
        assert reader.rows() == []


def test_strangers_open_the_root_and_agree(spark: SparkSession, tmp_path: Path) -> None:
    table = TableStore.create(
        spark, tmp_path / "t", "id bigint, city string, v string", primary_key=["id"], partition_by=["city"],
        options={"bucket": 2},
    )  # fmt: skip
    ddl = "id bigint, city string, v string"
    table.write(frame(spark, [(k, f"town {k % 3}", "a") for k in range(9)], ddl))
    table.compact()
    table.write(frame(spark, [(0, "moved/away", "b"), (50, None, None)], ddl))
    table.delete(frame(spark, [(8,)], "id bigint"))
    table.compact()
    expected = sorted((tuple(row) for row in table.read().collect()), key=str)

    def same(found: Any) -> bool:
        return sorted((tuple(row) for row in found), key=str) == expected

    delta, columns = DeltaTable(table.path), ["id", "city", "v"]
    assert same(row.values() for row in delta.to_pyarrow_table(columns=columns).to_pylist())
    assert same(polars.read_delta(table.path).select(columns).rows())
    assert same(spark.read.format("delta").load(table.path).select(columns).collect())
    query = "SELECT id, city, v FROM read_parquet(?, hive_partitioning = true, hive_types = {'city': VARCHAR})"
    uris = [uri.removeprefix("file://") for uri in delta.file_uris()]
    assert same(duckdb.execute(query, [uris]).fetchall())


@pytest.mark.parametrize("who", ["spark", "deltalake"])
def test_a_vacuum_of_the_root_without_retention_takes_only_what_compaction_replaced(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str], who: str
) -> None:
    table = make(spark, tmp_path / "t", servers, topic(), compaction__auto="false")
    root = Path(table.path)
    table.write(frame(spark, [(k, "a") for k in range(6)]))
    table.compact()
    table.write(frame(spark, [(k, "b") for k in range(6)]))
    table.compact()
    table.write(changes(spark, [(0, None, "delete"), (9, "c", "insert")]))
    kept = {p for folder in ("_changes", "_log") for p in (root / folder).rglob("*") if p.is_file()}
    if who == "spark":
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        spark.sql(f"VACUUM delta.`{root}` RETAIN 0 HOURS")
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    else:
        DeltaTable(root).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert kept <= {p for p in root.rglob("*") if p.is_file()}
    assert len(list(root.glob("_bucket=*/*.parquet"))) == len(TableContext.open(str(root)).files.base_table.files())
    now = {**dict.fromkeys(range(1, 6), "b"), 9: "c"}
    assert rows(table.read()) == now
    table.compact()
    table.write(frame(spark, [(1, "d")]))
    table.compact()
    assert rows(TableStore.open(spark, root).read()) == {**now, 1: "d"}
    assert_log_is_whole(TableContext.open(str(root)), servers)


def assert_log_is_whole(table: TableContext, servers: str) -> None:
    """The log folds to the table; older snapshots may have lost their files to the vacuum."""
    folded = {k: v for part in drain(servers, table.log.settings.topic, PARTITIONS) for k, v in part}
    assert {k: v for k, v in folded.items() if v is not None} == rows_of(table)


@pytest.mark.parametrize("key", [["day", "id"], []], ids=["key", "append"])
def test_a_compaction_that_fails_leaves_no_files_of_its_other_tasks(tmp_path: Path, key: list[str]) -> None:
    options = {"compaction.auto": False} | ({"bucket": 2} if key else {})
    table = create_local(tmp_path / "t", "day int, id int", primary_key=key, partition_by="day", options=options)
    for number in range(20):
        table.write([{"day": 1, "id": number}, {"day": 2, "id": number}])
    before = set(tmp_path.rglob("*.parquet"))
    full = UnavailableError("the disk is full")
    with failing(ParquetFiles, "close", full, hits=range(2, 3)), pytest.raises(UnavailableError, match="disk is full"):
        table.compact()
    assert set(tmp_path.rglob("*.parquet")) == before
    table.compact()
    assert table.count() == 40
