"""Latency at 100 rows/s, from the time a row is available to ``write_stream`` until ``read_stream`` returns it.

The source is a Python data source whose row *n* becomes available *n*/100 s after the start and carries that time, so
the wait for the next micro-batch counts. A plain ``read_committed`` consumer reads the topic at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.harness import CORES, Bench, Result, limit, main, percentile, seconds_text
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.register import SNAPSHOT_HEADER
from tablestore.context import TableContext
from tablestore.table.store import TableStore

ROWS_PER_SECOND = 100
_WARM_UP_SECONDS = 10
_KEYS = 10_000


class SteadySource(DataSource):
    """A source of ``ROWS_PER_SECOND`` rows per second, each with the time in microseconds when it became available."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "steady"

    def schema(self) -> str:
        """Return the schema."""
        return "id bigint, handed bigint"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802 - Spark's signature
        """Return a reader whose rows start now."""
        return _SteadyReader()


class _Rows(InputPartition):
    def __init__(self, begin: int, end: int, start: float) -> None:
        super().__init__((begin, end))
        self.begin, self.end, self.start = begin, end, start


class _SteadyReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._start = time.time()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": int((time.time() - self._start) * ROWS_PER_SECOND)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Rows(start["row"], end["row"], self._start)] if end["row"] > start["row"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        numbers = range(partition.begin, partition.end)
        handed = [int((partition.start + n / ROWS_PER_SECOND) * 1_000_000) for n in numbers]
        yield pa.RecordBatch.from_pydict({"id": pa.array([n % _KEYS for n in numbers], pa.int64()), "handed": handed})


class Listener(threading.Thread):
    """A plain consumer of a topic, which passes each record to a callback."""

    def __init__(self, servers: str, topic: str, take: Callable[[Any], None]) -> None:
        """Create a consumer that reads all partitions of ``topic`` from the beginning."""
        super().__init__(daemon=True)
        self._consumer = KafkaClient({"bootstrap.servers": servers}).consumer("stranger")
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(CORES)])
        self._done = threading.Event()
        self._take = take

    def run(self) -> None:
        """Consume until ``stop`` is called."""
        while not self._done.is_set():
            message: Any = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self._take(message)
        self._consumer.close()

    def stop(self) -> None:
        """Stop the thread and wait for it to end."""
        self._done.set()
        self.join(30)


def run(bench: Bench) -> list[Result]:
    """Run a write stream and a read stream concurrently."""
    spark, seconds = bench.spark, bench.size(60, 20)
    spark.dataSource.register(SteadySource)
    table = bench.table("latency", "id bigint, handed bigint", key=["id"], log="json", bucket=CORES)
    latencies: list[tuple[float, float]] = []

    def seen(batch: DataFrame, _: int) -> None:
        handed = batch.select("handed").toArrow().column(0).to_pylist()
        now = time.time()
        latencies.extend((now, now - micros / 1e6) for micros in handed)

    # The arrival time of each snapshot's last record.
    last: dict[int, float] = {}

    def heard(message: Any) -> None:
        last.update({int(value): time.time() for name, value in message.headers() or [] if name == SNAPSHOT_HEADER})

    listener = Listener(bench.kafka.bootstrap_servers, table.options.log.kafka.topic, heard)
    listener.start()
    reading = table.read_stream(scan_mode="latest").writeStream.foreachBatch(seen)
    reader = reading.option("checkpointLocation", bench.path("reader")).start()
    source = spark.readStream.format("steady").load()
    writer = TableStore.open(spark, table.path).write_stream(
        source, checkpoint=bench.path("writer"), output_mode="update"
    )
    bench.say(f"{_WARM_UP_SECONDS} s of warm-up, then {seconds} s of {ROWS_PER_SECOND} rows/s")
    watch([writer, reader], lambda: bool(latencies))
    warm = time.time() + _WARM_UP_SECONDS
    watch([writer, reader], lambda: time.time() > warm)
    since = time.time()
    watch([writer, reader], lambda: time.time() > since + seconds)
    until = time.time()
    progress = {"write": phases(writer), "read": phases(reader)}
    writer.stop()
    reader.stop()
    listener.stop()
    taken = [latency for at, latency in latencies if since <= at <= until]
    committed = {s.id: s.timestamp_ms / 1000 for s in TableContext.open(table.path).files.snapshots()}
    late = [at - committed[s] for s, at in last.items() if s in committed and since <= at <= until]
    name = f"{ROWS_PER_SECOND} rows/s, write_stream to read_stream"
    found = [
        limit(f"{name}, p50 ({len(taken):,} rows)", percentile(taken, 50), 1.0, seconds_text),
        limit(f"{name}, p99", percentile(taken, 99), None, seconds_text),
        limit(
            f"commit until a plain consumer has it, p50 ({len(late)} snapshots)",
            percentile(late, 50),
            0.1,
            seconds_text,
        ),
        limit("commit until a plain consumer has it, p99", percentile(late, 99), None, seconds_text),
    ]
    for side, taken_by in progress.items():
        text = ", ".join(f"{phase} {value:.0f}" for phase, value in taken_by.items())
        found.append(Result(f"... Spark's micro-batches of the {side} stream, median ms", text))
    return found


def watch(queries: Sequence[Any], until: Callable[[], bool]) -> None:
    """Wait until a condition holds; raise the error of a query that fails."""
    while not until():
        time.sleep(0.2)
        for query in queries:
            if query.exception() is not None:
                raise query.exception()


def phases(query: Any) -> dict[str, float]:
    """Return the median milliseconds of each phase of a query's micro-batches with rows."""
    taken = [p.durationMs for p in query.recentProgress if p.numInputRows]
    names = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
    return {name: percentile([t.get(name, 0) for t in taken], 50) for name in names}


if __name__ == "__main__":
    main(run)
