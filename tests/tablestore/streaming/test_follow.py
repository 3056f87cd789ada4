"""A stream that is followed through many queries is one true changelog, and its state holds what lives."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from snapshot.errors import InvalidInputError
from snapshot.storage import Storage
from tablestore import TableStore
from tablestore.streaming import follow as following
from tests.harness.faults import Crash, failing
from tests.harness.spark_tables import AVAILABLE, changes, frame, make, rows, shuffle_partitions
from tests.tablestore.streaming.test_normalize import Auditor


@pytest.fixture(autouse=True)
def _few(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a state of more than ten keys be a large one."""
    monkeypatch.setattr(following, "_KEYS_MIN", 5)
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0.2)
    with shuffle_partitions(spark, 1):
        yield


@pytest.fixture
def table(spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    return make(spark, tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")


class Reader:
    """Gets the changes, as a sink that keeps what it has seen: a micro-batch that comes again is no news."""

    def __init__(self) -> None:
        self.auditor = Auditor(Path(), DataFrame)
        self.done: set[tuple[int, int]] = set()

    @property
    def generations(self) -> int:
        return max(number for number, _ in self.done)

    def write(self, changes: DataFrame, number: int) -> DataStreamWriter:
        def take(batch: DataFrame, batch_id: int) -> None:
            found = [tuple(row)[:3] for row in batch.collect()]
            if (number, batch_id) not in self.done:
                self.auditor._apply(found)
                self.done.add((number, batch_id))

        return changes.writeStream.foreachBatch(take)

    def catch_up(self, changes: DataFrame, number: int) -> DataStreamWriter:
        return self.write(changes, number).trigger(**AVAILABLE)


def states(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.iterdir())


def change(spark: SparkSession, table: TableStore, dice: random.Random, keys: int) -> None:
    """Insert, update and delete at random, twice as many deletes."""
    kinds = {dice.randrange(keys): dice.choice(["insert", "delete", "delete"]) for _ in range(12)}
    given = [(key, None if kind == "delete" else dice.choice("ab"), kind) for key, kind in kinds.items()]
    table.write(changes(spark, given))


def pass_through(spark: SparkSession, table: TableStore, number: int) -> None:
    """Write more keys than a state may have, and delete them again."""
    passing = range(1000 * number, 1000 * number + 100)
    table.write(frame(spark, [(k, "a") for k in passing]))
    table.delete(frame(spark, [(k,) for k in passing], "id bigint"))


def test_the_state_holds_what_lives_and_all_queries_are_one_changelog(
    spark: SparkSession, tmp_path: Path, table: TableStore
) -> None:
    reader, dice = Reader(), random.Random(5)
    table.write(frame(spark, [(k, "a") for k in range(8)]))
    for _ in range(5):
        table.follow(reader.catch_up, tmp_path / "c", max_rows=20)
        assert reader.auditor.table == rows(table.read())
        generation = following.newest(Storage.at(tmp_path / "c"))
        if generation.state is not None:
            # It was saved just now.
            assert generation.keys == len(reader.auditor.table)
        change(spark, table, dice, 40)
    assert reader.generations >= 2
    # What came before is gone, but for what the last query needs.
    assert states(tmp_path / "c") == [str(following.newest(Storage.at(tmp_path / "c")).number)]


def test_a_running_stream_begins_anew_by_itself(spark: SparkSession, tmp_path: Path, table: TableStore) -> None:
    reader, dice = Reader(), random.Random(6)
    writer = TableStore.open(spark, table.path)
    writer.write(frame(spark, [(k, "a") for k in range(8)]))
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(table.follow, reader.write, tmp_path / "c")
        until = time.monotonic() + 120
        try:
            while following.newest(Storage.at(tmp_path / "c")).number < 2 or reader.auditor.table != rows(
                writer.read()
            ):
                assert not followed.done(), followed.result()
                assert time.monotonic() < until, reader.done
                if following.newest(Storage.at(tmp_path / "c")).number < 2:
                    change(spark, writer, dice, 10_000)
                time.sleep(0.5)
        finally:
            while not followed.done():
                for query in spark.streams.active:
                    query.stop()
                time.sleep(0.1)
        followed.result()


@pytest.mark.crash
def test_a_death_anywhere_on_the_way_to_the_next_query_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, table: TableStore
) -> None:
    reader, dice = Reader(), random.Random(7)
    table.write(frame(spark, [(k, "a") for k in range(30)]))
    deaths: list[tuple[Any, str, bool]] = [
        (following, "_wait", True),
        (Storage, "put", False),
        (Storage, "remove_tree", False),
        (Storage, "remove_tree", True),
    ]
    for number, (owner, name, after) in enumerate(deaths, 1):
        change(spark, table, dice, 40)
        pass_through(spark, table, number)
        with failing(owner, name, after=after), pytest.raises(Crash):
            table.follow(reader.write, tmp_path / "c")
        change(spark, table, dice, 40)
        table.follow(reader.catch_up, tmp_path / "c")
        assert reader.auditor.table == rows(table.read()), (name, after)


def test_keys_that_do_not_change_are_forgotten_when_their_time_has_come(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    name, hour = topic(), 3_600_000
    table = make(spark, tmp_path / "t", kafka.bootstrap_servers, name, log__consistency="eventual", bucket=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, age in ((1, 3 * hour), (2, 3 * hour), (2, hour)):
        when = int(time.time() * 1000) - age
        producer.produce(name, f'{{"id":{key},"v":"{age}"}}', f'{{"id":{key}}}', partition=0, timestamp=when)
    assert producer.flush(30) == 0
    reader = Reader()
    table.follow(reader.catch_up, tmp_path / "c", ttl="2 h", scan_mode="earliest")
    assert following.newest(Storage.at(tmp_path / "c")).number == 0
    long_ago = time.time() - 3 * 3600
    os.utime(tmp_path / "c" / "0" / "query" / "metadata", (long_ago, long_ago))
    table.follow(reader.catch_up, tmp_path / "c", ttl="2 h", scan_mode="earliest")
    generation = following.newest(Storage.at(tmp_path / "c"))
    assert (generation.number, generation.keys) == (1, 1)
    assert reader.auditor.table.pop(1) == str(3 * hour)
    table.write(frame(spark, [(1, "z"), (2, "c")]))
    table.follow(reader.catch_up, tmp_path / "c", ttl="2 h")
    assert reader.auditor.table == {1: "z", 2: "c"}
    assert following.newest(Storage.at(tmp_path / "c")).number == 1


def test_a_query_of_before_goes_on_as_the_message_says(spark: SparkSession, tmp_path: Path, table: TableStore) -> None:
    plain, reader = Auditor(tmp_path / "plain", table.read_stream), Reader()
    table.write(frame(spark, [(k, "a") for k in range(4)]))
    plain.follow()
    with pytest.raises(InvalidInputError, match="is the checkpoint of one query; name a new folder") as error:
        table.follow(reader.catch_up, tmp_path / "plain")
    assert f"save_state('{tmp_path}/plain', into='<the new folder>/1/state')" in str(error.value)
    table.log.save_state(tmp_path / "plain", into=tmp_path / "c" / "1" / "state")
    table.write(frame(spark, [(1, "b"), (2, "a")]))
    reader.auditor.table = plain.table
    table.follow(reader.catch_up, tmp_path / "c")
    assert reader.auditor.table == rows(table.read())
    assert reader.generations == 1


def test_what_cannot_be_followed_is_refused(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str], table: TableStore
) -> None:
    reader = Reader()
    other = make(spark, tmp_path / "other", kafka.bootstrap_servers, topic())
    with pytest.raises(InvalidInputError, match=r"follow: it goes with log.consistency='eventual'"):
        other.follow(reader.write, tmp_path / "c")
    with pytest.raises(InvalidInputError, match="ttl='soon': expected a duration"):
        table.follow(reader.write, tmp_path / "c", ttl="soon")
    spark.conf.set(following._COUNTED, "false")
    try:
        with pytest.raises(InvalidInputError, match="trackTotalNumberOfRows=false: it has to be true"):
            table.follow(reader.write, tmp_path / "c")
    finally:
        spark.conf.unset(following._COUNTED)
    assert not (tmp_path / "c").exists()
    table.write(frame(spark, [(1, "a")]))
    spark.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    try:
        with pytest.raises(InvalidInputError, match="whose state would not go on"):
            table.follow(lambda changes, _: changes.groupBy("v").count().writeStream.format("noop"), tmp_path / "c")
    finally:
        spark.conf.unset("spark.sql.streaming.unsupportedOperationCheck")
    assert spark.streams.active == []

    def fail(batch: DataFrame, _: int) -> None:
        raise ValueError(batch.count())

    with pytest.raises(StreamingQueryException, match="ValueError"):
        table.follow(lambda changes, _: changes.writeStream.foreachBatch(fail), tmp_path / "c2")
