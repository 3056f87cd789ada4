"""Reads an eventual log by offsets, without the gate: everything that is there, in the order it came. Runs in tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from log_system.kafka.client import KafkaClient, kafka_errors
from log_system.kafka.log import KafkaLog
from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.schema import COMMIT_TIMESTAMP, SEQ

ANSWER_SECONDS = 30.0
_BATCH_RECORDS = 10_000
_WAIT_SECONDS = 0.1
_FETCH_WAIT_MS = 10
_CONSUMERS_MAX = 4
_ROW_BITS = 24
"""A record of the arrow format holds many rows; their numbers stand below the record's offset in ``_seq``."""
_consumers: OrderedDict[tuple[KafkaClient, str], Any] = OrderedDict()
"""Connections that outlive a task: Spark reuses its Python workers."""


def tail_schema(log: KafkaLog) -> pa.Schema:
    """Give the columns of ``read_tail``."""
    columns = log.schema.append(pa.field(SEQ, pa.int64()))
    return columns.append(pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")))


def offset_of(seq: pa.Array) -> pa.Array:
    """Give the offsets of the records that rows of ``read_tail`` came from, by their ``_seq``; NULL stays NULL."""
    return pc.shift_right(seq, _ROW_BITS)


def read_tail(log: KafkaLog, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Read what a partition holds between two offsets, each record as it came.

    Offsets without a record (a transaction's end, or what Kafka has compacted away) are passed over, and so is what
    lies before the log's retention: the caller checks that where it matters.

    Yields:
        The table's columns, ``_kind``, ``_seq`` (int64, the order within the partition) and ``_commit_timestamp`` (the
        record's own time: whether it is committed is not known here).

    Raises:
        DataLostError: the log's retention removed offsets while they were read.
        CorruptedError: a record cannot be decoded.
        UnavailableError: the broker does not answer.
    """
    codec, schema = log.codec(), tail_schema(log)
    for messages in _records(log, partition, start, end):
        offsets = np.array([m.offset() for m in messages], np.int64)
        try:
            decoded = codec.decode(list(map(Message.key, messages)), list(map(Message.value, messages)))
        except CorruptedError as error:
            msg = f"topic {log.topic!r}, partition {partition}, offsets {offsets[0]} to {offsets[-1]}: {error}"
            raise CorruptedError(msg) from error
        record = decoded.record
        row = np.arange(len(record)) - np.searchsorted(record, record, side="left")
        times = np.array([m.timestamp()[1] for m in messages], np.int64) * 1000
        columns = [
            *decoded.batch.columns,
            pa.array((offsets[record] << _ROW_BITS) + row),
            pa.array(times[record]).cast(pa.timestamp("us", "UTC")),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _records(log: KafkaLog, partition: int, start: int, end: int) -> Iterator[list[Any]]:
    doing = f"read offsets {start} to {end} of partition {partition} of topic {log.topic!r}"
    consumer = _consumer(log)
    try:
        with kafka_errors(doing, log.client):
            low, _ = consumer.get_watermark_offsets(TopicPartition(log.topic, partition), timeout=ANSWER_SECONDS)
            position = max(start, low)
            if position < end:
                consumer.assign([TopicPartition(log.topic, partition, position)])
            silent = 0.0
            while position < end:
                messages = consumer.consume(min(end - position, _BATCH_RECORDS), _WAIT_SECONDS)
                silent = 0.0 if messages else silent + _WAIT_SECONDS
                if silent >= ANSWER_SECONDS:
                    msg = f"{doing}: no record came in {ANSWER_SECONDS:.0f} s."
                    raise UnavailableError(msg)
                found = [m for m in messages if m.error() is None]
                inside = [m for m in found if m.offset() < end]
                if inside:
                    position = inside[-1].offset() + 1
                    yield inside
                if len(inside) < len(found):
                    break
                if any(_is_end(m.error(), doing) for m in messages if m.error() is not None):
                    break
            consumer.unassign()
    except BaseException:
        _forget(log)
        raise


def _is_end(error: KafkaError, doing: str) -> bool:
    """Tell whether a partition's end was reached; raise any other error."""
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client has no public name for it
        return True
    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the same
        msg = f"{doing}: the log's retention has removed them. Start a new query with scan_mode='full'."
        raise DataLostError(msg)
    raise KafkaException(error)


def _consumer(log: KafkaLog) -> Any:
    key = (log.client, log.group)
    if key not in _consumers:
        options: dict[str, int | bool] = {"fetch.wait.max.ms": _FETCH_WAIT_MS, "enable.partition.eof": True}
        _consumers[key] = log.client.consumer(f"{log.group}-tail", **options)
        while len(_consumers) > _CONSUMERS_MAX:
            _consumers.popitem(last=False)[1].close()
    _consumers.move_to_end(key)
    return _consumers[key]


def _forget(log: KafkaLog) -> None:
    consumer = _consumers.pop((log.client, log.group), None)
    if consumer is not None:
        consumer.close()
