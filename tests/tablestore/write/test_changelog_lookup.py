"""``changelog-producer=lookup``: a write knows the rows it replaces, and files and log hold the true changelog."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log_system.index import LogIndex
from snapshot.errors import ConflictError, InvalidInputError
from snapshot.records import CommitId
from snapshot.row_kind import KIND, RowKind
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.options.table_options import parse_options
from tablestore.write import optimistic_retry
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness import local_writes
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import Change, drain_raw, make_table, publisher_of, rows_of, run_here
from tests.harness.log_audit import verify
from tests.harness.spark_tables import Follower, changes, frame, make, rows

PARTITIONS = 2
INSERT, BEFORE, AFTER, DELETE = RowKind
LOOKUP = {"changelog_producer": "lookup"}
Told = tuple[int, str | None, RowKind]
BOTH = pytest.mark.parametrize("log_format", ["arrow", "debezium-json"])


def local_table(path: Path, buckets: int = PARTITIONS) -> TableContext:
    """A table without a log."""
    options = {"changelog-producer": "lookup", "bucket": str(buckets)}
    return create_drop.create(TableDefinition(str(path), local_writes.SCHEMA, primary_key=["id"], options=options))


def told(table: TableContext, snapshot: int) -> list[Told]:
    """The changes of a snapshot as the table's files hold them."""
    held = table.files.changes(snapshot, table.options.buckets)
    found = [row for b in range(table.options.buckets) for batch in held.batches(b) for row in batch.to_pylist()]
    return [(row["id"], row["v"], RowKind(row[KIND])) for row in found]


def write_changes(table: TableContext, batch: list[Change]) -> list[Told]:
    """Write a batch; give the changes that became of it."""
    made = local_writes.write(Writer(table, None), batch)
    return [] if made is None else told(table, made.id)


def test_what_becomes_of_a_change(tmp_path: Path) -> None:
    table = local_table(tmp_path / "t", buckets=1)
    assert write_changes(table, [(1, "a"), (2, "a"), (2, "b")]) == [(1, "a", INSERT), (2, "b", INSERT)]
    assert write_changes(table, [(1, "a"), (2, "b"), (9, None)]) == []
    assert table.files.latest() == 1, "a write that changes nothing makes no snapshot"
    assert write_changes(table, [(2, "c"), (3, "a"), (1, None), (8, None)]) == [
        (2, "b", BEFORE),
        (2, "c", AFTER),
        (3, "a", INSERT),
        (1, "a", DELETE),
    ]
    compact(TableContext.open(table.path), run_here)
    assert write_changes(table, [(1, "again"), (2, None), (3, "b")]) == [
        (1, "again", INSERT),
        (2, "c", DELETE),
        (3, "a", BEFORE),
        (3, "b", AFTER),
    ]
    assert rows_of(table) == {1: "again", 3: "b"}


def check_changelog(before: dict[int, str], told: Iterable[Told]) -> dict[int, str]:
    """Apply a changelog strictly: each change must fit the rows it meets."""
    now = dict(before)
    for key, value, kind in told:
        if kind is INSERT:
            assert key not in now
        elif kind in (BEFORE, DELETE):
            assert now.pop(key) == value
            continue
        assert value is not None
        assert kind is INSERT or before[key] != value, "an update that changes nothing"
        now[key] = value
    return now


ONE_CHANGE = st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "", None]))


@settings(max_examples=25)
@given(batches=st.lists(st.lists(ONE_CHANGE, max_size=6) | st.none(), max_size=6), buckets=st.integers(1, 3))
def test_any_batches_make_a_changelog_that_leads_from_snapshot_to_snapshot(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Change] | None], buckets: int
) -> None:
    """None in place of a batch is a compaction."""
    table = local_table(tmp_path_factory.mktemp("t") / "t", buckets)
    now: dict[int, str] = {}
    for batch in batches:
        if batch is None:
            compact(TableContext.open(table.path), run_here)
            continue
        now = check_changelog(now, write_changes(table, batch))
        assert now == rows_of(table)
    wanted: dict[int, str | None] = {}
    for batch in batches:
        wanted |= dict(batch or [])
    assert now == {k: v for k, v in wanted.items() if v is not None}


