"""What publishers and readers of one table's Kafka log need to know. Picklable, so that tasks can carry it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Producer

from log_system.formats import LogFormat, open_format
from log_system.kafka.client.connect import PRODUCER_DEFAULTS, KafkaClient, Setting
from log_system.kafka.client.thread_local_cache import ThreadLocalCache

_RECORD_BYTES: Final = 900_000
"""Most bytes of a record that holds several rows."""
ROOM: Final = 512
"""Bytes that a batch of one record takes beside key and value: its own header, the record's, and headers of ours."""
_CODECS: Final = ThreadLocalCache[tuple[Any, ...], LogFormat]()


@dataclass(frozen=True)
class KafkaLog:
    """The log of one table.

    Attributes:
        table_id: the table's own id; names its transactional ids and its consumer group.
        client: how to reach the broker.
        topic: the topic, with as many partitions as the table has buckets.
        partitions: that number.
        format: ``json``, ``arrow`` or ``debezium-json``.
        changelog: whether the log has the rows before a change too.
        schema: the table's columns, then ``_kind``.
        primary_key: key columns; empty for an append table.
        headers: ``last`` or ``all``: which records carry their snapshot's id.
        transaction_timeout_ms: how long the broker keeps an open transaction of a publisher that is gone.
        driver_rows_max: larger snapshots are published by tasks, one partition each.
        transaction_rows_max: changes a task puts into one transaction.
        mixed: records do not say with which columns they were sent (an eventual log).
        batch_bytes_max: the largest batch of records that the topic accepts; None until the broker was asked.
        servers: the brokers that the table's definition names.
        topic_id: the topic's id when the table was created or repaired last; empty where it is not known.
        skips_foreign: readers leave out what cannot be decoded, since it is another producer's; else they fail.
    """

    table_id: str
    client: KafkaClient
    topic: str
    partitions: int
    format: str
    changelog: bool
    schema: pa.Schema
    primary_key: tuple[str, ...]
    headers: str
    transaction_timeout_ms: int
    driver_rows_max: int
    transaction_rows_max: int
    mixed: bool = False
    batch_bytes_max: int | None = None
    servers: str = ""
    topic_id: str = ""
    skips_foreign: bool = False

    @property
    def group(self) -> str:
        """The consumer group whose offsets are the register."""
        return f"tablestore-{self.table_id}"

    @property
    def tasks_group(self) -> str:
        """The consumer group whose offset of partition 0 says whose tasks may be writing."""
        return f"{self.group}-tasks"

    def transactional_id(self, partition: int | None = None) -> str:
        """Name the publisher of all partitions, or of one partition's tasks."""
        return self.group if partition is None else f"{self.group}-{partition}"

    def producer(self, partition: int | None = None) -> Producer:
        """Make the producer of all partitions, or of one partition's tasks; it owns nothing yet.

        Raises:
            InvalidInputError: see ``KafkaClient.producer``.
        """
        options: dict[str, Setting] = {"transaction.timeout.ms": self.transaction_timeout_ms}
        if self.format == "arrow" and not {"compression.type", "compression.codec"} & set(self.client.config):
            # Its records are compressed already.
            options["compression.type"] = "none"
        return self.client.producer(self.transactional_id(partition), **options, **self.batching())

    def batching(self) -> dict[str, Setting]:
        """Return the client options that keep a producer's batches within what the topic accepts."""
        size = int(str(self.client.config.get("batch.size", PRODUCER_DEFAULTS["batch.size"])))
        return {} if self.batch_bytes_max is None else {"batch.size": min(size, self.batch_bytes_max)}

    def under(self, schema: pa.Schema) -> KafkaLog:
        """Give the same log for records of other columns: those that the table had in a snapshot, then ``_kind``."""
        return self if schema == self.schema else replace(self, schema=schema)

    def codec(self) -> LogFormat:
        """Make a coder for this log's records."""
        columns = self.schema.remove(len(self.schema) - 1)
        most = _RECORD_BYTES if self.batch_bytes_max is None else min(_RECORD_BYTES, self.batch_bytes_max - ROOM)
        return open_format(
            self.format,
            columns,
            self.primary_key,
            changelog=self.changelog,
            mixed=self.mixed,
            max_record_bytes=max(1, most),
        )

    def kept_codec(self) -> LogFormat:
        """Give this thread's coder for this log's records, which outlives a task."""
        columns = self.schema.serialize().to_pybytes()
        key = (self.format, columns, self.primary_key, self.changelog, self.mixed, self.batch_bytes_max)
        return _CODECS.take(key, self.codec)
