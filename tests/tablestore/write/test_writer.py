"""A write is one snapshot, published once; a refused write changes nothing at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import Commit, DeltaLog
from snapshot.errors import ConflictError, InvalidInputError, OutcomeUnknownError, UnavailableError
from snapshot.records import CommitId
from snapshot.staging import stage
from tablestore import PublishPendingError, TableStore
from tablestore.context import TableContext
from tablestore.write import publish
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, drain_raw, make_table, publisher_of, rows_of, write
from tests.harness.spark_tables import changes, frame, make, rows, state
from tests.harness.table_audit import assert_log_is_table

PARTITIONS = 2


@pytest.fixture
def table(spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    return make(spark, tmp_path / "t", servers, topic())


def topic_of(table: TableStore) -> str:
    assert table.options.log is not None
    return table.options.log.kafka.topic


def audit(table: TableStore, servers: str) -> None:
    assert_log_is_table(Path(table.path), servers, topic_of(table), table.options.buckets)


def test_b46_an_append_adds_rows_and_says_so(spark: SparkSession, servers: str, tmp_path: Path, topic) -> None:
    """Rows of a table without a key are in the files and in the log."""
    table = make(spark, tmp_path / "t", servers, name := topic(), key=False)
    first = table.write(frame(spark, [(1, "a"), (1, "a")]))
    second = table.write(spark.createDataFrame([("b", 2)], "v string, id int"))
    assert (first.id, first.operation, first.rows) == (1, "append", 2)
    assert (second.id, second.operation, second.rows) == (2, "append", 1)
    assert sorted(map(tuple, table.read().collect())) == [(1, "a"), (1, "a"), (2, "b")]
    published = [m for partition in drain_append(servers, name) for m in partition]
    assert sorted(published) == [(1, "a"), (1, "a"), (2, "b")]


def drain_append(servers: str, topic: str) -> list[list[tuple[int, str]]]:
    return [
        [(row["id"], row["v"]) for row in (json.loads(m.value()) for m in partition)]
        for partition in drain_raw(servers, topic, PARTITIONS)
    ]


@pytest.mark.parametrize(
    ("local", "few"),
    [(True, stage._FEW_ROWS), (True, 2), (False, stage._FEW_ROWS)],
    ids=["rows of this process", "many rows of this process", "a Spark job"],
)
def test_an_upsert_sets_rows_by_key_and_the_last_row_of_a_key_wins(
    spark: SparkSession, table: TableStore, servers: str, monkeypatch: pytest.MonkeyPatch, local: bool, few: int
) -> None:
    monkeypatch.setattr(stage, "_FEW_ROWS", few)

    def frame_of(*given: tuple[int, str]) -> Any:
        made = spark.createDataFrame(list(given), "id bigint, v string")
        return made if local else made.coalesce(1)

    table.write(frame_of((1, "a"), (2, "b")))
    made = table.write(frame_of((2, "B"), (3, "x"), (3, "y"), (3, "c")))
    assert (made.id, made.operation, made.rows) == (2, "upsert", 2)
    assert rows(table.read()) == {1: "a", 2: "B", 3: "c"}
    audit(table, servers)


def test_the_last_row_of_a_key_wins_across_the_partitions_of_a_frame(spark: SparkSession, table: TableStore) -> None:
    wide = spark.range(0, 60, 1, 6).selectExpr("id % 5 AS id", "cast(id AS string) AS v")
    table.write(wide)
    assert rows(table.read()) == {k: str(55 + k) for k in range(5)}


def test_b46_g16_deletes_by_change_type_and_by_key(spark: SparkSession, table: TableStore, servers: str) -> None:
    """Deletes are in the log, and the log folded by key equals the table."""
    table.write(frame(spark, [(k, "a") for k in range(4)]))
    mixed = table.write(
        changes(
            spark,
            [(0, None, "delete"), (1, "old", "update_preimage"), (1, "new", "update_postimage"), (9, "x", "insert")],
        )
    )
    assert (mixed.operation, mixed.rows) == ("upsert", 3)
    assert rows(table.read()) == {1: "new", 2: "a", 3: "a", 9: "x"}
    gone = table.delete(frame(spark, [(2,), (77,)], "id bigint"))
    assert (gone.operation, gone.rows) == ("delete", 2)
    assert rows(table.read()) == {1: "new", 3: "a", 9: "x"}
    audit(table, servers)
    deleted = [
        change for partition in drain(servers, topic_of(table), PARTITIONS) for change in partition if not change[1]
    ]
    assert sorted(deleted) == [(0, None), (2, None), (77, None)]


def test_a_delete_after_an_insert_in_one_frame_deletes_and_the_other_way_round(
    spark: SparkSession, table: TableStore
) -> None:
    table.write(changes(spark, [(1, "a", "insert"), (1, None, "delete"), (2, None, "delete"), (2, "b", "insert")]))
    assert rows(table.read()) == {2: "b"}


def test_columns_are_taken_by_name_in_any_case_and_widened(spark: SparkSession, table: TableStore) -> None:
    table.write(spark.createDataFrame([("a", 1, "insert")], "V string, ID int, _Change_Type string"))
    table.write(frame(spark, [("b", 2)], "V string, Id smallint"))
    table.write(spark.sql("SELECT 3 AS id, NULL AS v"))
    assert rows(table.read()) == {1: "a", 2: "b", 3: None}


@pytest.mark.parametrize("way", ["job", "local"])
def test_a_key_column_may_have_a_dot_in_its_name(spark: SparkSession, servers: str, tmp_path: Path, topic, way) -> None:
    ddl, log = "`a.id` bigint, `v.x` string, v struct<x: string>", {"kafka.bootstrap.servers": servers}
    options = {"bucket": PARTITIONS, "kafka.topic": topic(), **log}
    table = TableStore.create(spark, tmp_path / "t", ddl, primary_key=["a.id"], log_system="kafka", options=options)
    given = [(1, "a", ("inner",)), (2, "b", None)]
    if way == "local":
        table.write(spark.createDataFrame(pandas.DataFrame(given, columns=["a.id", "v.x", "v"]), ddl))
    else:
        table.write(frame(spark, given, ddl))
    table.delete(frame(spark, [(2,)], "`a.id` bigint"))
    for _ in range(2):
        found = table.read().where("`a.id` < 5 and `v.x` = 'a'").collect()
        assert [tuple(row) for row in found] == [(1, "a", ("inner",))]
        table.compact()
    stream = table.read_stream(scan_mode="earliest").select("`a.id`", "`v.x`", "_change_type")
    query = stream.writeStream.format("memory").queryName(f"dots_{way}").trigger(availableNow=True).start()
    query.awaitTermination()
    seen = set(map(tuple, spark.table(f"dots_{way}").collect()))
    assert seen == {(1, "a", "update_postimage"), (2, None, "delete"), (2, "b", "update_postimage")}


def test_a_frame_without_rows_makes_no_snapshot(spark: SparkSession, table: TableStore) -> None:
    before = state(table)
    assert table.write(frame(spark, [])) is None
    assert table.write(spark.createDataFrame([], "id bigint, v string")) is None
    assert table.write(changes(spark, [(1, "old", "update_preimage")])) is None
    assert table.delete(frame(spark, [], "id bigint")) is None
    assert state(table) == before


REFUSED = {
    "missing column": ("id bigint", [(1,)], r"missing \['v'\]"),
    "unknown column": ("id bigint, v string, w int", [(1, "a", 2)], r"unknown \['w'\]"),
    "wrong type": ("id bigint, v int", [(1, 2)], "'v'.*expected string, got int"),
    "narrowing": ("id decimal(20,0), v string", [(None, "a")], "'id'.*expected bigint"),
    "null key": ("id bigint, v string", [(1, "a"), (None, "b")], "primary key column 'id'.*NULL"),
    "null in NOT NULL": ("id bigint, v string", [(1, "a"), (2, None)], "NOT NULL column 'v'"),
    "unknown change type": ("id bigint, v string, _change_type string", [(1, "a", "upsert")], "_change_type.*insert"),
    "null change type": ("id bigint, v string, _change_type string", [(1, "a", None)], "_change_type.*insert"),
}


@pytest.fixture(scope="module")
def strict(spark: SparkSession, kafka: object, tmp_path_factory: pytest.TempPathFactory) -> TableStore:
    table = TableStore.create(
        spark, tmp_path_factory.mktemp("strict") / "t", "id bigint, v string NOT NULL", primary_key=["id"],
        log_system="kafka",
        options={"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": "strict", "bucket": PARTITIONS},
    )  # fmt: skip
    table.write(frame(spark, [(1, "a")]))
    return table


@pytest.mark.parametrize("way", ["local", "job", "format"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_frame_that_does_not_fit_is_refused_and_nothing_changes(
    spark: SparkSession, strict: TableStore, servers: str, case: str, way: str
) -> None:
    ddl, given, words = REFUSED[case]
    bad = spark.createDataFrame(given, ddl)
    before = state(strict), drain(servers, "strict", PARTITIONS)
    by_format = bad.write.format("tablestore").mode("append")
    with pytest.raises((InvalidInputError, PySparkException), match=words) as caught:
        by_format.save(strict.path) if way == "format" else strict.write(bad if way == "local" else bad.coalesce(1))
    assert way == "format" or isinstance(caught.value, InvalidInputError)
    assert (state(strict), drain(servers, "strict", PARTITIONS)) == before
    assert rows(strict.read()) == {1: "a"}


def test_deletes_need_only_their_key_even_where_columns_are_not_null(spark: SparkSession, strict: TableStore) -> None:
    strict.write(frame(spark, [(5, "a")]))
    strict.delete(frame(spark, [(5,)], "id int"))
    assert rows(strict.read()) == {1: "a"}


def test_a_table_without_a_key_takes_no_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", key=False)
    with pytest.raises(InvalidInputError, match="primary key"):
        table.delete(frame(spark, [(1,)], "id bigint"))
    with pytest.raises(InvalidInputError, match="primary key"):
        table.write(changes(spark, [(1, "a", "insert")]))
    with pytest.raises(InvalidInputError, match="lacks key columns"):
        make(spark, tmp_path / "k").delete(frame(spark, [("a",)], "v string"))
    assert table.snapshots()[0].id == 0


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_format_and_insert_into_write_like_the_handle(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str], key: bool
) -> None:
    table = make(spark, tmp_path / "t", servers, topic(), key=key)
    frame(spark, [(1, "a"), (2, "x")]).write.format("tablestore").mode("append").save(table.path)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW written USING tablestore OPTIONS (path '{table.path}')")
    spark.sql("INSERT INTO written VALUES (3, 'c')")
    spark.sql("INSERT INTO written SELECT 4L AS id, 'd' AS v")
    assert rows(table.read()) == {1: "a", 2: "x", 3: "c", 4: "d"}
    assert [s.rows for s in table.snapshots()] == [1, 1, 2, 0]
    if key:
        many = spark.range(0, 12, 1, 3).selectExpr("id % 2 AS id", "cast(id AS string) AS v")
        many.write.format("tablestore").mode("append").save(table.path)
        assert rows(table.read()) == {0: "10", 1: "11", 2: "x", 3: "c", 4: "d"}
        audit(table, servers)
    with pytest.raises(PySparkException, match=r"overwrite|Overwrite|truncate"):
        frame(spark, [(1, "a")]).write.format("tablestore").mode("overwrite").save(table.path)
    assert 4 in rows(table.read())


def test_a_named_batch_is_written_once_however_often_it_comes(
    spark: SparkSession, table: TableStore, servers: str
) -> None:
    first = table.write(frame(spark, [(1, "a")]), batch=("loader", 1))
    again = TableStore.open(spark, table.path)
    assert again.write(frame(spark, [(1, "not again")]), batch=("loader", 1)).id == first.id
    second = again.write(frame(spark, [(1, "b")]), batch=("loader", 2))
    assert again.write(frame(spark, [(1, "late")]), batch=("loader", 1)).id == first.id
    other = again.delete(frame(spark, [(1,)], "id bigint"), batch=("other", 1))
    assert (second.id, other.id) == (2, 3)
    assert rows(table.read()) == {}
    audit(table, servers)


def test_a_named_batch_that_died_before_it_was_published_is_published_when_it_comes_again(
    spark: SparkSession, table: TableStore, servers: str
) -> None:
    with failing(KafkaPublisher, "publish"), pytest.raises(Crash):
        table.write(frame(spark, [(1, "a")]), batch=("loader", 1))
    assert drain(servers, topic_of(table), PARTITIONS) == [[], []]
    TableStore.open(spark, table.path).write(frame(spark, [(1, "not again")]), batch=("loader", 1))
    assert rows(table.read()) == {1: "a"}
    audit(table, servers)


def test_a_broker_that_fails_leaves_a_committed_snapshot_that_the_next_write_publishes(
    spark: SparkSession, table: TableStore, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "ATTEMPTS_MAX", 2)
    down = UnavailableError("the broker is away")
    with failing(KafkaPublisher, "publish", down, hits=range(1, 3)), pytest.raises(PublishPendingError) as caught:
        table.write(frame(spark, [(1, "a")]))
    assert caught.value.snapshot == 1
    assert rows(table.read()) == {1: "a"}
    assert drain(servers, topic_of(table), PARTITIONS) == [[], []]
    table.write(frame(spark, [(2, "b")]))
    audit(table, servers)


@pytest.mark.parametrize("error", [OutcomeUnknownError("no answer"), ConflictError("the version exists")])
@pytest.mark.parametrize("durable", [True, False])
def test_a_commit_that_landed_but_was_reported_failed_is_not_committed_twice(
    servers: str, tmp_path: Path, topic: Callable[[], str], error: Exception, durable: bool
) -> None:
    path, name = tmp_path / "t", topic()
    table = make_table(path, servers, name, bucket=PARTITIONS)
    writer = Writer(table, publisher_of(table))
    write(writer, [(0, "before")])
    with failing(DeltaLog, "commit", error, after=True):
        made = write(writer, [(1, "a"), (2, "b")], CommitId("w", 1, durable=True) if durable else None)
    assert made is not None
    assert (made.id, table.files.latest()) == (2, 2)
    assert_log_is_table(path, servers, name, PARTITIONS)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("others", [1, 30])
def test_a_batch_that_landed_is_found_behind_the_commits_of_others_and_not_committed_again(
    servers: str, tmp_path: Path, topic, durable: bool, others: int
) -> None:
    """The answer to the first try is lost, and others commit before the second; then the whole batch is replayed."""
    table = make_table(tmp_path / "t", servers, name := topic(), compaction__auto=False)
    commit_id = CommitId("query", 7, durable=True) if durable else None
    real, tries = DeltaLog.commit, 0

    def land_without_answer(self: DeltaLog, *args: Any, **named: Any) -> Commit:
        nonlocal tries
        made = real(self, *args, **named)
        tries += 1
        if tries == 1:
            for number in range(others):
                write(Writer(TableContext.open(table.path), None), [(100 + number, "other")])
            msg = "no answer"
            raise OutcomeUnknownError(msg)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "commit", land_without_answer)
        made = write(Writer(table, None), [(1, "a"), (2, "b")], commit_id)
    assert made is not None
    assert (made.id, tries, table.files.latest()) == (1, 1 + others, 1 + others)
    publisher = publisher_of(table)
    recover(table, publisher)
    if commit_id is not None:
        again = Writer(TableContext.open(table.path), publisher)
        assert again.publish_landed(commit_id) == made
        assert write(again, [(1, "a"), (2, "b")], commit_id) == made
        assert table.files.latest() == 1 + others
    publisher.discard()
    assert_log_is_table(tmp_path / "t", servers, name, PARTITIONS)


def test_a_commit_that_lost_the_race_uses_its_files_again(
    servers: str, tmp_path: Path, topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name, real = tmp_path / "t", topic(), DeltaLog.commit
    table = make_table(path, servers, name, bucket=PARTITIONS)
    other = TableContext.open(str(path))

    def commit_second(log: DeltaLog, version: int, **more: Any) -> Commit:
        monkeypatch.setattr(DeltaLog, "commit", real)
        write(Writer(other, publisher_of(other)), [(1, "theirs")])
        return real(log, version, **more)

    monkeypatch.setattr(DeltaLog, "commit", commit_second)
    made = write(Writer(table, publisher_of(table)), [(1, "ours"), (2, "ours")])
    assert made is not None
    assert made.id == 2
    listed = {f.path for f in table.files.log.files()}
    assert {str(p.relative_to(path / "_changes")) for p in (path / "_changes").rglob("*.parquet")} == listed
    assert rows_of(table) == {1: "ours", 2: "ours"}
    assert_log_is_table(path, servers, name, PARTITIONS)


def test_several_writers_at_once_are_published_in_the_order_of_their_snapshots(
    servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, name, writers, batches = tmp_path / "t", topic(), 3, 6
    make_table(path, servers, name, bucket=PARTITIONS)

    def run(number: int) -> list[int]:
        table = TableContext.open(str(path))
        writer = Writer(table, publisher_of(table))
        made = []
        for batch in range(batches):
            change = [(key, f"{number}.{batch}" if key % 4 else None) for key in range(batch, batch + 6)]
            made.append(write(writer, change).id)
        return made

    with ThreadPoolExecutor(writers) as pool:
        ids = [i for made in pool.map(run, range(writers)) for i in made]
    assert sorted(ids) == list(range(1, writers * batches + 1))
    assert_log_is_table(path, servers, name, PARTITIONS)
