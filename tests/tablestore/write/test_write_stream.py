"""A streaming write lands each micro-batch once, in table and log, however the query ends and starts again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import InvalidInputError, UnavailableError
from tablestore import TableStore
from tablestore.spark.query_checkpoint import SINK
from tablestore.write import publish
from tests.harness.faults import failing
from tests.harness.local_writes import drain
from tests.harness.spark_tables import AVAILABLE, changes, forget_last_commit, frame, make, rows
from tests.harness.suspend import PATIENT, suspend
from tests.harness.table_audit import assert_log_is_table

BY_HANDLE, BY_FORMAT = "write_stream", "format"
STEADY = {"processingTime": "0 seconds"}


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> TableStore:
    """A table whose stream is what is written: deterministic, and it goes on where the checkpoint says."""
    return make(spark, tmp_path / "source", key=False)


@pytest.fixture
def sink(spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    return make(spark, tmp_path / "sink", servers, topic())


def begin(
    way: str, stream: DataFrame, sink: TableStore, checkpoint: Path, mode: str = "append",
    trigger: Mapping[str, Any] = AVAILABLE,
) -> StreamingQuery:  # fmt: skip
    if way == BY_HANDLE:
        return sink.write_stream(stream, checkpoint=checkpoint, output_mode=mode, trigger=trigger)
    writer = stream.writeStream.format("tablestore").option("checkpointLocation", str(checkpoint))
    return writer.option("path", sink.path).outputMode(mode).trigger(**trigger).start()


def run(way: str, stream: DataFrame, sink: TableStore, checkpoint: Path, mode: str = "append") -> None:
    """Run the query to the end of what there is."""
    begin(way, stream, sink, checkpoint, mode).awaitTermination()


def audit(sink: TableStore, servers: str) -> None:
    assert sink.options.log is not None
    assert_log_is_table(Path(sink.path), servers, sink.options.log.kafka.topic, sink.options.buckets)


@pytest.mark.parametrize("way", [BY_HANDLE, BY_FORMAT])
def test_each_batch_lands_once_across_restarts_and_lost_commit_logs(
    spark: SparkSession, servers: str, source: TableStore, sink: TableStore, tmp_path: Path, way: str
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def stream() -> DataFrame:
        return source.read_stream(max_snapshots=1).select("id", "v")

    source.write(frame(spark, [(1, "a"), (2, "b")]))
    run(way, stream(), sink, checkpoint)
    source.write(frame(spark, [(2, "B")]))
    source.write(frame(spark, [(3, "c")]))
    run(way, stream(), sink, checkpoint)
    assert rows(sink.read()) == {1: "a", 2: "B", 3: "c"}
    assert [s.rows for s in sink.snapshots()] == [1, 1, 2, 0]

    forget_last_commit(checkpoint)
    run(way, stream(), sink, checkpoint)
    assert sink.snapshots()[0].id == 3
    source.write(frame(spark, [(4, "d")]))
    forget_last_commit(checkpoint)
    run(way, stream(), sink, checkpoint)
    assert rows(sink.read()) == {1: "a", 2: "B", 3: "c", 4: "d"}
    assert sink.snapshots()[0].id == 4
    audit(sink, servers)


@pytest.mark.parametrize("way", [BY_HANDLE, BY_FORMAT])
@pytest.mark.parametrize("expired", [False, True], ids=["whole", "expired"])
def test_a_checkpoint_that_was_set_back_is_refused_and_no_row_is_left_out(
    spark: SparkSession, source: TableStore, tmp_path: Path, way: str, *, expired: bool
) -> None:
    """Its query plans other batches under the numbers of those that the table has."""
    checkpoint, copy, newest = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "newest"
    sink = make(spark, tmp_path / "sink", key=False)

    def stream() -> DataFrame:
        return source.read_stream().select("id", "v")

    def parquet() -> set[Path]:
        return {p for p in Path(sink.path).rglob("*.parquet") if "_delta_log" not in p.parts}

    for number in range(3):
        source.write(frame(spark, [(number, "a")]))
        run(way, stream(), sink, checkpoint)
        if number == 0:
            shutil.copytree(checkpoint, copy)
    if expired:
        sink.maintenance.expire(older_than="0 s", keep_last=1)
    before = parquet()
    checkpoint.rename(newest)
    shutil.copytree(copy, checkpoint)
    source.write(frame(spark, [(3, "a")]))
    with pytest.raises(StreamingQueryException, match=r"written another batch 1 before \(its newest here is 2\)"):
        run(way, stream(), sink, checkpoint)
    assert parquet() == before
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    run(way, stream(), sink, checkpoint)
    assert rows(sink.read()) == dict.fromkeys(range(4), "a")


@pytest.mark.parametrize("way", [BY_HANDLE, BY_FORMAT])
@pytest.mark.parametrize("copied", [0, 1], ids=["none", "one"])
def test_a_table_that_was_set_back_below_its_checkpoint_is_refused(
    spark: SparkSession, source: TableStore, tmp_path: Path, way: str, copied: int
) -> None:
    """It lacks batches that the query does not read again; a batch without rows has none to lack."""
    checkpoint, copy, newest = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "newest"
    sink = make(spark, tmp_path / "sink", key=False)
    path = Path(sink.path)

    def stream() -> DataFrame:
        return source.read_stream().select("id", "v").where("v = 'a'")

    def step(number: int, value: str) -> None:
        source.write(frame(spark, [(number, value)]))
        run(way, stream(), sink, checkpoint)

    step(0, "b")
    for number in range(1, 4):
        if number == 1 + copied:
            shutil.copytree(path, copy)
        step(number, "a")
    step(4, "b")
    path.rename(newest)
    shutil.copytree(copy, path)
    expected = f"written batch 3 before, and its newest here is {'batch 1' if copied else 'none'}: the table was set"
    with pytest.raises(StreamingQueryException, match=expected):
        step(5, "a")
    assert sink.snapshots()[0].id == copied
    assert not {p.name for p in path.rglob("*.parquet")} - {p.name for p in copy.rglob("*.parquet")}
    shutil.rmtree(path)
    newest.rename(path)
    step(6, "a")
    assert rows(sink.read()) == dict.fromkeys((1, 2, 3, 5, 6), "a")


@pytest.mark.parametrize("way", [BY_HANDLE, BY_FORMAT])
def test_a_query_goes_on_in_no_table_created_again(
    spark: SparkSession, source: TableStore, tmp_path: Path, way: str
) -> None:
    def stream() -> DataFrame:
        return source.read_stream().select("id", "v")

    checkpoint = tmp_path / "checkpoint"
    source.write(frame(spark, [(1, "a")]))
    first = make(spark, tmp_path / "t")
    run(way, stream(), first, checkpoint)
    first.drop()
    source.write(frame(spark, [(2, "b")]))
    again = make(spark, tmp_path / "t")
    with pytest.raises(StreamingQueryException, match="began to write into another table") as caught:
        run(way, stream(), again, checkpoint)
    assert (again.snapshots()[0].id, list(Path(again.path).rglob("part-*"))) == (0, [])
    # The message names the file to delete.
    [named] = [Path(word.strip("'")) for word in str(caught.value).split() if SINK in word]
    named.unlink()
    run(way, stream(), again, checkpoint)
    assert rows(again.read()) == {2: "b"}


def test_a_change_feed_of_a_key_table_is_written_with_its_deletes(
    spark: SparkSession, servers: str, sink: TableStore, tmp_path: Path
) -> None:
    source = make(spark, tmp_path / "keyed")
    source.write(frame(spark, [(1, "a"), (2, "b")]))
    run(BY_HANDLE, source.read_stream(), sink, tmp_path / "checkpoint")
    source.write(changes(spark, [(1, None, "delete"), (3, "c", "insert")]))
    run(BY_HANDLE, source.read_stream(), sink, tmp_path / "checkpoint")
    assert rows(sink.read()) == rows(source.read()) == {2: "b", 3: "c"}
    audit(sink, servers)


def test_an_aggregate_is_upserted_in_update_mode(
    spark: SparkSession, servers: str, source: TableStore, sink: TableStore, tmp_path: Path
) -> None:
    def counts() -> DataFrame:
        return source.read_stream().groupBy("id").agg(F.count("*").cast("string").alias("v"))

    source.write(frame(spark, [(1, "x"), (1, "y"), (2, "z")]))
    run(BY_HANDLE, counts(), sink, tmp_path / "checkpoint", "update")
    source.write(frame(spark, [(1, "w"), (3, "v")]))
    run(BY_HANDLE, counts(), sink, tmp_path / "checkpoint", "update")
    assert rows(sink.read()) == {1: "3", 2: "1", 3: "1"}
    audit(sink, servers)


def test_output_modes_that_cannot_be_kept_are_refused(
    spark: SparkSession, source: TableStore, sink: TableStore, tmp_path: Path
) -> None:
    stream = source.read_stream().select("id", "v")
    for table, mode, words in ((sink, "complete", "append, update"), (source, "update", "update needs a primary key")):
        with pytest.raises(InvalidInputError, match=words):
            table.write_stream(stream, checkpoint=tmp_path / "c", output_mode=mode)
    with pytest.raises(InvalidInputError, match="not a streaming one"):
        sink.write_stream(frame(spark, [(1, "a")]), checkpoint=tmp_path / "c")
    counts = source.read_stream().groupBy("id").agg(F.count("*").cast("string").alias("v"))
    source.write(frame(spark, [(1, "a")]))
    # Spark itself gives no Python sink an update mode.
    for mode, words in (("complete", "complete"), ("update", "Update mode")):
        with pytest.raises(PySparkException, match=words):
            run(BY_FORMAT, counts, sink, tmp_path / f"c-{mode}", mode)
    assert sink.snapshots()[0].id == 0


def test_columns_that_do_not_fit_fail_the_query_and_write_nothing(
    source: TableStore, sink: TableStore, tmp_path: Path, spark: SparkSession
) -> None:
    source.write(frame(spark, [(1, "a")]))
    for way in (BY_HANDLE, BY_FORMAT):
        with pytest.raises((InvalidInputError, PySparkException), match=r"missing \['v'\]"):
            run(way, source.read_stream().select("id"), sink, tmp_path / way)
    assert sink.snapshots()[0].id == 0


def test_an_error_of_the_store_is_the_whole_message_of_a_query(
    source: TableStore, tmp_path: Path, spark: SparkSession
) -> None:
    strict = TableStore.create(spark, tmp_path / "strict", "id bigint, v string not null")
    source.write(frame(spark, [(1, "a"), (2, None)]))
    stream = source.read_stream().select("id", "v")
    query = strict.write_stream(stream, checkpoint=str(tmp_path / "c"), trigger=AVAILABLE)
    expected = "NOT NULL column 'v' must not contain NULL; 1 of 2 rows of a batch do. Nothing was written."
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert str(caught.value) == str(query.exception()) == expected
    # What is not an error of the store keeps Spark's message.
    raising = stream.withColumn("v", F.raise_error(F.lit("the user's own")))
    broken = strict.write_stream(raising, checkpoint=str(tmp_path / "b"), trigger=AVAILABLE)
    with pytest.raises(StreamingQueryException, match="the user's own"):
        broken.awaitTermination()


def test_an_error_of_spark_in_the_users_own_foreach_batch_keeps_the_traceback(
    source: TableStore, tmp_path: Path, spark: SparkSession
) -> None:
    source.write(frame(spark, [(1, "a")]))

    def mistaken(batch: DataFrame, _: int) -> None:
        batch.selectExpr("CAST(v AS INT)").collect()

    writer = source.read_stream().select("id", "v").writeStream.foreachBatch(mistaken)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="in mistaken"):
        query.awaitTermination()


def test_an_error_of_the_store_in_the_users_own_foreach_batch_is_the_whole_message(
    source: TableStore, tmp_path: Path, spark: SparkSession
) -> None:
    strict = TableStore.create(spark, tmp_path / "strict", "id bigint, v string not null")
    source.write(frame(spark, [(1, None)]))
    expected = "NOT NULL column 'v' must not contain NULL; 1 of 1 rows of a batch do. Nothing was written."

    def upsert(batch: DataFrame, number: int) -> None:
        strict.write(batch, batch=("mine", number))

    ends = {
        "one": lambda query: query.awaitTermination(),
        "timeout": lambda query: query.awaitTermination(600),
        "all": lambda query: query.processAllAvailable(),
        "any": lambda query: spark.streams.awaitAnyTermination(),
    }
    for name, end in ends.items():
        spark.streams.resetTerminated()
        writer = source.read_stream().select("id", "v").writeStream.foreachBatch(upsert)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        with pytest.raises(StreamingQueryException) as caught:
            end(query)
        assert str(caught.value) == str(query.exception()) == expected, name
        assert "STREAM_FAILED" in str(caught.value.__context__), name


def test_a_batch_whose_publishing_fails_is_committed_and_published_by_the_restart(
    spark: SparkSession, servers: str, source: TableStore, sink: TableStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(publish, "ATTEMPTS_MAX", 1)
    source.write(frame(spark, [(1, "a"), (2, "b")]))
    stream = source.read_stream().select("id", "v")
    down = UnavailableError("the broker is away")
    pending = pytest.raises(PySparkException, match=r"^table '.*snapshot 1 is committed.*recover")
    with failing(KafkaPublisher, "publish", down, hits=range(1, 99)), pending:
        run(BY_HANDLE, stream, sink, tmp_path / "checkpoint")
    assert rows(sink.read()) == {1: "a", 2: "b"}
    assert sink.options.log is not None
    assert drain(servers, sink.options.log.kafka.topic, 2) == [[], []]
    run(BY_HANDLE, stream, sink, tmp_path / "checkpoint")
    assert sink.snapshots()[0].id == 1
    audit(sink, servers)


def test_a_query_goes_on_when_publishing_is_possible_again(
    spark: SparkSession, servers: str, source: TableStore, sink: TableStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(publish, "ATTEMPTS_MAX", 1)
    for number in (1, 2):
        source.write(frame(spark, [(number, "a")]))
    stream = source.read_stream(scan_mode="earliest", max_snapshots=1).select("id", "v")
    with failing(KafkaPublisher, "publish", UnavailableError("the broker is away"), hits=range(2, 4)) as calls:
        run(BY_HANDLE, stream, sink, tmp_path / "checkpoint")
    assert calls() == 4
    assert sink.snapshots()[0].id == 2
    audit(sink, servers)


@pytest.mark.parametrize("way", [BY_HANDLE, BY_FORMAT])
def test_a_query_waits_for_the_broker_of_an_eventual_log(
    spark: SparkSession, source: TableStore, tmp_path: Path, topic: Callable[[], str], way: str
) -> None:
    with LocalKafka(properties=PATIENT) as broker:
        options = {"log__consistency": "eventual", "log__request_timeout": "4 s"}
        sink = make(spark, tmp_path / "sink", broker.bootstrap_servers, topic(), **options)
        source.write(frame(spark, [(1, "a")]))
        query = begin(way, source.read_stream().select("id", "v"), sink, tmp_path / "checkpoint", trigger=STEADY)
        query.processAllAvailable()
        suspend(broker.pid)
        source.write(frame(spark, [(2, "b")]))
        # Several times as long as a request may take.
        query.awaitTermination(12)
        os.kill(broker.pid, signal.SIGCONT)
        query.processAllAvailable()
        query.stop()
        assert rows(sink.read()) == {1: "a", 2: "b"}
        assert not sink.verify().differences


def test_a_handle_can_be_used_while_its_stream_runs(
    spark: SparkSession, servers: str, source: TableStore, sink: TableStore, tmp_path: Path
) -> None:
    query = sink.write_stream(
        source.read_stream().select("id", "v"),
        checkpoint=tmp_path / "checkpoint",
        trigger=STEADY,
        query_name="steady",
    )
    try:
        for number in range(3):
            source.write(frame(spark, [(number, "streamed")]))
            sink.write(frame(spark, [(100 + number, "written")]))
        query.processAllAvailable()
    finally:
        query.stop()
    assert rows(sink.read()) == dict.fromkeys(range(3), "streamed") | {100 + n: "written" for n in range(3)}
    audit(sink, servers)
