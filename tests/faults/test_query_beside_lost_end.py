"""Streaming queries whose broker has lost the log's end, or whose topic was created again: none skips a record."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import delete_topic
from log_system.local_kafka.owned import LocalKafka
from tablestore import TableStore
from tablestore.connectors import read_changes, read_stream
from tests.harness.lost_end import ends_of, lose_all
from tests.harness.plain_topics import make_topic
from tests.harness.spark_tables import AVAILABLE, CHANGE_TYPE, forget_last_commit
from tests.harness.table_harness import PARTITIONS, TableHarness
from tests.harness.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.crash
WAIT_SECONDS = 60
COLUMNS = f"id BIGINT, v STRING, {CHANGE_TYPE} STRING"


class Followed(ABC):
    """A topic with records of ten keys in each batch, and a query that reads it."""

    remedy = r"log\.repair\(\)"
    """What the error says to do."""
    gone = r"log\.repair\(\)"
    """What the error about a topic that was created again says to do."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
        self.spark, self.servers, self.topic, self.folder = spark, servers, topic, folder
        self.seen: list[tuple[int, str]] = []

    @abstractmethod
    def write(self, batch: int) -> None:
        """Write a batch."""

    @abstractmethod
    def read(self) -> DataFrame:
        """Give the stream."""

    @abstractmethod
    def recreate(self) -> None:
        """Delete the topic and create it again."""

    def grow(self) -> None:
        """Let others write to the topic, more than the broker has lost."""
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(80):
            producer.produce(self.topic, b'{"id": %d, "v": "late"}' % n, b'{"id": %d}' % n, n % PARTITIONS)
        producer.flush(PATIENCE_SECONDS)

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start the query, from its checkpoint."""

        def take(batch: DataFrame, _: int) -> None:
            kept = batch.where(f"{CHANGE_TYPE} <> 'update_preimage'").select("id", "v")
            self.seen.extend(tuple(row) for row in kept.collect())

        query = self.read().writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / "checkpoint"))
        return query.trigger(**trigger).start()

    def run(self) -> None:
        """Run the query until it has caught up."""
        query = self.start(**AVAILABLE)
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()


class OfTable(Followed):
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rig = TableHarness(self.folder / "t", self.servers, self.topic, self.options)

    def write(self, batch: int) -> None:
        self.rig.write(batch)
        self.rig.close()

    def read(self) -> DataFrame:
        return TableStore.open(self.spark, self.rig.path).read_stream(scan_mode="earliest")

    def recreate(self) -> None:
        self.rig.remake_topic()


class Transactional(OfTable):
    def grow(self) -> None:
        # Records that others commit are an error by themselves.
        with self.rig.stranger(f"stranger-{self.topic}") as producer:
            for n in range(80):
                producer.produce(self.topic, b"{}", b"{}", n % PARTITIONS)
            producer.flush(PATIENCE_SECONDS)
            producer.abort_transaction()


class Normalized(OfTable):
    options: ClassVar[dict[str, Any]] = {"log__consistency": "eventual"}


class Eventual(Normalized):
    def read(self) -> DataFrame:
        return TableStore.open(self.spark, self.rig.path).read_stream(scan_mode="earliest", normalize=False)


class KafkaTable(Followed):
    remedy = gone = r"auto\.offset\.reset.*or start a new query"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        make_topic(self.servers, self.topic, PARTITIONS)

    def write(self, batch: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for n in range(10):
            value = json.dumps({"id": n, "v": f"{batch}.{n}"}).encode()
            producer.produce(self.topic, value, json.dumps({"id": n}).encode(), n % PARTITIONS)
        assert producer.flush(PATIENCE_SECONDS) == 0

    @property
    def _options(self) -> dict[str, str]:
        return {"properties.bootstrap.servers": self.servers, "topic": self.topic}

    def read(self) -> DataFrame:
        options = {**self._options, "format": "json", "scan.startup.mode": "earliest-offset"}
        frame = read_stream(self.spark, "kafka", "id BIGINT, v STRING", options)
        return frame.selectExpr("*", f"'insert' {CHANGE_TYPE}")

    def recreate(self) -> None:
        delete_topic(KafkaClient({"bootstrap.servers": self.servers}), self.topic)
        make_topic(self.servers, self.topic, PARTITIONS)


class Upserts(KafkaTable):
    gone = "new checkpoint"

    def read(self) -> DataFrame:
        options = {**self._options, "primary-key": "id", "key.format": "json", "value.format": "json"}
        return read_changes(self.spark, "id BIGINT, v STRING", options, state=self.folder / "state")


KINDS = [Transactional, Normalized, Eventual, KafkaTable, Upserts]
NOT_INDEXED = [kind for kind in KINDS if kind is not Transactional]
"""Queries whose next offsets are the topic's; those of a transactional log are in its index."""


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """Yield a broker that may be killed."""
    with LocalKafka() as kafka:
        yield kafka


