"""An eventual log's stream is a true changelog: repeats fold away, and each change names the row it replaces."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.kafka.client.range_reader import BatchSize
from log_system.kafka.reader.tail_reader import read_tail
from snapshot.errors import InvalidInputError
from tablestore import TableStore
from tablestore.context import TableContext
from tablestore.streaming.eventual_stream import _limited
from tablestore.streaming.normalized_stream import LastOfPartition
from tablestore.write.writer import Writer
from tests.harness.changelog_follower import Auditor, keys_in_state
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table, publisher_of, write
from tests.harness.spark_tables import AVAILABLE, changes, frame, make, rows, shuffle_partitions
from tests.harness.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    with shuffle_partitions(spark, 1):
        yield


class Feeder:
    """Puts records into a table's log by hand."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer, self._topic = Producer({"bootstrap.servers": servers}), topic

    def send(self, *records: tuple[int, str | None]) -> None:
        """Send (key, value as JSON text or None)."""
        for key, value in records:
            text = None if value is None else f'{{"id":{key},"v":{value}}}'
            self._producer.produce(self._topic, text, f'{{"id":{key}}}', partition=0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0


VECTOR = [(1, '"a"'), (1, '"a"'), (1, '"b"'), (1, None), (1, None), (2, None), (1, '"c"'), (3, "null")]
EMITTED = [
    [(1, "a", "insert")],
    [(1, "a", "update_preimage"), (1, "b", "update_postimage")],
    [(1, "b", "delete")],
    [(1, "c", "insert")],
    [(3, None, "insert")],
]


def test_b52_the_vectors_of_flinks_operator(spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any) -> None:
    """`eventual`: a read folds duplicates as Flink's operator does."""
    name = topic()
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, name, log__consistency="eventual", bucket=1)
    feeder = Feeder(kafka.bootstrap_servers, name)
    feeder.send(*VECTOR[:4])
    auditor = Auditor(tmp_path / "c", lambda: table.read_stream(max_rows=1))
    seen = auditor.follow()
    # The query stops and goes on, with a repeat of what it has seen.
    feeder.send(*VECTOR[4:])
    assert seen + auditor.follow() == EMITTED
    feeder.send((1, '"c"'), (3, "null"))
    assert auditor.follow() == []
    # Within one micro-batch a key's changes fold into one.
    feeder.send((1, '"d"'), (1, '"e"'), (3, None), (3, "null"), (4, '"x"'), (4, None))
    whole = Auditor(tmp_path / "c", table.read_stream)
    whole.table = auditor.table
    assert sorted(whole.follow()[0]) == [(1, "c", "update_preimage"), (1, "e", "update_postimage")]


def test_b53_a_full_scan_seeds_the_state_and_follows_the_table_through_aborted_batches(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    """The state holds each key once, and survives restarts of the query."""
    # The arrow format has many rows to an offset.
    options = {"log__consistency": "eventual", "log__format": "arrow"}
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), **options)
    table.write(frame(spark, [(k, "a") for k in range(6)]))
    table.write(changes(spark, [(0, None, "delete"), (1, "b", "insert")]))
    auditor = Auditor(tmp_path / "c", table.read_stream)
    (seeds,) = auditor.follow()
    assert {kind for _, _, kind in seeds} == {"insert"}
    assert auditor.table == rows(table.read())
    # A repeat of seeded rows emits nothing; an update of one knows what it replaces.
    table.write(frame(spark, [(2, "a"), (3, "z")]))
    assert [sorted(b) for b in auditor.follow()] == [[(3, "a", "update_preimage"), (3, "z", "update_postimage")]]
    opened = TableContext.open(table.path)
    dying = Writer(opened, publisher_of(opened))
    with failing(Writer, "publish"), pytest.raises(Crash):
        write(dying, [(4, "committed")])
    before_commit = table_rows(spark, table)
    with failing(type(opened.files.log), "commit"), pytest.raises(Crash):
        write(Writer(opened, None), [(1, None), (5, "wrong"), (9, "wrong")])
    auditor.follow()
    assert auditor.table[9] == "wrong", "records are to be seen before their commit"
    table.recover()
    auditor.follow()
    assert auditor.table == rows(table.read()) == before_commit
    assert keys_in_state(tmp_path / "t" / "_streams") <= len(auditor.table) + 1, "the state holds keys twice"


def test_deleted_keys_leave_the_state(spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    table.write(frame(spark, [(k, "a") for k in range(20)]))
    auditor = Auditor(tmp_path / "c", lambda: table.read_stream(state=tmp_path / "states"))
    auditor.follow()
    assert keys_in_state(tmp_path / "states") == 20
    query = table.read_stream(state=tmp_path / "states").writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "c")).start()
    table.write(frame(spark, [(0, "a")]))
    query.processAllAvailable()
    reported = json.loads(query.recentProgress[-1].sources[0].latestOffset)
    query.stop()
    assert reported["stateRows"] == 20
    assert reported["stateBytes"] > 0
    table.write(changes(spark, [(k, None, "delete") for k in range(20)]))
    auditor.follow()
    assert (len(auditor.table), keys_in_state(tmp_path / "states")) == (0, 0)
    assert not (tmp_path / "t" / "_streams").exists()


