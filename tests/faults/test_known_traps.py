"""Known traps, each named for its story: where other systems with a log lose or double data, often without a word."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import latest_offsets
from log_system.local_kafka.owned import LocalKafka
from snapshot.records import CommitId
from tablestore import TableStore
from tests.crash.kill_points import PRODUCER_CALLS
from tests.harness.local_writes import write
from tests.harness.own_messages import own_messages
from tests.harness.spark_tables import AVAILABLE, frame, make
from tests.harness.table_audit import audit
from tests.harness.table_harness import PARTITIONS, TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as a crash does between the sink's commit and Spark's own commit log."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_paimon_9666_a_batch_replayed_after_sparks_commit_log_was_lost_is_written_once(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """An append table written by the user's own ``foreachBatch``; then its checkpoint is deleted too."""
    source, name, checkpoint = make(spark, tmp_path / "source", key=False), topic(), tmp_path / "checkpoint"
    sink = make(spark, tmp_path / "sink", kafka.bootstrap_servers, name)

    def run() -> None:
        def land(batch: DataFrame, number: int) -> None:
            sink.write(batch, batch=("job", number))

        stream = source.read_stream(max_snapshots=1).select("id", "v").writeStream.foreachBatch(land)
        stream.option("checkpointLocation", str(checkpoint)).trigger(**AVAILABLE).start().awaitTermination()

    source.write(frame(spark, [(1, "a")]))
    source.write(frame(spark, [(2, "b")]))
    run()
    made = sink.snapshots()[0].id
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    forget_commit(checkpoint, last)
    run()
    assert sink.snapshots()[0].id == made
    shutil.rmtree(checkpoint)
    caplog.clear()
    run()
    assert sink.snapshots()[0].id == made
    assert "write job:0 landed before (the newest under that name is batch" in caplog.text
    assert "its rows are skipped: give it a new name" in caplog.text
    audit(Path(sink.path), kafka.bootstrap_servers, name, PARTITIONS)


@pytest.mark.parametrize("way", ["write_stream", "format"])
def test_a_query_whose_checkpoint_was_deleted_writes_again_and_says_so(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    source, checkpoint = make(spark, tmp_path / "source", key=False), tmp_path / "checkpoint"
    sink = make(spark, tmp_path / "sink", key=False)
    other = make(spark, tmp_path / "other", key=False)

    def run(into: TableStore, folder: Path) -> None:
        stream = source.read_stream().select("id", "v")
        if way == "write_stream":
            query = into.write_stream(stream, checkpoint=folder, trigger=AVAILABLE)
        else:
            writer = stream.writeStream.format("tablestore").option("checkpointLocation", str(folder))
            query = writer.option("path", into.path).trigger(**AVAILABLE).start()
        query.awaitTermination()

    source.write(frame(spark, [(1, "a")]))
    run(sink, checkpoint)
    source.write(frame(spark, [(2, "b")]))
    run(sink, checkpoint)
    run(other, tmp_path / "another")
    assert "started over" not in caplog.text
    shutil.rmtree(checkpoint)
    run(sink, checkpoint)
    assert sorted(tuple(row) for row in sink.read().collect()) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
    if way == "write_stream":
        # The other commits in a process that Spark starts, whose log goes to Spark's.
        assert caplog.text.count("the first of a query that has started over") == 1


def test_a_number_below_one_that_has_landed_is_not_written_and_never_skipped_without_a_word(
    rig: TableHarness, caplog: pytest.LogCaptureFixture
) -> None:
    writer = rig.writer()
    write(writer, changes(1), CommitId("job", 5, durable=True))
    assert writer.publish_landed(CommitId("job", 6, durable=True)) is None
    assert not own_messages(caplog)
    found = writer.publish_landed(CommitId("job", 0, durable=True))
    assert found is not None
    assert "write job:0 landed before (the newest under that name is batch 5" in caplog.text


def test_offsets_that_point_at_a_control_record_are_read_from(rig: TableHarness) -> None:
    rig.write(1)
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        for partition in range(PARTITIONS):
            producer.produce(rig.topic, b"{}", b"{}", partition)
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction()
    rig.write(2)
    entry = rig.table.index.get(2)
    assert entry is not None
    for partition, held in enumerate(entry.partitions):
        consumer = rig.log.client.consumer("stranger", **{"enable.partition.eof": True})
        consumer.assign([TopicPartition(rig.topic, partition, held.start)])
        first = consumer.poll(20)
        consumer.close()
        assert first is not None
        # At the start is the marker of snapshot 1, then what was aborted and its marker.
        assert first.offset() == held.start + 3
    assert rig.feed(1) == [(2, *change) for change in changes(2)]
    rig.audit()


def test_a_plain_consumers_lag_never_reaches_zero_and_ours_does(rig: TableHarness) -> None:
    rig.write(1, 2)
    group = {"bootstrap.servers": rig.servers, "group.id": f"plain-{rig.topic}", "isolation.level": "read_committed"}
    consumer = Consumer({**group, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    partitions = [TopicPartition(rig.topic, p, 0) for p in range(PARTITIONS)]
    consumer.assign(partitions)
    last = dict.fromkeys(range(PARTITIONS), 0)
    for message in consumer.consume(20, 20):
        last[message.partition()] = max(last[message.partition()], message.offset() + 1)
    consumer.close()
    ends = latest_offsets(rig.log.client, rig.topic, read_committed=True)
    assert {p: ends[p] - last[p] for p in ends} == {0: 1, 1: 1}
    latest = rig.table.index.latest()
    assert latest is not None
    assert dict(enumerate(latest.ends)) == last
    assert rig.table.newest_visible() == rig.table.files.latest()


class OnceBurnt:
    """A real producer of which one call ends without an answer; it notes who uses it afterwards."""

    def __init__(self, producer: Any, name: str, after: bool, burnt: list[str]) -> None:
        self._producer = producer
        self._name = name
        self._after = after
        self._burnt = burnt
        self._fails = not burnt

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._fails and self._burnt:
                self._burnt.append(name)
            if not self._fails or name != self._name or self._burnt:
                return method(*args, **kwargs)
            if self._after:
                method(*args, **kwargs)
            self._burnt.append("failed")
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

        return call

    def __len__(self) -> int:
        return len(self._producer)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", [c for c in PRODUCER_CALLS.values() if c != "begin_transaction"])
def test_a_producer_is_never_used_again_after_an_error_that_leaves_its_outcome_unknown(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, after: bool
) -> None:
    rig.write(1)
    burnt: list[str] = []
    real = KafkaClient.producer
    monkeypatch.setattr(
        KafkaClient, "producer", lambda *args, **options: OnceBurnt(real(*args, **options), call, after, burnt)
    )
    with caplog.at_level(logging.WARNING):
        rig.write(2, 3)
    assert burnt[0] == "failed"
    # A poll only hands over what has happened.
    assert set(burnt[1:]) <= {"purge", "poll"}
    assert "publishing to the log failed (1 of 8 tries)" in caplog.text
    monkeypatch.undo()
    rig.audit()
