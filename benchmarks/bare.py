"""Plain loops as baselines for publishing and streaming: confluent-kafka and DuckDB, one process per core.

The processes start and load their bytes before the timing starts; connecting and flushing are timed, as they are for
the store. The loops use the store's client options (lz4, ``linger.ms``, ``fetch.queue.backoff.ms``), which make them
faster too.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from log_system.kafka.client.connect import KafkaClient
from tablestore.context import TableContext

_CONTEXT = multiprocessing.get_context("spawn")
_FIELDS = json.dumps({"id": "BIGINT", "name": "VARCHAR", "price": "DOUBLE", "at": "TIMESTAMPTZ"})


def make_topic(servers: str, topic: str, partitions: int) -> None:
    """Create a topic."""
    # Without this log level, the client logs the events that nobody has polled when it is closed.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


class Team:
    """Worker processes, one per partition; each prepares its loop once and runs it on request."""

    def __init__(self, prepare: Callable[..., Callable[[str], int]], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Start the processes and wait until all are ready."""
        self._ends: list[Connection] = []
        self._processes = []
        for each in arguments:
            mine, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, prepare, each), daemon=True)
            process.start()
            self._ends.append(mine)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def run(self, topic: str) -> float:
        """Run all loops concurrently on a topic and return the seconds until the last one has ended."""
        start = time.perf_counter()
        for end in self._ends:
            end.send(topic)
        self.rows = sum(end.recv() for end in self._ends)
        return time.perf_counter() - start

    def close(self) -> None:
        """Stop the processes."""
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join(10)


@contextmanager
def team(prepare: Callable[..., Callable[[str], int]], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Team]:
    """Yield a team and stop its processes at the end of the block."""
    with closing(Team(prepare, arguments)) as made:
        yield made


def _serve(end: Connection, prepare: Callable[..., Callable[[str], int]], arguments: tuple[Any, ...]) -> None:
    loop = prepare(*arguments)
    end.send(None)
    while (topic := end.recv()) is not None:
        end.send(loop(topic))


def producing(path: str, snapshot: int, partition: int) -> Callable[[str], int]:
    """Return a loop that produces the records of one partition of a snapshot, encoded in advance."""
    table = TableContext.open(path)
    codec, client = table.log.settings.codec(), table.log.settings.client
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for batch in table.files.changes(snapshot, table.options.buckets).batches(partition, 0):
        records = codec.encode(batch)
        keys += records.keys
        values += records.values

    return partial(_produce, client, keys, values, partition)


def sending(servers: str, topic: str, partition: int, records: int) -> Callable[[str], int]:
    """Return a loop that produces the values of one partition of a topic, without keys, to the same partition."""
    client = KafkaClient({"bootstrap.servers": servers})
    consumer = client.consumer("bare")
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes | None] = []
    while len(values) < records:
        values += [message.value() for message in consumer.consume(records - len(values), 1)]
    consumer.close()
    return partial(_produce, client, [None] * records, values, partition)


def _produce(
    client: KafkaClient, keys: list[bytes | None], values: list[bytes | None], partition: int, topic: str
) -> int:
    producer = client.producer(None)
    produce, poll = producer.produce, producer.poll
    for start in range(0, len(values), 5000):
        for key, value in zip(keys[start : start + 5000], values[start : start + 5000], strict=True):
            while True:
                try:
                    produce(topic, value, key, partition)
                    break
                except BufferError:
                    poll(0.05)
        poll(0)
    producer.flush(120)
    return len(values)


def consuming(servers: str, partition: int, records: int) -> Callable[[str], int]:
    """Return a loop that consumes ``records`` records of a partition and parses their JSON with DuckDB by batch."""
    client = KafkaClient({"bootstrap.servers": servers})
    duck = duckdb.connect(config={"threads": 1})
    duck.execute("SET TimeZone = 'UTC'")

    def loop(topic: str) -> int:
        consumer = client.consumer("bare")
        consumer.assign([TopicPartition(topic, partition, 0)])
        left, seen = records, 0
        while left:
            messages = consumer.consume(min(left, 20_000), 30)
            assert messages, f"topic {topic!r}: no record came in 30 s"
            batch = pa.table({"v": pa.array([m.value() for m in messages], pa.binary()).cast(pa.string())})
            duck.register("batch", batch)
            sql = f"SELECT unnest(from_json(v, '{_FIELDS}')) FROM batch"
            seen += duck.sql(sql).to_arrow_table().num_rows
            left -= len(messages)
        consumer.close()
        return seen

    return loop