def test_a_sink_that_reads_a_part_of_a_micro_batch_loses_no_state(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    table.write(frame(spark, [(k, "a") for k in range(20)]))

    def look(parts: bool) -> Auditor:
        auditor = Auditor(tmp_path / "c", table.read_stream)
        if parts:
            # The first rows, of one partition: other tasks do not run.
            query = table.read_stream().writeStream.foreachBatch(lambda b, _: b.take(1))
            query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(**AVAILABLE).start()
            query.awaitTermination()
        return auditor

    look(parts=True)
    table.write(frame(spark, [(k, "b") for k in range(0, 20, 2)]))
    look(parts=True)
    table.write(changes(spark, [(k, None, "delete") for k in range(0, 20, 5)]))
    auditor = look(parts=False)
    auditor.table = {k: "a" if k % 2 else "b" for k in range(20)}
    auditor.follow()
    assert auditor.table == rows(table.read())


def test_a_column_added_between_two_runs_is_null_before(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    table.write(frame(spark, [(1, "a"), (2, "a")]))
    found: list[Any] = []

    def follow() -> list[Any]:
        found.clear()
        query = table.read_stream().writeStream.foreachBatch(lambda b, _: found.extend(b.collect()))
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(**AVAILABLE).start().awaitTermination()
        return [(r["id"], r["v"], r.asDict().get("n"), r["_change_type"]) for r in found]

    assert len(follow()) == 2
    table.alter.add_column("n", "int")
    table.write(spark.createDataFrame([(1, "a", 7)], "id long, v string, n int"))
    assert follow() == [(1, "a", None, "update_preimage"), (1, "a", 7, "update_postimage")]


def test_a_checkpoint_of_a_release_before_is_refused(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    auditor = Auditor(tmp_path / "c", table.read_stream)
    auditor.follow()
    (offsets,) = (tmp_path / "c" / "offsets").glob("[0-9]*")
    *head, last = offsets.read_text().splitlines()
    offset = {name: value for name, value in json.loads(last).items() if name not in {"state", "origins"}}
    offsets.write_text("\n".join([*head, json.dumps(offset)]))
    (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
    table.write(frame(spark, [(1, "a")]))
    with pytest.raises(PySparkException, match=r"Start a new query, with a new checkpoint and scan_mode='full'"):
        auditor.follow()


def table_rows(spark: SparkSession, table: TableStore) -> dict[Any, Any]:
    return rows(TableStore.open(spark, table.path).read())


def test_a_query_killed_within_a_batch_repeats_and_loses_nothing(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    table.write(frame(spark, [(1, "a"), (2, "a")]))
    auditor = Auditor(tmp_path / "c", table.read_stream)
    auditor.follow()
    table.write(changes(spark, [(1, "b", "insert"), (2, None, "delete")]))
    auditor.follow()
    # The last micro-batch is done again: its commit is taken from the checkpoint.
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    (tmp_path / "c" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    auditor.table = {1: "a", 2: "a"}
    auditor.follow()
    assert auditor.table == {1: "b"}


def test_b52_normalize_is_in_the_plan_of_an_eventual_table_alone(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the plan of an `eventual` table has the normalize operator."""
    eventual = make(spark, tmp_path / "e", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    transactional = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic())
    assert eventual.log.shows_uncommitted
    assert not transactional.log.shows_uncommitted
    for stream, is_there in (
        (eventual.read_stream(), True),
        (eventual.read_stream(normalize=False), False),
        (transactional.read_stream(), False),
    ):
        stream.explain()
        assert ("tablestore-normalize" in capsys.readouterr().out) is is_there
    assert eventual.read_stream().dtypes == transactional.read_stream().dtypes
    with pytest.raises(InvalidInputError, match=r"needs log\.consistency='eventual'"):
        transactional.read_stream(normalize=True)
    with pytest.raises(InvalidInputError, match="max_rows of read_stream"):
        eventual.read_stream(max_snapshots=1)
    for wrong in ({"normalize": False}, {"normalize": False, "state_ttl": "1 d"}):
        with pytest.raises(InvalidInputError, match="need a normalized stream"):
            eventual.read_stream(state=None if "state_ttl" in wrong else tmp_path, **wrong)
    with pytest.raises(InvalidInputError, match="expected a duration"):
        eventual.read_stream(state_ttl="soon")
    with pytest.raises(InvalidInputError, match="creates a file only if it is absent"):
        eventual.read_stream(state="hdfs://somewhere/states")


def test_without_normalize_each_record_passes_as_it_is(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    name = topic()
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, name, log__consistency="eventual", bucket=1)
    Feeder(kafka.bootstrap_servers, name).send((1, '"a"'), (1, '"a"'), (2, None))
    found: list[Any] = []
    query = (
        table.read_stream(normalize=False, scan_mode="earliest")
        .writeStream.foreachBatch(lambda b, _: found.extend(tuple(row)[:4] for row in b.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(**AVAILABLE)
        .start()
    )
    query.awaitTermination()
    assert found == [
        (1, "a", "update_postimage", None),
        (1, "a", "update_postimage", None),
        (2, None, "delete", None),
    ]


def test_what_a_key_holds_is_compared_whatever_its_type(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    ddl = "`a b` string, m map<string, int>, s struct<x: double, l: array<map<int, string>>>, id2 int"
    table = TableStore.create(
        spark, tmp_path / "t", ddl, primary_key=["a b", "id2"], log_system="kafka",
        options={"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic(), "bucket": 2,
                 "log.consistency": "eventual"},
    )  # fmt: skip
    row = ("k", {"x": 1}, (float("nan"), [{1: "a"}]), 1)
    table.write(spark.createDataFrame([row], ddl))
    found: list[Any] = []

    def follow() -> list[Any]:
        found.clear()
        query = (
            table.read_stream(scan_mode="earliest")
            .writeStream.foreachBatch(lambda b, _: found.extend(b.collect()))
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(**AVAILABLE)
            .start()
        )
        query.awaitTermination()
        return [(r["_change_type"], r["m"]) for r in found]

    assert follow() == [("insert", {"x": 1})]
    table.write(spark.createDataFrame([row], ddl))
    assert follow() == []
    table.write(spark.createDataFrame([("k", {"x": 2}, row[2], 1)], ddl))
    assert follow() == [("update_preimage", {"x": 1}), ("update_postimage", {"x": 2})]


@pytest.mark.parametrize(
    ("begun", "ends", "rows_max", "expected"),
    [
        ([0, 0], [10, 10], 4, [2, 2]),
        ([0, 0], [1, 10], 6, [1, 5]),
        ([5, 5], [5, 10], 1, [5, 6]),
        ([5, 5], [5, 5], 9, [5, 5]),
        ([0, 0, 0], [9, 9, 9], 2, [1, 1, 0]),
    ],
)
def test_a_limit_is_shared_out(begun: list[int], ends: list[int], rows_max: int, expected: list[int]) -> None:
    assert _limited(begun, ends, rows_max) == expected


@pytest.mark.parametrize("held", [1, 3, 100_000])
def test_of_records_that_are_replaced_within_a_micro_batch_the_last_ones_count(
    kafka: Any, tmp_path: Path, topic: Any, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    name = topic()
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, name, log__consistency="eventual", bucket=1)
    dice = random.Random(held)
    sent = [(dice.randrange(9), None if dice.random() < 0.3 else f'"{n}"') for n in range(200)]
    Feeder(kafka.bootstrap_servers, name).send(*sent)
    # Few records fit, so that a key is in several pieces; and records come a few at a time.
    monkeypatch.setattr("log_system.kafka.reader.tail_reader._HELD_RECORDS", held)
    monkeypatch.setattr("log_system.kafka.client.range_reader.BATCH", BatchSize(first=7, records=7))
    (split,) = table.log.tail().splits([(0, 0, 0)], newest=True)
    last_of = LastOfPartition(split, table.spec.primary_key).between(0, len(sent))
    found = [(row["id"], row["v"]) for batch in last_of for row in batch.to_pylist()]
    last = {key: None if text is None else text.strip('"') for key, text in sent}
    assert dict(found) == last
    assert len(found) == len(last)
    in_order = sorted(last, key=lambda key: max(n for n, (other, _) in enumerate(sent) if other == key))
    assert [key for key, _ in found] == in_order
    newest = list(read_tail(table.log.settings, 0, 0, len(sent), newest=True))
    assert (sum(batch.num_rows for batch in newest) == len(last)) is (held > len(sent))


def test_a_stream_begins_after_a_compaction_that_is_the_newest_snapshot(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Any
) -> None:
    """Its entry in the index comes with the next write; the log ends where it does for the snapshot before."""
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    table.write(frame(spark, [(1, "a"), (2, "a")]))
    table.compact()
    newest = table.snapshots(1)[0].id
    assert TableContext.open(table.path).index.get(newest) is None
    table.tags.create("compacted", newest)
    modes: tuple[dict[str, Any], ...] = (
        {"scan_mode": "from-snapshot", "snapshot": newest + 1},
        {"scan_mode": "from-tag", "tag": "compacted"},
    )
    streams = [lambda mode=mode: table.read_stream(**mode) for mode in modes]
    auditors = [Auditor(tmp_path / f"c{number}", stream) for number, stream in enumerate(streams)]
    assert [auditor.follow() for auditor in auditors] == [[], []]
    table.write(frame(spark, [(3, "b")]))
    assert [auditor.follow() for auditor in auditors] == [[[(3, "b", "insert")]]] * 2
