"""An upsert table read as a changelog: Flink's vectors, restarts, topics that change under the query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.connectors import read_changes
from tests.connectors.harness.wire import Record, Wire
from tests.harness.changelog_follower import keys_in_state
from tests.harness.spark_tables import AVAILABLE
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]


def options(wire: Wire, topic: str, **more: str) -> dict[str, str]:
    return {
        "properties.bootstrap.servers": wire.servers, "topic": topic, "primary-key": "k",
        "key.format": "json", "value.format": "json", **more,
    }  # fmt: skip


def up(k: str, value: bytes | None, partition: int = 0) -> Record:
    return Record(value, f'{{"k":"{k}"}}'.encode(), partition)


def row(k: str, v: str | None, partition: int = 0) -> Record:
    return up(k, json.dumps({"k": k, "v": v}).encode(), partition)


class Follower:
    """A query over a topic's changelog."""

    def __init__(self, spark: SparkSession, given: dict[str, str], folder: Path, *, ordered: bool = False) -> None:
        self._frame = read_changes(spark, "k STRING, v STRING", given, state=folder / "states", ordered=ordered)
        self._checkpoint = str(folder / "checkpoint")

    def run(self) -> list[tuple[Any, ...]]:
        """Read to the end; give the changes."""
        found: list[tuple[Any, ...]] = []
        writer = self._frame.writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
        writer.option("checkpointLocation", self._checkpoint).trigger(**AVAILABLE).start().awaitTermination(
            PATIENCE_SECONDS
        )
        return found


def test_b01_g11_an_upsert_table_is_a_changelog(spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path) -> None:
    """`k1=a, a, b, null, null, k2=null, k1=c, k3={v: NULL}` become `+I, -U, +U, -D, +I, +I` as in Flink."""
    topic = made()
    follower = Follower(spark, options(wire, topic, maxRowsPerTrigger="1"), tmp_path)
    wire.send(
        topic,
        [row("k1", "a"), row("k1", "a"), row("k1", "b"), up("k1", None), up("k1", None), up("k2", None)],
    )
    found = follower.run()
    wire.send(topic, [row("k1", "c"), row("k3", None)])
    found += follower.run()
    assert found == [
        ("k1", "a", "insert"),
        ("k1", "a", "update_preimage"),
        ("k1", "b", "update_postimage"),
        ("k1", "b", "delete"),
        ("k1", "c", "insert"),
        ("k3", None, "insert"),
    ]
    assert keys_in_state(tmp_path / "states") == 2


def test_changes_of_one_micro_batch_fold_and_have_their_offsets(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    topic = made(2)
    follower = Follower(spark, options(wire, topic), tmp_path, ordered=True)
    wire.send(topic, [row("a", "1"), row("b", "1", 1), row("a", "2"), up("c", None)])
    assert sorted(follower.run()) == [("a", "2", "insert", 1), ("b", "1", "insert", 0)]
    wire.send(topic, [row("b", "2", 1), row("b", "3", 1), up("a", None)])
    assert sorted(follower.run()) == [
        ("a", "2", "delete", 3),
        ("b", "1", "update_preimage", 2),
        ("b", "3", "update_postimage", 2),
    ]


def test_the_plan_shows_the_operator_and_the_state_needs_a_place(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(wire, made())
    read_changes(spark, "k STRING, v STRING", given | {"stateLocation": str(tmp_path)}).explain()
    assert "upsert-kafka-normalize" in capsys.readouterr().out
    with pytest.raises(InvalidInputError, match="creates a file only if it is absent"):
        read_changes(spark, "k STRING, v STRING", given, state="hdfs://somewhere/states")
    frame = read_changes(spark, "k STRING, v STRING", given)
    with pytest.raises(PySparkException, match="'stateLocation' is required"):
        frame.writeStream.format("noop").trigger(**AVAILABLE).start().awaitTermination(PATIENCE_SECONDS)


def test_keys_may_not_move_between_partitions_of_a_topic_that_grows_or_is_another(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    topic = made()
    follower = Follower(spark, options(wire, topic), tmp_path)
    wire.send(topic, [row("a", "1")])
    follower.run()
    wire.grow(topic, 2)
    wire.send(topic, [row("a", "2", 1)])
    with pytest.raises(PySparkException, match=r"partitions \[1\] were added.*new topic"):
        follower.run()
    other = made()
    follower = Follower(spark, options(wire, other, **{"properties.auto.offset.reset": "earliest"}), tmp_path / "o")
    wire.send(other, [row("a", "1"), row("b", "1")])
    follower.run()
    wire.admin.delete_topics([other])[other].result()
    while other in wire.topics():
        pass
    wire.make(other)
    wire.send(other, [row("a", "2")])
    with pytest.raises(PySparkException, match=r"deleted and created again.*new checkpoint"):
        follower.run()


def test_topics_of_a_pattern_are_read_from_their_start_when_they_are_discovered(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    first = made()
    given = {"topic-pattern": f"{first}(-more)?", "scan.topic-partition-discovery.interval": "1 ms"}
    follower = Follower(spark, {**options(wire, first), **given, "topic": ""}, tmp_path)
    wire.send(first, [row("a", "1")])
    assert follower.run() == [("a", "1", "insert")]
    more = wire.make(f"{first}-more", 2)
    wire.send(more, [row("b", "1"), row("b", "2")])
    assert follower.run() == [("b", "2", "insert")]
    # Its other partition was empty when the topic was discovered.
    wire.send(more, [row("c", "1", 1), up("b", None)])
    wire.send(first, [row("a", "2")])
    assert sorted(follower.run()) == [
        ("a", "1", "update_preimage"),
        ("a", "2", "update_postimage"),
        ("b", "2", "delete"),
        ("c", "1", "insert"),
    ]
    wire.grow(more, 3)
    wire.send(more, [row("b", "3", 2)])
    with pytest.raises(PySparkException, match=r"partitions \[2\] were added.*new topic"):
        follower.run()


def test_a_first_micro_batch_that_is_repeated_and_an_old_checkpoint(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path
) -> None:
    topic = made()
    wire.send(topic, [row("a", "1"), row("b", "1")])
    follower = Follower(spark, options(wire, topic), tmp_path)
    first = follower.run()
    commits = tmp_path / "checkpoint" / "commits"
    for file in (commits / "0", commits / ".0.crc"):
        file.unlink(missing_ok=True)
    assert sorted(follower.run()) == sorted(first), "the first micro-batch was not repeated as it was"
    wire.send(topic, [row("a", "2")])
    assert follower.run() == [("a", "1", "update_preimage"), ("a", "2", "update_postimage")]
    offsets = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    *head, last = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*head, json.dumps({"at": json.loads(last)["at"]})]))
    (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="by a release that kept the state"):
        follower.run()
