"""Send changes to an eventual log while they are staged: before the commit and without a transaction. Runs in tasks.

A task that fails halfway leaves records in the log, and its next attempt sends them again. ``eventual_publisher.py``
finds both when it settles the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from log_system.formats import EncodedRecords
from log_system.kafka.client.connect import KafkaClient, discard, flush, kafka_errors, produce
from log_system.kafka.client.errors import translate
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import check_topic_is_own
from log_system.kafka.record_limits import record_limit
from log_system.outages import Outages
from log_system.thread_local_cache import ThreadLocalCache
from snapshot.records import SentRange

_POLL_EVERY = 5_000
_PRODUCERS = ThreadLocalCache[tuple[KafkaClient, str, int | None], Any](discard)
"""Idempotent producers by client, topic and batch size; a producer is discarded after any error.

By the topic's id, since a producer goes on with the partitions that a topic had before it was created again.
"""


@dataclass(frozen=True)
class KafkaLogSinkFactory:
    """Opens sinks of one table's log. Picklable."""

    log: KafkaLog
    is_under_way: bool = False
    """Whether sinks wait while brokers do not answer, as ``Outages`` does."""

    def open(self) -> KafkaLogSink:
        """Open a sink with an idempotent producer: one attempt's records are neither lost, duplicated nor reordered.

        Raises:
            DataLostError: the topic was created again, as a table that was dropped and created again has done.
            NotFoundError: the topic was deleted.
        """
        outlast = Outages(was_answered=self.is_under_way).outlast
        outlast(partial(check_topic_is_own, self.log))
        limit = outlast(partial(record_limit, self.log.client, self.log.topic))
        log = self.log if limit is None else replace(self.log, batch_bytes_max=limit.batch_bytes)
        overrides = log.batching()
        if self.is_under_way:
            log = replace(log, client=log.client.outlasting())
            overrides["message.timeout.ms"] = int(1000 * log.client.wait_seconds)
        return KafkaLogSink(log, _PRODUCERS.take(_kept_by(log), partial(log.client.producer, None, **overrides)))

    def outlasting(self) -> KafkaLogSinkFactory:
        """Return this factory for a query that is under way, whose sinks wait while brokers do not answer."""
        return replace(self, is_under_way=True)


class KafkaLogSink:
    """Sends one task's changes to the log; each bucket is one partition."""

    def __init__(self, log: KafkaLog, producer: Any) -> None:
        """Create a sink that sends with ``producer``, an idempotent, non-transactional producer."""
        self._log = log
        self._producer = producer
        self._codec = log.kept_codec()
        self._streams: dict[int, RecordStream] = {}

    def send(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Queue a bucket's changes.

        Raises:
            TableStoreError: the broker has refused what was sent before.
        """
        if bucket not in self._streams:
            self._streams[bucket] = RecordStream(self._log.topic, bucket, self._producer)
        records = self._codec.encode(changes)
        with self._errors():
            self._streams[bucket].send(records)

    def close(self) -> dict[int, SentRange]:
        """Wait until the broker has acknowledged all records, and return where they are, by bucket.

        Raises:
            TableStoreError: some are not acknowledged; records already in the log are repaired after the next commit.
        """
        with self._errors():
            flush(self._producer, self._log.client.wait_seconds)
            return {bucket: stream.sent() for bucket, stream in self._streams.items()}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the client's errors, and forget the producer after any error."""
        doing = f"send changes to topic {self._log.topic!r}"
        try:
            with kafka_errors(doing, self._log.client, handle=self._producer, indefinite=True):
                yield
        except BaseException:
            _PRODUCERS.forget(_kept_by(self._log))
            raise


class RecordStream:
    """Sends records to one partition, counts acknowledgements and tracks the first and last offsets."""

    def __init__(self, topic: str, partition: int, producer: Any) -> None:
        """Create a stream that sends to ``partition`` with ``producer``."""
        self._topic = topic
        self._partition = partition
        self._producer = producer
        self._confirmed = 0
        self._first = self._last = -1
        self._failed: Any = None
        self.records = 0

    def send(self, records: EncodedRecords) -> None:
        """Queue records.

        Each has a delivery report: without a transaction nothing else reveals a record that the broker rejected.
        """
        queue, topic, partition, heard = self._producer.produce, self._topic, self._partition, self._on_delivery
        for number, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            try:
                queue(topic, value, key, partition, heard)
            except BufferError:
                produce(self._producer, topic, value, key, partition, heard)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)
        self.records += len(records)

    def sent(self) -> SentRange:
        """Return the offset range of the sent records; the producer must have been flushed.

        Raises:
            TableStoreError: the broker rejected a record or has not acknowledged all.
        """
        doing = f"send changes to topic {self._topic!r}"
        if self._failed is not None:
            raise translate(self._failed, doing, indefinite=True)
        if self._confirmed < self.records:
            lacking = TimeoutError(f"{self.records - self._confirmed} of {self.records} records were not confirmed")
            raise translate(lacking, doing, indefinite=True)
        return SentRange(self._first, self._last + 1, self.records)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed = error
            return
        # The producer is idempotent: delivery reports and offsets follow the order of the records.
        self._last = message.offset()
        if self._confirmed == 0:
            self._first = self._last
        self._confirmed += 1


def _kept_by(log: KafkaLog) -> tuple[KafkaClient, str, int | None]:
    return log.client, log.topic_id, log.batch_bytes_max
