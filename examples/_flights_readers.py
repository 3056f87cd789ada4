"""Four independent readers: the table, its stream, a Kafka client and a Delta client."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from _flights_data import ARROW, KEY
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from pyarrow import csv
from pyspark.sql import DataFrame

from tablestore import TableStore


@dataclass(frozen=True)
class Reading:
    """A comparable summary of what one reader read at the end.

    Attributes:
        reader: the name of the reader.
        rows: the number of flights.
        delay_minutes: the sum of their departure delays.
        checksum: SHA-256 of all rows and columns, sorted by key.
        seen: what the reader read, such as a number of changes.
    """

    reader: str
    rows: int
    delay_minutes: int
    checksum: str
    seen: str

    @classmethod
    def of(cls, reader: str, flights: pa.Table, seen: str) -> Reading:
        """Summarize the flights of a reader."""
        flights = flights.select(ARROW.names).cast(ARROW).sort_by([(name, "ascending") for name in KEY])
        text = io.BytesIO()
        csv.write_csv(flights, text)
        delay = pc.sum(flights["dep_delay"]).as_py() or 0
        return cls(reader, flights.num_rows, delay, hashlib.sha256(text.getbuffer()).hexdigest(), seen)


class StreamFold:
    """Follows ``read_stream()`` with a continuous Spark query and merges its changes by key."""

    def __init__(self, flights: TableStore) -> None:
        """Start the query."""
        self.changes: list[pa.Table] = []
        self.rows = 0
        stream = flights.read_stream(scan_mode="full").writeStream.foreachBatch(self._keep)
        self._query = stream.trigger(processingTime="2 seconds").start()

    def _keep(self, batch: DataFrame, number: int) -> None:
        changes = batch.toArrow()
        self.changes.append(changes)
        self.rows += changes.num_rows

    def finish(self, rows: int, *, timeout_s: float = 60) -> Reading:
        """Wait until ``rows`` changes have arrived, then keep the last change of each key."""
        deadline = time.monotonic() + timeout_s
        while self.rows < rows and time.monotonic() < deadline and self._query.isActive:
            time.sleep(0.1)
        self._query.processAllAvailable()
        self._query.stop()
        changes = pa.concat_tables(self.changes)
        order = f"row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY _commit_version DESC) AS age"
        last = duckdb.from_arrow(changes).project(f"*, {order}").filter("age = 1 AND _change_type <> 'delete'")
        return Reading.of("read_stream()", last.to_arrow_table(), f"{self.rows:,} changes")


class PlainConsumer(threading.Thread):
    """A read_committed consumer that uses none of the store's code and keeps the last value of each key."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Create a consumer; call ``start()`` to follow the topic."""
        super().__init__(daemon=True)
        self.values: dict[bytes, bytes] = {}
        self.records = 0
        self.ends: dict[int, int] = {}
        self.visible_at: dict[int, float] = {}
        self._stopping = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "anybody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        # A client serves one thread at a time, so a second one is used to find the end of the topic.
        self._consumer, self._probe = Consumer(settings), Consumer(settings)
        partitions = self._consumer.list_topics(topic).topics[topic].partitions
        self._assigned = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        self._consumer.assign(self._assigned)

    @property
    def newest(self) -> int:
        """The newest snapshot whose last record, which has the snapshot's id in a header, has arrived."""
        return max(self.visible_at, default=0)

    def run(self) -> None:
        """Follow the topic until ``finish`` is called."""
        while not self._stopping.is_set():
            for message in self._consumer.consume(20_000, timeout=0.2):
                error = message.error()
                if error is None:
                    self._fold(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    self.ends[message.partition()] = message.offset()

    def _fold(self, message: Any) -> None:
        self.records += 1
        key, value = message.key(), message.value()
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
        for name, snapshot in message.headers() or ():
            if name == "snapshot":
                self.visible_at.setdefault(int(snapshot), time.time())

    def catch_up(self, *, timeout_s: float = 60) -> None:
        """Wait until all records that are visible to a read_committed consumer have arrived."""
        ends = {
            each.partition: self._probe.get_watermark_offsets(each, timeout=10, cached=False)[1]
            for each in self._assigned
        }
        deadline = time.monotonic() + timeout_s
        while any(self.ends.get(partition, 0) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                msg = f"the consumer has not reached the end of the topic: {self.ends}, {ends}"
                raise TimeoutError(msg)
            time.sleep(0.05)

    def flights(self) -> pa.Table:
        """Return the flights that the topic contains at this moment."""
        return decoded(list(self.values.values()))

    def finish(self) -> Reading:
        """Read to the end of the topic and stop."""
        self.catch_up()
        self._stopping.set()
        self.join()
        self._consumer.close()
        self._probe.close()
        return Reading.of("Kafka client", self.flights(), f"{self.records:,} records")


def decoded(values: Iterable[bytes]) -> pa.Table:
    """Return the flights of JSON records, in which dates are text."""
    text = pa.schema([(f.name, pa.string() if f.type == pa.date32() else f.type) for f in ARROW])
    return pa.Table.from_pylist([json.loads(value) for value in values], schema=text).cast(ARROW)


def read_batch(flights: TableStore) -> Reading:
    """Read the newest snapshot with Spark."""
    snapshot = flights.snapshots(limit=1)[0].id
    return Reading.of("read()", flights.read().toArrow(), f"snapshot {snapshot}")


def read_delta(path: str) -> Reading:
    """Read the base table with delta-rs and DuckDB, without the store's code."""
    root = DeltaTable(path)
    files = [f"{uri}" for uri in root.file_uris()]
    return Reading.of("Delta, DuckDB", duckdb.read_parquet(files).to_arrow_table(), f"{len(files)} Parquet files")