def test_a_large_batch_is_resolved_too(tmp_path: Path) -> None:
    table = local_table(tmp_path / "t")
    write_changes(table, [(k, "a") for k in range(30_000)])
    changed = write_changes(table, [(k, "a" if k % 3 else "b") for k in range(25_000, 60_000)])
    kinds = [kind for _, _, kind in changed]
    assert (kinds.count(INSERT), kinds.count(BEFORE), kinds.count(AFTER)) == (30_000, 1_666, 1_666)


def test_a_commit_in_between_makes_the_write_look_again(tmp_path: Path) -> None:
    table = local_table(tmp_path / "t", buckets=1)
    write_changes(table, [(1, "a")])
    others = iter([[(1, "other")], None, [(1, None)]])
    writer = Writer(table, None)

    def staged(stager: Any) -> Any:
        files = local_writes.staged(stager, [(1, "mine")])
        other = next(others, "done")
        if other is None:
            compact(TableContext.open(table.path), run_here)
        elif other != "done":
            local_writes.write(Writer(table, None), other)
        return files

    made = writer.write(staged)
    assert made is not None
    assert told(table, made.id) == [(1, "other", BEFORE), (1, "mine", AFTER)], "a compaction in between changes nothing"
    assert sorted(p.name for p in (tmp_path / "t" / "_changes").rglob("*.parquet")) == sorted(
        Path(f.path).name for s in range(5) for files in table.files.changes(s, 1).files.values() for f in files
    ), "what was staged in vain is removed"


def test_a_write_that_never_gets_through_says_so_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = local_table(tmp_path / "t", buckets=1)
    monkeypatch.setattr(optimistic_retry, "RETRIES_MAX", 3)
    count = iter(range(100))

    def staged(stager: Any) -> Any:
        files = local_writes.staged(stager, [(1, "mine")])
        local_writes.write(Writer(table, None), [(2, f"other {next(count)}")])
        return files

    with pytest.raises(ConflictError, match=r"committed 3 times.*use a table without changelog-producer='lookup'"):
        Writer(table, None).write(staged)
    assert rows_of(table) == {2: "other 2"}


def test_writers_at_once_make_one_changelog(tmp_path: Path) -> None:
    table = local_table(tmp_path / "t")

    def run(name: str) -> None:
        mine, dice = TableContext.open(table.path), random.Random(name)
        for number in range(15):
            batch = [(dice.randrange(8), dice.choice([f"{name}{number}", None])) for _ in range(3)]
            local_writes.write(Writer(mine, None), batch)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, "abc"))
    now: dict[int, str] = {}
    for snapshot in range(1, table.files.latest() + 1):
        now = check_changelog(now, told(table, snapshot))
        assert now == rows_of(table, snapshot)


def logged(table: TableContext, servers: str) -> list[list[tuple[int, str, RowKind]]]:
    """The log as a stranger reads it, by the kinds that its format keeps."""
    found: list[list[tuple[int, str, RowKind]]] = []
    for messages in drain_raw(servers, table.log.settings.topic, PARTITIONS):
        if table.log.settings.format == "arrow":
            batches = table.log.settings.codec().decode([None] * len(messages), [m.value() for m in messages]).batch
            found.append([(row["id"], row["v"], RowKind(row[KIND])) for row in batches.to_pylist()])
            continue
        partition = []
        for message in messages:
            record = json.loads(message.value())
            assert (record["after"] is None) == (record["op"] == "d") != (record["before"] is None)
            row = record["before"] or record["after"]
            assert json.loads(message.key()) == {"id": row["id"]}
            partition.append((row["id"], row["v"], DELETE if record["op"] == "d" else INSERT))
        found.append(partition)
    return found