@pytest.fixture
def followed(
    request: pytest.FixtureRequest, spark: SparkSession, broker: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> Followed:
    return request.param(spark, broker.bootstrap_servers, topic(), tmp_path)


def rows(*batches: int) -> list[tuple[int, str]]:
    return sorted((n, f"{batch}.{n}") for batch in batches for n in range(10))


@pytest.fixture(scope="module", params=[False, True], ids=["shorter", "grown"])
def lost(
    request: pytest.FixtureRequest, spark: SparkSession, broker: LocalKafka, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Followed]:
    """Return queries that have read two batches, of which the broker has lost the second.

    Those named "again" have completed both micro-batches, those named "repeated" only the first.
    """
    made, ends = {}, {}
    for kind in KINDS:
        for name in ("again", "repeated"):
            topic = f"{kind.__name__}-{name}-{uuid.uuid4().hex[:8]}"
            followed = kind(spark, broker.bootstrap_servers, topic, tmp_path_factory.mktemp(topic))
            followed.write(1)
            followed.run()
            ends[topic] = ends_of(followed.servers, topic)
            followed.write(2)
            followed.run()
            assert sorted(followed.seen) == rows(1, 2)
            if name == "repeated":
                forget_last_commit(followed.folder / "checkpoint")
            made[kind.__name__, name] = followed
    lose_all(broker, ends)
    if request.param:
        for followed in made.values():
            followed.grow()
    return made


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_a_query_that_is_started_again_after_the_end_was_lost_says_so(
    lost: dict[tuple[str, str], Followed], kind: str
) -> None:
    followed = lost[kind, "again"]
    if isinstance(followed, Transactional):
        # What it has read is in the table; what is new cannot be published before a repair.
        followed.run()
        assert TableStore.open(followed.spark, followed.rig.path).log.repair().ok
        followed.write(3)
        followed.run()
        assert sorted(followed.seen) == rows(1, 2, 3)
        return
    for _ in range(2):
        with pytest.raises(PySparkException, match=f"(?s)(lost|retention).*{followed.remedy}"):
            followed.run()
    assert sorted(followed.seen) == rows(1, 2)


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_a_micro_batch_that_is_repeated_does_not_take_what_has_come_since_for_what_was_lost(
    lost: dict[tuple[str, str], Followed], kind: str
) -> None:
    followed = lost[kind, "repeated"]
    for _ in range(2):
        with pytest.raises(PySparkException, match=f"(?s)(lost|retention|gone).*{followed.remedy}"):
            followed.run()
    assert sorted(followed.seen) == rows(1, 2)


@pytest.mark.parametrize("followed", NOT_INDEXED, indirect=True)
@pytest.mark.parametrize("is_down", [True, False], ids=["down", "running"])
def test_a_query_whose_topic_is_created_again_says_so(followed: Followed, *, is_down: bool) -> None:
    followed.write(1)
    followed.run()
    followed.write(2)
    query = followed.start(processingTime="0 seconds")
    until(lambda: len(followed.seen) == 20, 60)
    if is_down:
        query.processAllAvailable()
        query.stop()
    followed.recreate()
    followed.grow()
    if is_down:
        query = followed.start(processingTime="0 seconds")
    try:
        with pytest.raises(PySparkException, match=f"(?s)(recreated|created again).*{followed.gone}"):
            query.awaitTermination(WAIT_SECONDS)
    finally:
        query.stop()
    with pytest.raises(PySparkException, match=f"(?s)(recreated|created again).*{followed.gone}"):
        followed.run()
    assert sorted(followed.seen) == rows(1, 2)
