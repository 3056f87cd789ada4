"""Readers and sinks of every kind while brokers are killed: the longest pause of each, and what is lost or doubled."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import TableStoreError
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore import TableStore, create_local, open_local
from tablestore.sql import Catalog
from tests.harness.cluster import LocalCluster
from tests.harness.waiting import PATIENCE_SECONDS
from tests.soak.crew import RETRIED
from tests.soak.leaders import Killer
from tests.soak.outcome import Outcome

PARTITIONS = 2
PAUSE_SECONDS = 0.2
SETTLE_SECONDS = 10.0
NO_ROW = -1
"""Wakes readers that wait for one."""
TRIGGER = "100 milliseconds"
TABLE, SOURCE = "log", "source"
"""The topics that are written: the log of a table, by its writer, and one by a plain producer."""
SINKS = {
    "at least once": ("kafka-table", {"format": "json"}),
    "exactly once": (
        "kafka-table",
        {"format": "json", "sink.delivery-guarantee": "exactly-once", "sink.transactional-id-prefix": "soak"},
    ),
    "upsert": ("upsert-kafka", {"primary-key": "id", "key.format": "json", "value.format": "json"}),
}

SQL = f"""
CREATE TABLE source (id BIGINT) WITH ('connector' = 'kafka', 'topic' = '{SOURCE}', 'format' = 'json',
    'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset');
CREATE TABLE counted (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '{PARTITIONS}',
    'log.system' = 'kafka', 'kafka.bootstrap.servers' = '...', 'kafka.topic' = 'counted');
CREATE TABLE again (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka',
    'topic' = 'again', 'properties.bootstrap.servers' = '...', 'key.format' = 'json', 'value.format' = 'json')
