"""Send a snapshot's changes to one log partition, inside a transaction that the caller begins and commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException

from log_system.formats import EncodedRecords, LogFormat
from log_system.kafka.client import bulk_produce
from log_system.kafka.client.connect import kafka_errors, produce
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import shorter
from log_system.kafka.register import SNAPSHOT_HEADER, RegisterPosition
from snapshot.records import ChangeSet

_POLL_EVERY = 5_000


class Sender:
    """Sends changes to one partition and obtains the offset of the last record from the broker."""

    def __init__(self, log: KafkaLog, producer: Any, codec: LogFormat, partition: int) -> None:
        """Create a sender that uses ``producer``, which must be in a transaction whenever something is sent."""
        self._log = log
        self._producer = producer
        self._codec = codec
        self._partition = partition
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._next: tuple[int, int] | None = None
        self._position: RegisterPosition | None = None
        self._records = 0
        self._landed: int | None = None
        self._failed: Any = None

    def send(self, changes: ChangeSet, position: RegisterPosition, rows_max: int) -> int:
        """Queue up to ``rows_max`` changes after ``position``, the last with the new one, and return their number."""
        total = changes.rows(self._partition)
        left = min(total - position.rows, rows_max)
        queued = left
        self._landed = None
        held = position.records
        # Continue where the previous transaction stopped, without reading its rows again.
        if self._next != (changes.snapshot.id, position.rows):
            self._batches = changes.batches(self._partition, position.rows)
        self._next = None
        for batch in self._batches:
            part = batch.slice(0, left)
            left -= part.num_rows
            position = self._send_batch(part, position, total, is_last=left == 0)
            if left == 0:
                rest = batch.slice(part.num_rows)
                self._batches = chain([rest] if rest.num_rows else [], self._batches)
                self._next = changes.snapshot.id, position.rows
                break
        self._position, self._records = position, position.records - held
        return queued

    def position(self) -> RegisterPosition:
        """Return the position after the last record; the producer must have been flushed.

        Raises:
            TableStoreError: the broker rejected a record, or has not acknowledged all.
            DataLostError: the records are below earlier published offsets: the topic was created again, or the broker
                has lost the end of the log.
        """
        assert self._position is not None
        with kafka_errors(f"publish to topic {self._log.topic!r}", self._log.client, handle=self._producer):
            if self._failed is not None:
                raise KafkaException(self._failed)
            if self._landed is None:
                msg = "the last record was not confirmed"
                raise TimeoutError(msg)
            first = self._landed + 1 - self._records
            if first < self._position.end <= self._landed:
                # The client may have given records up that waited while this process slept. The next take-over looks.
                msg = "records before the last one may not have been delivered"
                raise TimeoutError(msg)
        if first < self._position.end:
            # The transaction is still open, so readers will not see its records.
            raise shorter(self._log, self._partition, self._position.end, first)
        return replace(self._position, end=self._landed + 1)

    def _send_batch(
        self, batch: pa.RecordBatch, position: RegisterPosition, total: int, *, is_last: bool
    ) -> RegisterPosition:
        records = self._codec.encode(batch)
        after = replace(
            position,
            rows=position.rows + batch.num_rows,
            records=position.records + len(records),
            done=position.rows + batch.num_rows == total,
        )
        plain = len(records) - 1 if is_last else len(records)
        self._produce(records, plain, position.snapshot)
        if is_last:
            key, value = records.key_column[plain].as_py(), records.value_column[plain].as_py()
            headers = after.headers(total, self._log.table_id)
            produce(self._producer, self._log.topic, value, key, self._partition, self._on_delivery, headers=headers)
        return after

    def _produce(self, records: EncodedRecords, count: int, snapshot: int) -> None:
        queue, topic, partition = self._producer.produce, self._log.topic, self._partition
        if self._log.headers == "all":
            headers = [(SNAPSHOT_HEADER, str(snapshot).encode())]
            for number in range(count):
                produce(self._producer, topic, records.values[number], records.keys[number], partition, headers=headers)
            return
        if bulk_produce.can_send(self._producer):
            keys, values = records.key_column.slice(0, count), records.value_column.slice(0, count)
            bulk_produce.send(self._producer, topic, partition, keys, values)
            return
        for start in range(0, count, _POLL_EVERY):
            stop = min(start + _POLL_EVERY, count)
            for key, value in zip(records.keys[start:stop], records.values[start:stop], strict=True):
                try:
                    queue(topic, value, key, partition)
                except BufferError:
                    produce(self._producer, topic, value, key, partition)
            self._producer.poll(0)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed = error
        else:
            self._landed = message.offset()