@BOTH
@pytest.mark.parametrize("size", [{}, {"publish__driver_rows_max": 1, "publish__transaction_rows_max": 2}])
def test_the_log_holds_the_changelog_after_any_crash(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], log_format: str, size: dict[str, int]
) -> None:
    servers = kafka.bootstrap_servers
    table = make_table(tmp_path / "t", servers, topic(), log__format=log_format, **LOOKUP, **size)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    dice = random.Random(log_format)
    crashes = [(LogIndex, "put", False), (type(publisher), "publish", False), (LogIndex, "put", True)]
    for number in range(9):
        batch = [(dice.randrange(5), dice.choice([f"{number}", "x", None])) for _ in range(4)]
        if number % 2:
            owner, name, after = crashes[number // 2 % 3]
            with failing(owner, name, after=after), pytest.raises(Crash):
                local_writes.write(writer, [*batch, (7, f"{number}")], CommitId("q", number, durable=True))
            publisher.discard()
            table = TableContext.open(table.path)
            publisher = publisher_of(table)
            writer = Writer(table, publisher)
            local_writes.write(writer, [(99, "replayed")], CommitId("q", number, durable=True))
        else:
            local_writes.write(writer, batch)
    recover(table, publisher)
    publisher.discard()
    expected: list[list[tuple[int, Any, RowKind]]] = [[] for _ in range(PARTITIONS)]
    for snapshot in range(1, table.files.latest() + 1):
        held = table.files.changes(snapshot, PARTITIONS)
        for bucket in range(PARTITIONS):
            for row in (row for batch in held.batches(bucket) for row in batch.to_pylist()):
                kind = RowKind(row[KIND])
                if log_format != "arrow":
                    kind = DELETE if kind in (BEFORE, DELETE) else INSERT
                expected[bucket].append((row["id"], row["v"], kind))
    assert logged(table, servers) == expected
    assert 99 not in rows_of(table), "a batch that landed is not written again"
    report = verify(TableContext.open(table.path))
    assert report.ok, str(report)


@BOTH
def test_a_stream_reads_the_changelog(
    spark: Any, kafka: Any, tmp_path: Path, topic: Callable[[], str], log_format: str
) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__format=log_format, **LOOKUP)
    follower = Follower(tmp_path / "c", table.read_stream)
    table.write(frame(spark, [(1, "a"), (2, "a"), (3, "a")]))
    assert {row[:3] for row in follower.rows()} == {(1, "a", "insert"), (2, "a", "insert"), (3, "a", "insert")}
    table.write(changes(spark, [(1, "b", "insert"), (2, None, "delete"), (3, "a", "insert"), (4, None, "delete")]))
    before, after = ("update_preimage", "update_postimage") if log_format == "arrow" else ("delete", "insert")
    assert {row[:3] for row in follower.rows()} == {(1, "a", before), (1, "b", after), (2, "a", "delete")}
    assert rows(table.read()) == {1: "b", 3: "a"}


def test_every_door_of_spark_looks_up(spark: Any, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", **LOOKUP)
    table.write(frame(spark, [(k, "a") for k in range(6)]))
    fresh = spark.range(0, 8, numPartitions=4).selectExpr("id", "if(id < 3, 'a', 'b') v")
    fresh.union(fresh).write.format("tablestore").mode("append").save(str(tmp_path / "t"))
    opened = TableContext.open(table.path)
    assert check_changelog(dict.fromkeys(range(6), "a"), told(opened, 2)) == rows(table.read())
    assert len(told(opened, 2)) == 3 * 2 + 2
    source = table.read_stream().selectExpr("id", "'c' v")
    query = table.write_stream(source, checkpoint=str(tmp_path / "c"), trigger={"availableNow": True})
    query.awaitTermination()
    assert {kind for _, _, kind in told(opened, 3)} == {BEFORE, AFTER}
    assert rows(table.read()) == dict.fromkeys(range(8), "c")


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"changelog-producer": "lookup"}, [], "needs a primary key"),
        ({"changelog-producer": "lookup"}, ["id"], "needs log.format='arrow' or 'debezium-json'"),
        (
            {"changelog-producer": "lookup", "log.format": "arrow", "log.consistency": "eventual"},
            ["id"],
            "needs log.consistency='transactional'",
        ),
        ({"log.changelog-mode": "all"}, ["id"], "not supported: the log contains every change"),
        ({"log.key.format": "json"}, ["id"], "not supported: the key of a record is always JSON"),
        ({"changelog-producer": "input"}, ["id"], "needs log.format='arrow' or 'debezium-json'"),
        ({"log.compacted": "true", "log.format": "debezium-json"}, ["id"], "has no null value"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], key: list[str], message: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.topic": "t", **options}
    with pytest.raises(InvalidInputError, match=message):
        parse_options(given, log_system="kafka", primary_key=key)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"changelog-producer": "lookup", "log.format": "debezium-json"}, ["id"]),
        ({"log.format": "debezium-json"}, ["id"]),
    ],
)
def test_options_that_go_together(options: dict[str, str], key: list[str]) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.topic": "t", **options}
    assert parse_options(given, log_system="kafka", primary_key=key).log is not None
