"""A minor compaction changes nothing that anybody reads, and bounds what a read has to merge."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import OutcomeUnknownError
from snapshot.schema.system_columns import BUCKET, SNAPSHOT
from snapshot.store.snapshot_files import SnapshotFiles, snapshots_of
from tablestore import TableStore, open_local
from tablestore.context import TableContext
from tablestore.local.handle import LocalHandle
from tablestore.maintenance import minor_compaction
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.minor_compaction import combine, runs_to_combine
from tablestore.maintenance.remove_orphans import remove_orphans
from tablestore.write.writer import Writer
from tests.crash.processes.expirer import compact_if_due_and_die
from tests.harness.faults import Crash, failing, preceded
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import drain, make_table, publisher_of, recover_at, rows_of, run_here, write
from tests.harness.spark_tables import frame, make, rows
from tests.harness.table_audit import assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2
BASE = {k: f"v{k}" for k in range(40)}


@pytest.fixture
def table(servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
    """A key table of 40 rows in its base, then four snapshots of changes, some of them of the same keys."""
    made = make_table(
        tmp_path / "t", servers, topic(), bucket=PARTITIONS, compaction__min_commits=4, compaction__ratio=1e9
    )
    writer = Writer(made, publisher_of(made))
    write(writer, list(BASE.items()))
    compact(made, run_here)
    for number in range(4):
        write(
            writer, [(0, f"w{number}"), (number + 1, None), (100 + number, "new"), *([(1, "back")] if number else [])]
        )
    return made


def combined(table: TableContext) -> int | None:
    layout = table.files.layout(table.files.latest())
    return combine(table, layout, runs_to_combine(layout, 2), run_here)


def states(table: TableContext) -> dict[int, dict[int, str]]:
    return {s: rows_of(table, s) for s in range(table.files.latest() + 1)}


def change_files(table: TableContext) -> tuple[DataFile, ...]:
    return table.files.layout(table.files.latest()).changes


def on_disk(table: TableContext) -> set[str]:
    return {path.name for path in Path(table.path, "_changes").glob("*.parquet")}


def reopened(table: TableContext) -> TableContext:
    return TableContext.open(table.path)


def audit(table: TableContext, servers: str) -> None:
    assert_log_is_table(Path(table.path), servers, table.log.settings.topic, PARTITIONS)


def test_every_snapshot_and_the_log_stay_as_they_were(table: TableContext, servers: str) -> None:
    before, log = states(table), drain(servers, table.log.settings.topic, PARTITIONS)
    newest = table.files.latest()
    assert combined(table) == newest + 1
    for again in (table, reopened(table)):
        assert states(again) == {**before, newest + 1: before[newest]}
        held = change_files(again)
        assert len(held) == PARTITIONS
        assert {snapshots_of(file) for file in held} == {range(3, newest + 1)}
        assert sum(file.rows for file in held) == len({0, 1, 2, 3, 4, 100, 101, 102, 103})
    write(Writer(reopened(table), publisher_of(table)), [(0, "later"), (102, None)])
    assert rows_of(table) == {k: v for k, v in before[newest].items() if k != 102} | {0: "later"}
    assert [record[: len(old)] for record, old in zip(drained(table, servers), log, strict=True)] == log
    audit(table, servers)
    compact(table, run_here)
    assert rows_of(reopened(table)) == rows_of(table, newest + 2)
    assert change_files(table) == ()
    audit(table, servers)


def drained(table: TableContext, servers: str) -> list[list[tuple[int, str | None]]]:
    return drain(servers, table.log.settings.topic, PARTITIONS)


@pytest.mark.parametrize(
    ("owner", "call", "after"),
    [(minor_compaction, "replace_files", False), (DeltaLog, "commit", False), (DeltaLog, "commit", True)],
    ids=["before the commit", "at the commit", "after the commit"],
)
def test_an_interrupted_one_loses_nothing_and_the_next_one_finishes(
    table: TableContext, servers: str, owner: object, call: str, after: bool
) -> None:
    before, newest = states(table), table.files.latest()
    with failing(owner, call, after=after), pytest.raises(Crash):
        combined(table)
    for again in (table, reopened(table)):
        assert {s: rows_of(again, s) for s in before} == before
        assert rows_of(again) == before[newest]
    write(Writer(reopened(table), publisher_of(table)), [(0, "later")])
    combined(reopened(table))
    assert len(change_files(table)) == PARTITIONS
    assert rows_of(table) == {**before[newest], 0: "later"}
    audit(table, servers)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "orphans"),
    [("file:after", 1), ("combine:after", 1), ("drop-folded:before", PARTITIONS), ("drop-folded:after", 0)],
)
def test_one_that_is_killed_loses_nothing_and_leaves_orphans_at_most(
    table: TableContext, servers: str, point: str, orphans: int
) -> None:
    before, newest = states(table), table.files.latest()
    process = CONTEXT.Process(target=compact_if_due_and_die, args=(table.path, point))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    again = reopened(table)
    assert again.files.latest() == newest + (point == "drop-folded:after")
    assert states(again) == {**before, again.files.latest(): before[newest]}
    write(Writer(reopened(table), publisher_of(table)), [(0, "later")])
    for file in Path(table.path, "_changes").glob("*.parquet"):
        os.utime(file, (0, 0))
    assert len(remove_orphans(reopened(table)).files) == orphans
    combined(reopened(table))
    assert {s: rows_of(reopened(table), s) for s in before} == before
    assert rows_of(reopened(table)) == before[newest] | {0: "later"}
    audit(table, servers)


def test_a_commit_whose_answer_was_lost_keeps_its_files(table: TableContext, servers: str) -> None:
    before = rows_of(table)
    with failing(DeltaLog, "commit", OutcomeUnknownError("no answer"), after=True), pytest.raises(OutcomeUnknownError):
        combined(table)
    assert rows_of(table) == rows_of(reopened(table)) == before
    assert len(change_files(table)) == PARTITIONS
    audit(table, servers)


def test_what_is_not_in_the_log_yet_is_published_as_it_was_written(table: TableContext, servers: str) -> None:
    """The changes of the snapshots that were combined, each of its own, not what they amount to."""
    silent = Writer(reopened(table), None)
    for value in ("a", "b", None):
        write(silent, [(0, value), (7, value)])
    combined(table)
    recover_at(Path(table.path), PARTITIONS)
    audit(table, servers)
    assert [v for part in drained(table, servers) for k, v in part if k == 0] == [
        "v0",
        "w0",
        "w1",
        "w2",
        "w3",
        "a",
        "b",
        None,
    ]


def test_a_compaction_in_between_wins_and_the_files_are_removed(table: TableContext, servers: str) -> None:
    before = rows_of(table)
    with preceded(minor_compaction, "replace_files", lambda: compact(reopened(table), run_here)):
        assert combined(table) is None
    assert rows_of(table) == rows_of(reopened(table)) == before
    assert not any("since" in name for name in on_disk(table))
    audit(table, servers)


def test_a_compaction_that_began_before_ends_after_it(table: TableContext, servers: str) -> None:
    """It has merged some of the combined snapshots, but not all of them."""
    began = reopened(table)

    def meanwhile() -> None:
        write(Writer(reopened(table), publisher_of(table)), [(0, "meanwhile"), (50, "x"), (5, None)])
        assert combined(reopened(table)) is not None

    with preceded(DeltaLog, "commit", meanwhile):
        compact(began, run_here)
    expected = {k: v for k, v in BASE.items() if k not in (2, 3, 4, 5)} | {0: "meanwhile", 1: "back", 50: "x"}
    expected |= {100 + number: "new" for number in range(4)}
    for again in (table, reopened(table)):
        assert rows_of(again) == expected
    compact(table, run_here)
    assert rows_of(table) == expected
    assert change_files(table) == ()
    audit(table, servers)


def test_writers_compactions_and_minor_ones_at_once_lose_nothing(table: TableContext, servers: str) -> None:
    def write_many(number: int) -> None:
        own = reopened(table)
        writer = Writer(own, publisher_of(own))
        for batch in range(6):
            write(writer, [(100 * number + batch % 3, str(batch)), (number, None)])

    def repeat(work: Callable[[TableContext], object]) -> None:
        for _ in range(6):
            work(reopened(table))

    def all_runs(own: TableContext) -> object:
        layout = own.files.layout(own.files.latest())
        files = runs_to_combine(layout, 2)
        return combine(own, layout, files, run_here) if files else None

    with ThreadPoolExecutor(4) as pool:
        jobs = [(write_many, 2), (write_many, 3), (repeat, all_runs), (repeat, lambda own: compact(own, run_here))]
        for done in [pool.submit(job, argument) for job, argument in jobs]:
            done.result()
    found = rows_of(table)
    assert {k: v for k, v in found.items() if k >= 200} == {200: "3", 201: "4", 202: "5", 300: "3", 301: "4", 302: "5"}
    assert 2 not in found
    assert 3 not in found
    audit(table, servers)


def test_expiry_removes_the_combined_files_only_when_no_snapshot_or_tag_needs_them(
    table: TableContext, servers: str
) -> None:
    before = states(table)
    newest = table.files.latest()
    originals = on_disk(table)
    open_local(table.path).tags.create("kept", newest - 1)
    combined(table)
    write(Writer(reopened(table), publisher_of(table)), [(0, "later")])
    recover_at(Path(table.path), PARTITIONS)
    expire(table, rules_of(table, "0 s", 1))
    assert table.files.oldest() > newest
    assert rows_of(reopened(table)) == {**before[newest], 0: "later"}
    assert rows_of(reopened(table), newest - 1) == before[newest - 1]
    gone = originals - on_disk(table)
    tagged = {file.path for file in table.files.tags.get("kept").layout.changes}
    assert gone
    assert not gone & tagged
    assert {file.path for file in change_files(table)} | tagged <= on_disk(table)
    assert remove_orphans(table, "2 h").files == ()


def test_columns_that_changed_in_between(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", bucket=PARTITIONS, compaction__auto="false")
    table.write(frame(spark, [(k, str(k)) for k in range(6)]))
    table.compact()
    table.write(frame(spark, [(0, "old"), (1, "old")]))
    table.alter.add_column("n", "int")
    table.alter.rename_column("v", "w")
    table.write(spark.createDataFrame([(1, "new", 7), (9, "new", None)], "id bigint, w string, n int"))
    expected = sorted(map(tuple, table.read().collect()), key=lambda row: row[0])
    context = TableContext.open(table.path)
    older = {s: sorted(map(str, table.read(snapshot=s).collect())) for s in range(context.files.latest() + 1)}
    assert combined(context) is not None
    again = TableStore.open(spark, table.path)
    assert sorted(map(tuple, again.read().collect()), key=lambda row: row[0]) == expected
    assert {s: sorted(map(str, again.read(snapshot=s).collect())) for s in older} == older
    again.compact()
    assert sorted(map(tuple, again.read().collect()), key=lambda row: row[0]) == expected


def test_it_comes_on_its_own_and_bounds_the_files_of_a_read(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", bucket=PARTITIONS, compaction__min_commits=4, compaction__ratio=1e9)
    table.write(spark.range(100).select("id", F.lit("base").alias("v")))
    expected = dict.fromkeys(range(100), "base")
    for number in range(12):
        table.write(frame(spark, [(number % 5, f"w{number}"), (200 + number, "new")]))
        expected |= {number % 5: f"w{number}", 200 + number: "new"}
        assert len({file.partition[SNAPSHOT] for file in change_files(TableContext.open(table.path))}) < 5
    assert rows(table.read()) == expected
    assert [each.operation for each in table.snapshots()].count("compact") >= 3


def test_a_failure_after_a_write_is_a_warning(table: TableContext, caplog: pytest.LogCaptureFixture) -> None:
    newest = table.files.snapshot(table.files.latest())
    with failing(DeltaLog, "commit", OSError("no")):
        assert LocalHandle(table).finish(newest) == newest
    assert "compacting after it failed" in caplog.text
    made = compact_if_due(table, run_here)
    assert made is not None
    assert len(change_files(table)) == PARTITIONS


def layout_of(sizes: list[int]) -> SnapshotFiles:
    files = tuple(
        DataFile(f"{n}.parquet", 1, size, {SNAPSHOT: str(n), BUCKET: "0"}) for n, size in enumerate(sizes, start=1)
    )
    return SnapshotFiles(len(sizes), 0, 0, (), files)


def chosen(sizes: list[int], runs_min: int = 10) -> int:
    return len(runs_to_combine(layout_of(sizes), runs_min))


def test_which_runs_are_combined() -> None:
    assert chosen([5] * 9) == 0
    assert chosen([5] * 10) == 10
    assert chosen([1000, *[5] * 9]) == 9
    assert chosen([60, *[5] * 9]) == 10
    assert chosen([5] * 9 + [2_000_000]) == 0
    assert chosen([-1, *[5] * 9]) == 0
    assert chosen([10_000] * 4) == 0
    assert chosen([10_000] * 5) == 5
    assert chosen([40_000, *[10_000] * 4]) == 5
    assert chosen([90_000, *[10_000] * 4]) == 4
    newest = runs_to_combine(layout_of([1000, *[5] * 9]), 10)
    assert {int(file.partition[SNAPSHOT]) for file in newest} == set(range(2, 11))


@pytest.mark.parametrize(("size", "writes"), [(1, 1000), (500, 1000), (10_000, 90)])
def test_a_change_is_written_again_a_few_times_and_runs_stay_few(size: int, writes: int) -> None:
    runs: list[int] = []
    again = 0
    for _ in range(writes):
        runs.append(size)
        count = chosen(runs)
        if count:
            merged = sum(runs[-count:])
            again += merged
            runs = [*runs[:-count], merged]
        assert len(runs) < 16
    assert again <= 6 * writes * size
