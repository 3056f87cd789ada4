"""Topics that change under a query: deleted, created again, with fewer or more partitions, with open transactions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from log_system.kafka.client.topic import LOOK_SECONDS
from snapshot.errors import DataLostError
from tests.connectors.harness.lab import Lab, Stream, shipped
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import AVAILABLE
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
N = "n INT"
RESET = "properties__auto__offset__reset"
OTHER = "deleted and created again.*auto.offset.reset"


def rows(*numbers: int, partition: int = 0) -> list[Record]:
    return [Record(json.dumps({"n": n}).encode(), partition=partition) for n in numbers]


def ns(found: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in found)


def delete(wire: Wire, topic: str) -> None:
    wire.admin.delete_topics([topic])[topic].result()
    while topic in wire.topics():
        time.sleep(0.05)


def again(wire: Wire, topic: str, records: list[Record]) -> None:
    delete(wire, topic)
    wire.make(topic)
    wire.send(topic, records)


def planned(stream: Stream) -> Any:
    """Give the end of a micro-batch as it is in a checkpoint."""
    return json.loads(json.dumps(stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())))


def by(kind: str, topic: str) -> dict[str, Any]:
    return {"topic": topic} if kind == "topic" else {"topic": None, "topic_pattern": f"{topic}.*"}


@pytest.mark.parametrize("kind", ["topic", "topic-pattern"])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_topic_that_is_created_again_is_another_however_long_it_is(
    lab: Lab, made: Topics, kind: str, count: int
) -> None:
    topic = made()
    lab.wire.send(topic, rows(1, 2))
    streams = {
        reset: lab.stream(columns=N, **by(kind, topic), **{RESET: reset}) for reset in (None, "earliest", "latest")
    }
    assert all(ns(stream.run()) == [1, 2] for stream in streams.values())
    new = list(range(11, 11 + count))
    again(lab.wire, topic, rows(*new))
    time.sleep(LOOK_SECONDS)
    with pytest.raises(DataLostError, match=OTHER):
        streams[None].run()
    assert ns(streams["earliest"].run()) == new
    assert ns(streams["latest"].run()) == []
    lab.wire.send(topic, rows(99))
    assert ns(streams["earliest"].run()) == [99]
    assert ns(streams["latest"].run()) == [99]


@pytest.mark.parametrize("kind", ["topic", "topic-pattern"])
def test_a_topic_that_is_created_again_may_have_fewer_partitions_and_get_more(
    lab: Lab, made: Topics, kind: str
) -> None:
    topic = made(3)
    lab.wire.send(topic, rows(1) + rows(2, 22, partition=1) + rows(3, partition=2))
    look = {"scan__topic_partition_discovery__interval": "1 ms", RESET: "earliest"}
    often = lab.stream(columns=N, **by(kind, topic), **look)
    never = lab.stream(columns=N, **by(kind, topic), **look | {"scan__topic_partition_discovery__interval": "0"})
    assert ns(often.run()) == ns(never.run()) == [1, 2, 3, 22]
    again(lab.wire, topic, rows(11, 12))
    time.sleep(LOOK_SECONDS)
    assert ns(often.run()) == ns(never.run()) == [11, 12]
    lab.wire.grow(topic, 2)
    lab.wire.send(topic, rows(13, 14, 15, partition=1))
    assert ns(often.run()) == [13, 14, 15]


def test_a_topic_of_a_pattern_may_go_and_come_back(lab: Lab, made: Topics) -> None:
    one = made()
    two = lab.wire.make(f"{one}-two")
    lab.wire.send(one, rows(1))
    lab.wire.send(two, rows(2, 3))
    often = lab.stream(
        columns=N, **by("pattern", one), scan__topic_partition_discovery__interval="1 ms", **{RESET: "earliest"}
    )
    seldom = lab.stream(columns=N, **by("pattern", one))
    assert ns(often.run()) == ns(seldom.run()) == [1, 2, 3]
    delete(lab.wire, two)
    lab.wire.send(one, rows(4))
    assert ns(often.run()) == ns(seldom.run()) == [4]
    lab.wire.make(two)
    lab.wire.send(two, rows(5, 6, 7))
    assert ns(often.run()) == [5, 6, 7]


@pytest.mark.parametrize("count", [1, 5])
def test_a_micro_batch_that_is_repeated_does_not_take_another_topics_messages(
    lab: Lab, made: Topics, count: int
) -> None:
    """The query dies after the plan of a micro-batch is in its checkpoint, and the topic is created again."""
    topic = made()
    lab.wire.send(topic, rows(1, 2))
    stream = lab.stream(topic, N)
    stream.run()
    lab.wire.send(topic, rows(3, 4))
    end = planned(stream)
    new = list(range(11, 11 + count))
    again(lab.wire, topic, rows(*new))
    with pytest.raises(DataLostError, match=OTHER):
        lab.stream(topic, N).rows(stream.at, end)
    restarted = lab.stream(topic, N, **{RESET: "earliest"})
    assert restarted.rows(stream.at, end) == []
    restarted.at = end
    assert ns(restarted.run()) == new


def test_a_micro_batch_that_is_repeated_without_a_topic_of_the_pattern(lab: Lab, made: Topics) -> None:
    one = made()
    two = lab.wire.make(f"{one}-two")
    stream = lab.stream(columns=N, **by("pattern", one))
    stream.run()
    lab.wire.send(one, rows(1))
    lab.wire.send(two, rows(2, 3))
    end = planned(stream)
    delete(lab.wire, two)
    with pytest.raises(DataLostError, match=f"topic '{two}' was deleted"):
        lab.stream(columns=N, **by("pattern", one)).rows(stream.at, end)
    assert ns(lab.stream(columns=N, **by("pattern", one), **{RESET: "earliest"}).rows(stream.at, end)) == [1]


def test_a_task_whose_topic_is_another_by_now(lab: Lab, made: Topics) -> None:
    """The topic is created again after the micro-batch is planned, shorter than the task's range."""
    found: dict[str | None, Any] = {}
    for reset in (None, "earliest"):
        topic = made()
        stream = lab.stream(topic, N, **{RESET: reset})
        stream.run()
        lab.wire.send(topic, rows(1, 2, 3))
        end = planned(stream)
        (part,) = stream.reader.partitions(stream.at, end)
        again(lab.wire, topic, [])
        task = shipped(stream.reader)
        if reset is None:
            with pytest.raises(DataLostError, match=OTHER):
                list(task.read(part))
        else:
            found[reset] = [batch.num_rows for batch in task.read(part)]
            stream.at = end
            lab.wire.send(topic, rows(11))
            assert ns(stream.run()) == [11]
    assert found == {"earliest": []}


