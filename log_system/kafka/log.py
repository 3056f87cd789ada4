"""The settings of one table's Kafka log for publishers and readers, picklable for Spark tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Producer

from log_system.formats import FORMATS, Format, LogFormat, open_format
from log_system.kafka.client.connect import PRODUCER_DEFAULTS, KafkaClient, Setting
from log_system.thread_local_cache import ThreadLocalCache

_RECORD_BYTES: Final = 900_000
"""Most bytes of a record with several rows."""
ROOM: Final = 512
"""Bytes that a batch of one record needs besides key and value: batch header, record header and our record headers."""
_CODECS: Final = ThreadLocalCache[tuple[Any, ...], LogFormat]()


@dataclass(frozen=True)
class KafkaLog:
    """The log of one table.

    Attributes:
        table_id: the table's id; part of its transactional ids and its consumer groups.
        client: the client for the Kafka cluster.
        topic: the topic, with one partition per bucket of the table.
        partitions: the number of partitions.
        format: ``json``, ``arrow`` or ``debezium-json``.
        changelog: whether the log also holds the rows before each change.
        schema: the table's columns, then ``_kind``.
        primary_key: primary key columns; empty for an append table.
        headers: ``last`` or ``all``: which records carry their snapshot's id.
        transaction_timeout_ms: how long the broker keeps an open transaction of a dead publisher.
        driver_rows_max: larger snapshots are published by Spark tasks, one per partition.
        transaction_rows_max: the most changes that a task sends in one transaction.
        mixed: records do not identify the schema they were sent with (eventual logs).
        batch_bytes_max: the largest record batch that the topic accepts; None if not yet known from the broker.
        servers: the bootstrap servers in the table's definition.
        topic_id: the topic's id when the table was created or last repaired; empty if unknown.
        compacted: whether Kafka compacts the topic, so that records superseded by later ones may be gone.
        skips_foreign: whether readers skip records that cannot be decoded, as another producer's; else they fail.
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
    compacted: bool = False

    @property
    def traits(self) -> Format:
        """The capabilities of the log's format."""
        return FORMATS[self.format]

    @property
    def group(self) -> str:
        """The consumer group whose offsets are the register."""
        return f"tablestore-{self.table_id}"

    @property
    def tasks_group(self) -> str:
        """The consumer group whose offset of partition 0 names the publisher whose tasks may be writing."""
        return f"{self.group}-tasks"

    def transactional_id(self, partition: int | None = None) -> str:
        """Return the transactional id of the log's publisher, or of one partition's tasks."""
        return self.group if partition is None else f"{self.group}-{partition}"

    def producer(self, partition: int | None = None) -> Producer:
        """Return a producer for the log's publisher or for one partition's tasks; it has not fenced anyone yet.

        Raises:
            InvalidInputError: see ``KafkaClient.producer``.
        """
        options: dict[str, Setting] = {"transaction.timeout.ms": self.transaction_timeout_ms}
        if self.traits.packs_rows and not {"compression.type", "compression.codec"} & set(self.client.config):
            # Such records are already compressed.
            options["compression.type"] = "none"
        return self.client.producer(self.transactional_id(partition), **options, **self.batching())

    def batching(self) -> dict[str, Setting]:
        """Return the producer options that keep batches within the size that the topic accepts."""
        size = int(str(self.client.config.get("batch.size", PRODUCER_DEFAULTS["batch.size"])))
        return {} if self.batch_bytes_max is None else {"batch.size": min(size, self.batch_bytes_max)}

    def under(self, schema: pa.Schema) -> KafkaLog:
        """Return this log with another schema: the columns that the table had in a snapshot, then ``_kind``."""
        return self if schema == self.schema else replace(self, schema=schema)

    def codec(self) -> LogFormat:
        """Return a new format object for this log's records."""
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
        """Return this thread's cached format object for this log's records, which is kept across Spark tasks."""
        columns = self.schema.serialize().to_pybytes()
        key = (self.format, columns, self.primary_key, self.changelog, self.mixed, self.batch_bytes_max)
        return _CODECS.take(key, self.codec)