"""
"""Topics that continuous INSERTs write: the log of a table, and a topic that follows that table."""


@dataclass
class Sight:
    """What a reader has seen.

    Attributes:
        name: which reader.
        of: the topic whose rows it sees in the end.
        twice: whether rows may be there several times.
        seen: how often each row was seen.
        at: when something was seen.
    """

    name: str
    of: str
    twice: bool = False
    seen: Counter[int] = field(default_factory=Counter)
    at: list[float] = field(default_factory=list)

    def see(self, ids: Iterable[int]) -> None:
        """Count rows."""
        self.seen.update(each for each in ids if each != NO_ROW)
        self.at.append(time.monotonic())

    def pause(self, since: float) -> float:
        """Return the longest time without a row."""
        at = [since, *(each for each in self.at if each > since)]
        return max((later - earlier for earlier, later in pairwise(at)), default=0.0)


class Readers:
    """The writers, readers, queries and sinks of a soak."""

    def __init__(self, folder: Path, cluster: LocalCluster, spark: SparkSession, outcome: Outcome) -> None:
        """Make a table, and topics for the connectors."""
        self.sights: list[Sight] = []
        self.written: dict[str, set[int]] = {TABLE: set(), SOURCE: set()}
        self.queries: dict[str, Any] = {}
        self._folder, self._spark, self._outcome = folder, spark, outcome
        self._servers, self._path = cluster.bootstrap_servers, str(folder / "t")
        self._written, self._over = threading.Event(), threading.Event()
        options = {"bucket": PARTITIONS, "kafka.bootstrap.servers": self._servers, "kafka.topic": TABLE}
        self.table = create_local(self._path, "id bigint", primary_key="id", log_system="kafka", options=options)
        self._catalog = Catalog(spark, folder / "sql", settings={"tablestore.trigger": TRIGGER})
        names = [SOURCE, "again", *map(_topic, SINKS)]
        made = cluster.admin.create_topics([NewTopic(name, PARTITIONS, len(cluster.nodes)) for name in names])
        for each in made.values():
            each.result()
        cluster.wait_until_replicated(names, SETTLE_SECONDS)
        self._writers = [threading.Thread(target=each, daemon=True) for each in (self._write, self._produce)]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all of them."""
        self._query("read_stream", TableStore.open(self._spark, self._path).read_stream(scan_mode="earliest"), TABLE)
        self._query("kafka", self._from_kafka(), SOURCE)
        self._query("upsert-kafka", self._from_kafka("upsert"), SOURCE)
        for name, (kind, options) in SINKS.items():
            frame = self._from_kafka("upsert" if name == "upsert" else "")
            sink = frame.writeStream.format(kind).options(**self._options(_topic(name)), **options)
            self.queries[f"sink {name}"] = self._started(sink, _topic(name))
        self._start_sql()
        counted = str(self._folder / "sql" / "counted")
        follow: list[Callable[[], None]] = [
            self._tails("tail", self._path, TABLE, follow=False),
            self._tails("tail that waits", self._path, TABLE, follow=True),
            self._tails("INSERT INTO a store table", counted, SOURCE, follow=False),
            self._consumes(TABLE, TABLE),
            self._consumes(SOURCE, SOURCE),
            self._consumes("again", SOURCE, twice=True),
        ]
        follow += [self._consumes(_topic(name), SOURCE, twice=name != "exactly once") for name in SINKS]
        self._threads = [threading.Thread(target=each, daemon=True) for each in follow]
        for thread in [*self._threads, *self._writers]:
            thread.start()

    def finish(self, since: float) -> None:
        """Let readers see what was written, and count what each has missed."""
        self._written.set()
        for thread in self._writers:
            thread.join()
        until = time.monotonic() + PATIENCE_SECONDS
        while any(self.written[each.of] - each.seen.keys() for each in self.sights) and time.monotonic() < until:
            if self._ended():
                break
            time.sleep(PAUSE_SECONDS)
        self._over.set()
        self.table.write([{"id": NO_ROW}])
        for thread in self._threads:
            thread.join()
        self._outcome.troubles += self._ended()
        for query in self.queries.values():
            query.stop()
        for each in self.sights:
            verdict = self._outcome.verdict
            verdict.lost += len(self.written[each.of] - each.seen.keys())
            verdict.early += len(each.seen.keys() - self.written[each.of])
            verdict.doubled += 0 if each.twice else sum(count > 1 for count in each.seen.values())
            self._outcome.notes.append(f"{each.name} {each.pause(since):.1f} s")

    def _start_sql(self) -> None:
        """Start continuous INSERTs of a topic INTO a store table, and of that INTO a topic; and follow a SELECT."""
        self._catalog.sql(SQL.replace("...", self._servers))
        for number, text in enumerate(
            (
                "INSERT INTO counted SELECT id, COUNT(*) FROM source GROUP BY id",
                "INSERT INTO again SELECT * FROM counted",
            )
        ):
            (self.queries[f"INSERT {number}"],) = self._catalog.sql(text).queries
        sight = self._sight("SELECT", SOURCE)
        self.queries["SELECT"] = self._catalog.follow(
            self._catalog.sql("SELECT id FROM source WHERE id >= 0"),
            lambda rows, _: sight.see(row["id"] for row in rows.collect()),
        )

    def _ended(self) -> list[str]:
        return [f"{name}: {str(q.exception())[:4000]}" for name, q in self.queries.items() if not q.isActive]

    def _options(self, topic: str) -> dict[str, str]:
        return {"properties.bootstrap.servers": self._servers, "topic": topic}

    def _from_kafka(self, kind: str = "") -> DataFrame:
        name, options = SINKS[kind or "at least once"]
        schema = "id BIGINT, _change_type STRING" if kind else "id BIGINT"
        options = {**options, **self._options(SOURCE)} | ({} if kind else {"scan.startup.mode": "earliest-offset"})
        return self._spark.readStream.format(name).schema(schema).options(**options).load()

    def _query(self, name: str, frame: DataFrame, of: str) -> None:
        sight = self._sight(name, of)
        sink = frame.writeStream.foreachBatch(
            lambda rows, _: sight.see(row["id"] for row in rows.select("id").collect())
        )
        self.queries[name] = self._started(sink, name)

    def _started(self, sink: Any, name: str) -> Any:
        return sink.option("checkpointLocation", str(self._folder / name)).trigger(processingTime=TRIGGER).start()

    def _sight(self, name: str, of: str, *, twice: bool = False) -> Sight:
        self.sights.append(Sight(name, of, twice))
        return self.sights[-1]

    def _write(self) -> None:
        number = 0
        while not self._written.is_set():
            began = time.monotonic()
            try:
                self.table.write([{"id": number}], batch=("w", number))
            except RETRIED as error:
                self._outcome.interruptions[type(error).__name__] += 1
                continue
            self._outcome.held.append(time.monotonic() - began)
            self.written[TABLE].add(number)
            number += 1
            time.sleep(PAUSE_SECONDS)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0})
        number = 0
        while not self._written.is_set():
            row = json.dumps({"id": number}).encode()
            producer.produce(SOURCE, row, row)
            self.written[SOURCE].add(number)
            number += 1
            producer.poll(PAUSE_SECONDS / 2)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def _tails(self, name: str, path: str, of: str, *, follow: bool) -> Callable[[], None]:
        sight = self._sight(name, of)

        def tail() -> None:
            table, last = open_local(path), 0
            while not self._over.is_set():
                try:
                    for batch in table.tail(snapshot=last + 1, follow=follow):
                        rows = batch.to_pylist()
                        last = max(row[COMMIT_VERSION] for row in rows)
                        sight.see(row["id"] for row in rows)
                        if self._over.is_set():
                            return
                except RETRIED as error:
                    self._outcome.interruptions[f"{name}: {type(error).__name__}"] += 1
                except TableStoreError as error:
                    self._outcome.troubles.append(f"{name}: {error}")
                    return
                time.sleep(PAUSE_SECONDS / 4)

        return tail

    def _consumes(self, topic: str, of: str, *, twice: bool = False) -> Callable[[], None]:
        sight = self._sight(f"consumer of {topic}", of, twice=twice)
        options = {"bootstrap.servers": self._servers, "group.id": topic, "isolation.level": "read_committed"}

        def consume() -> None:
            consumer = Consumer({**options, "log_level": 0, "fetch.wait.max.ms": 10, "auto.offset.reset": "error"})
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            while not self._over.is_set():
                messages = [each for each in consumer.consume(500, PAUSE_SECONDS / 2) if each.error() is None]
                if messages:
                    sight.see(json.loads(each.value())["id"] for each in messages)
            consumer.close()

        return consume


def _topic(sink: str) -> str:
    return f"sink-{sink.replace(' ', '-')}"


def soak_readers(
    folder: Path, cluster: LocalCluster, spark: SparkSession, *, seconds: float, seed: int, every: float
) -> Outcome:
    """Let a writer, readers, streaming queries and sinks go on while brokers are killed; then compare.

    Args:
        folder: for the table and the checkpoints.
        cluster: the brokers.
        spark: runs the queries.
        seconds: for how long brokers are killed.
        seed: of who is killed when.
        every: seconds from one kill to the next.
    """
    outcome = Outcome("readers, brokers killed", seconds, 2)
    readers = Readers(folder, cluster, spark, outcome)
    readers.start()
    while not all(each.seen for each in readers.sights):
        time.sleep(PAUSE_SECONDS)
    since = time.monotonic()
    killer = Killer(cluster, readers.table._handle.table.log.settings, seed)
    while time.monotonic() < since + seconds:
        time.sleep(max(0.0, killer.next_at(every) - time.monotonic()))
        killer.act(outcome)
    outcome.faults = killer.kills + killer.moves
    readers.finish(since)
    outcome.snapshots = len(readers.written[TABLE])
    outcome.notes.append(killer.story())
    return outcome