def test_a_run_of_what_is_available_ends_where_the_new_topic_ends(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, rows(*range(10)))
    stream = lab.stream(topic, N, maxRowsPerTrigger=4, **{RESET: "earliest"})
    stream.at = stream.reader.initialOffset()
    stream.reader.prepareForTriggerAvailableNow()
    end = planned(stream)
    assert ns(stream.rows(stream.at, end)) == [0, 1, 2, 3]
    stream.at = end
    again(lab.wire, topic, rows(11, 12))
    assert ns(stream.run()) == [11, 12]


def test_a_batch_read_that_ends_by_time_does_not_wait_for_open_transactions(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, [Record(b'{"n":1}', timestamp=1000)])
    producer = Producer({"bootstrap.servers": lab.wire.servers, "transactional.id": f"open-{topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b'{"n":2}', timestamp=1500)
    producer.flush(PATIENCE_SECONDS)
    lab.wire.send(topic, [Record(b'{"n":3}', timestamp=1800), Record(b'{"n":4}', timestamp=3000)])
    timed = {"scan__bounded__mode": "timestamp", "scan__bounded__timestamp_millis": 2000}
    stream = lab.stream(topic, N, **timed)
    assert ns(lab.read(topic, N, **timed)) == [1]
    assert ns(stream.run()) == [1]
    producer.commit_transaction(20)
    # A stream does wait: its bound is a time, whenever the transaction ends.
    until, found = time.monotonic() + PATIENCE_SECONDS, []
    while found != [2, 3] and time.monotonic() < until:
        found += ns(stream.run())
    assert found == [2, 3]
    assert ns(lab.read(topic, N, **timed)) == [1, 2, 3]


def test_a_read_ends_before_an_open_transaction_behind_aborted_ones(lab: Lab, made: Topics) -> None:
    topic = made()
    lab.wire.send(topic, rows(1))
    producer = Producer({"bootstrap.servers": lab.wire.servers, "transactional.id": f"open-{topic}"})
    producer.init_transactions(20)
    for _ in range(3):
        producer.begin_transaction()
        for record in rows(*range(50)):
            producer.produce(topic, record.value)
        producer.flush(PATIENCE_SECONDS)
        if _ < 2:
            producer.abort_transaction(20)
    assert ns(lab.read(topic, N)) == [1]
    assert ns(lab.stream(topic, N, maxRowsPerTrigger=3).run()) == [1]
    producer.abort_transaction(20)
    assert ns(lab.read(topic, N)) == [1]


def test_a_topic_that_was_cut_is_read_on_from_its_end(lab: Lab, made: Topics) -> None:
    """An unclean election of a leader may lose the last messages: what is left of the topic has been read."""
    topic = made()
    lab.wire.send(topic, rows(1, 2, 3))
    for reset in (None, "earliest", "latest"):
        stream = lab.stream(topic, N, **{RESET: reset})
        stream.run()
        stream.at = stream.at | {"at": {topic: {"0": 9}}}
        if reset is None:
            with pytest.raises(DataLostError, match=r"offset 9 is to be read next.*ends at 3.*auto\.offset\.reset"):
                stream.run()
        else:
            assert stream.run() == []
            assert stream.at["at"] == {topic: {"0": 3}}


def test_offsets_are_committed_without_those_of_topics_that_are_gone(
    lab: Lab, made: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    one = made()
    two = lab.wire.make(f"{one}-two")
    lab.wire.send(one, rows(1))
    lab.wire.send(two, rows(2))
    stream = lab.stream(columns=N, **by("pattern", one), properties__group__id=one)
    stream.run()
    delete(lab.wire, two)
    again_started = lab.stream(columns=N, **by("pattern", one), properties__group__id=one)
    again_started.at = stream.at
    for number in range(3):
        lab.wire.send(one, rows(number))
        again_started.run()
        if number == 0:
            caplog.clear()
    assert lab.wire.committed(one, one) == [4]
    assert "commit the offsets" not in caplog.text


def test_a_read_limit_does_not_count_messages_that_retention_has_removed(lab: Lab, made: Topics) -> None:
    topic = made()
    streams = {reset: lab.stream(topic, N, maxRowsPerTrigger=3, **{RESET: reset}) for reset in ("earliest", "latest")}
    lab.wire.send(topic, rows(0))
    assert all(ns(stream.run()) == [0] for stream in streams.values())
    lab.wire.send(topic, rows(*range(1, 100)))
    lab.wire.delete_records(topic, 95)
    assert ns(streams["earliest"].run()) == [95, 96, 97, 98, 99]
    assert list(map(len, streams["earliest"].batches)) == [1, 3, 2]
    assert ns(streams["latest"].run()) == []
    lab.wire.send(topic, rows(100))
    assert ns(streams["earliest"].run()) == ns(streams["latest"].run()) == [100]


@pytest.mark.parametrize("mode", ["latest-offset", "group-offsets"])
def test_a_restart_before_the_first_message_begins_where_the_query_began(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path, mode: str
) -> None:
    topic = made()
    options = {
        "properties.bootstrap.servers": wire.servers,
        "topic": topic,
        "format": "json",
        "scan.startup.mode": mode,
    }
    frame = spark.readStream.format("kafka-table").schema(N).options(**options).load()
    found: list[int] = []

    def run() -> None:
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(**AVAILABLE).start()
        query.awaitTermination(PATIENCE_SECONDS)

    wire.send(topic, rows(1))
    run()
    wire.send(topic, rows(2))
    # The query dies in its first micro-batch.
    for file in (tmp_path / "commits" / "0", tmp_path / "commits" / ".0.crc"):
        file.unlink(missing_ok=True)
    run()
    wire.send(topic, rows(3))
    run()
    assert found == [2, 3]
