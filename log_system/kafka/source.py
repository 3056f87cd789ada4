"""Reads whole snapshots from the log: offsets chosen by the gate, records in bulk, rows in Arrow. Runs in tasks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Message, TopicPartition

from log_system.gate import PartitionSlice
from log_system.kafka.client import kafka_errors
from log_system.kafka.consume import ANSWER_SECONDS, CONSUMERS, consume
from log_system.kafka.log import KafkaLog
from log_system.kafka.register import SNAPSHOT_HEADER
from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.schema import COMMIT_TIMESTAMP, COMMIT_VERSION

_STRANGER = (
    "Another producer writes to this topic: allow it to the table's writers alone (Kafka ACLs), and verify() the table."
)
_FIRST_RECORDS = 10
_BATCH_RECORDS = 20_000
_BATCH_BYTES = 4 << 20
"""Records are decoded together up to these bounds. More JSON at once is slower (measured); a record of the arrow format
holds up to a megabyte."""
_OVERHEAD_BYTES = 150
_SAMPLED = 10
"""One record in so many is measured."""
_offset: Callable[[Any], int] = cast(Any, Message.offset)


def read_slice(log: KafkaLog, part: PartitionSlice, *, compacted: bool = False) -> Iterator[pa.RecordBatch]:
    """Read the changes of a run of snapshots from one partition.

    Args:
        log: the log.
        part: the offsets and how many records they hold.
        compacted: Kafka may have removed records that a later one of their key replaces. Then their count tells nothing
            of another producer's; only where each record names its snapshot (``log.headers=all``) such are found.

    Yields:
        The table's columns, ``_kind`` (int8), ``_commit_version`` (int64), ``_commit_timestamp`` (timestamp, UTC).

    Raises:
        DataLostError: retention has removed the offsets.
        CorruptedError: the records are not what the index says, or one cannot be decoded.
        UnavailableError: the broker does not answer.
    """
    doing = f"read offsets {part.start} to {part.end} of partition {part.partition} of topic {log.topic!r}"
    codec = log.codec()
    ends = [b.end for b in part.boundaries]
    versions = np.array([b.snapshot for b in part.boundaries])
    times = np.array([b.timestamp_ms for b in part.boundaries]) * 1000
    for messages in _records(log, part, doing, compacted=compacted):
        values = list(map(Message.value, messages))
        # A row of the table's own holds its key; a delete is nothing but a key.
        needs_keys = compacted or None in values
        keys = list(map(Message.key, messages)) if needs_keys else [None] * len(values)
        try:
            # Other producers' records are found by the offsets, so what passes is the table's own; but records that
            # Kafka has compacted away leave gaps which could hide them.
            decoded = codec.decode(keys, values, own=not compacted)
        except CorruptedError as error:
            raise _located(error, log, part, list(map(_offset, messages))) from error
        # Boundaries are few and offsets ascend: a search asks for a handful of offsets, not for that of every record.
        first = np.array([bisect_left(messages, end, key=_offset) for end in ends])
        snapshot = np.searchsorted(first, decoded.record, side="right")
        if compacted and log.headers == "all":
            _check_origin(log, part, messages, versions[np.searchsorted(first, np.arange(len(messages)), side="right")])
        batch = decoded.batch.append_column(COMMIT_VERSION, pa.array(versions[snapshot]))
        yield batch.append_column(COMMIT_TIMESTAMP, pa.array(times[snapshot]).cast(pa.timestamp("us", "UTC")))


def _records(log: KafkaLog, part: PartitionSlice, doing: str, *, compacted: bool) -> Iterator[list[Any]]:
    """Consume exactly the slice's records; asking for the count that is left keeps the client from waiting for more."""
    consumer = CONSUMERS.take(log.client, f"{log.group}-reader")
    left, step = part.records, _FIRST_RECORDS
    held: list[Any] = []
    size, last, silent_since = 0, part.start, time.monotonic()
    try:
        with kafka_errors(doing, log.client):
            consumer.assign([TopicPartition(log.topic, part.partition, part.start)])
            reached = -1
            while left > 0:
                messages, end = consume(consumer, min(left, step))
                reached = max(reached, end)
                if not messages:
                    # An end before the slice's is not its end: the marker of a commit is written a moment later.
                    if reached >= part.end:
                        break
                    if time.monotonic() - silent_since >= ANSWER_SECONDS:
                        msg = f"{doing}: no record came in {ANSWER_SECONDS:.0f} s; {left} are missing."
                        raise UnavailableError(msg)
                    continue
                silent_since = time.monotonic()
                inside = messages[: bisect_left(messages, part.end, key=_offset)]
                held += inside
                size += _SAMPLED * sum(map(len, inside[::_SAMPLED])) + _OVERHEAD_BYTES * len(inside)
                left -= len(inside)
                last = _offset(messages[-1]) + 1
                if len(inside) < len(messages):
                    break
                if len(held) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                    yield held
                    held, size = [], 0
                else:
                    # As many as the batch has room for, if they are as large as those before.
                    step = max(1, (_BATCH_BYTES - size) * len(held) // size)
                    step = min(step, _BATCH_RECORDS - len(held))
            if held:
                yield held
    except BaseException:
        CONSUMERS.forget(log.client, f"{log.group}-reader")
        raise
    consumer.unassign()
    if left > 0 and not compacted:
        msg = (
            f"{doing}: the log index counts {part.records} records, {left} are not there. "
            "Somebody has deleted or compacted them; verify() and repair() the table."
        )
        raise DataLostError(msg)
    if left == 0 and last != part.end:
        msg = f"{doing}: the log index counts {part.records} records, there are more. {_STRANGER}"
        raise CorruptedError(msg)


def _check_origin(log: KafkaLog, part: PartitionSlice, messages: list[Any], snapshots: Any) -> None:
    """Check that each record names the snapshot that the index says is at its offset.

    Raises:
        CorruptedError: one does not, so it is another producer's.
    """
    for message, snapshot in zip(messages, snapshots, strict=True):
        named = dict(message.headers() or ()).get(SNAPSHOT_HEADER)
        if named != str(snapshot).encode():
            msg = (
                f"topic {log.topic!r}, partition {part.partition}, offset {_offset(message)}: the record does not name "
                f"snapshot {snapshot}, to which its offset belongs. {_STRANGER}"
            )
            raise CorruptedError(msg)


def _located(error: CorruptedError, log: KafkaLog, part: PartitionSlice, offsets: list[int]) -> CorruptedError:
    """Name the offset in place of the record's position in its list."""
    head, _, text = str(error).partition(":")
    number = head.removeprefix("record ")
    where = f"offset {offsets[int(number)]}" if number.isdigit() else f"offsets {offsets[0]} to {offsets[-1]}"
    return CorruptedError(f"topic {log.topic!r}, partition {part.partition}, {where}:{text or ' ' + head}")
