"""Reads whole snapshots from the log: offsets chosen by the gate, records in bulk, rows in Arrow. Runs in tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import TopicPartition

from log_system.gate import PartitionSlice
from log_system.kafka.client.connect import kafka_errors
from log_system.kafka.client.consumers import ANSWER_SECONDS, CONSUMERS, FetchRange
from log_system.kafka.client.messages import Records, joined, taking
from log_system.kafka.client.range_reader import read_records
from log_system.kafka.client.topic import LOOK_SECONDS, TopicWatch
from log_system.kafka.log import KafkaLog
from log_system.kafka.register import SNAPSHOT_HEADER, RegisterPosition
from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION

FOREIGN = (
    "Another producer writes to this topic: allow it to the table's writers alone (Kafka ACLs). verify() names each "
    "such record. To go on without them, set option 'log.foreign-records' to 'skip'."
)
_FIRST_RECORDS = 10
_BATCH_RECORDS = 20_000
_BATCH_BYTES = 4 << 20
"""Records are decoded together up to these bounds. More JSON at once is slower (measured); a record of the arrow format
holds up to a megabyte."""
_OVERHEAD_BYTES = 150
_WAIT_SECONDS = 0.5


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
        DataLostError: retention has removed the offsets, or the topic was deleted and created again.
        NotFoundError: the topic was deleted.
        CorruptedError: the records are not what the index says, or one cannot be decoded.
        UnavailableError: the broker does not answer.
    """
    doing = f"read offsets {part.start} to {part.end} of partition {part.partition} of topic {log.topic!r}"
    try:
        yield from _decoded(log, part, doing, compacted=compacted)
    except CorruptedError as error:
        found = None if compacted else _first_foreign(log, part)
        if found is None:
            raise
        raise found from error


def _decoded(log: KafkaLog, part: PartitionSlice, doing: str, *, compacted: bool) -> Iterator[pa.RecordBatch]:
    codec = log.kept_codec()
    ends = np.array([b.end for b in part.boundaries])
    versions = np.array([b.snapshot for b in part.boundaries])
    times = np.array([b.timestamp_ms for b in part.boundaries]) * 1000
    for records in _records(log, part, doing, compacted=compacted):
        try:
            # Other producers' records are found by the offsets, so what passes is the table's own; but records that
            # Kafka has compacted away leave gaps which could hide them.
            decoded = codec.decode(records.keys, records.values, own=not compacted)
        except CorruptedError as error:
            raise _located(error, log, part, records.offsets) from error
        number = np.searchsorted(ends, records.offsets, side="right")
        if compacted and log.headers == "all":
            _check_origin(log, part, records.messages, versions[number])
        snapshot = number[decoded.record]
        batch = decoded.batch.append_column(COMMIT_VERSION, pa.array(versions[snapshot]))
        yield batch.append_column(COMMIT_TIMESTAMP, pa.array(times[snapshot]).cast(pa.timestamp("us", "UTC")))


class _Held:
    """Records that wait to be decoded together."""

    def __init__(self) -> None:
        self._parts: list[Records] = []
        self._size = 0
        self.count = 0

    def add(self, records: Records) -> None:
        self._parts.append(records)
        self.count += len(records)
        self._size += records.size + _OVERHEAD_BYTES * len(records)

    @property
    def room(self) -> int:
        """How many more there is room for, if they are as large as those before; 0 when it is time to decode."""
        if self.count >= _BATCH_RECORDS or self._size >= _BATCH_BYTES:
            return 0
        room = (_BATCH_BYTES - self._size) * self.count // max(1, self._size)
        return max(1, min(room, _BATCH_RECORDS - self.count))

    def take(self) -> Records:
        """Give what is held."""
        parts, self._parts, self._size, self.count = self._parts, [], 0, 0
        return joined(parts)


def _records(log: KafkaLog, part: PartitionSlice, doing: str, *, compacted: bool) -> Iterator[Records]:
    """Take exactly the slice's records; asking for the count that is left keeps the client from waiting for more."""
    watch = TopicWatch(log.client, log.topic, log.topic_id)
    left, step = part.records, _FIRST_RECORDS
    held = _Held()
    last, silent_since = part.start, time.monotonic()
    # A row of the table's own holds its key; a delete is nothing but a key.
    wanted = {"all_keys": compacted, "messages": compacted and log.headers == "all"}
    with (
        kafka_errors(doing, log.client),
        CONSUMERS.lend(log.client, f"{log.group}-reader", in_bulk=not wanted["messages"]) as consumer,
        taking(consumer, log.topic, part.partition, **wanted) as take,
    ):
        consumer.assign([TopicPartition(log.topic, part.partition, part.start)])
        reached = -1
        while left > 0:
            records, end = take(min(left, step), _WAIT_SECONDS)
            reached = max(reached, end)
            if records is None:
                # An end before the slice's is not its end: the marker of a commit is written a moment later.
                if reached >= part.end:
                    break
                if time.monotonic() - silent_since >= ANSWER_SECONDS:
                    msg = f"{doing}: no record arrived in {ANSWER_SECONDS:.0f} s; {left} are missing."
                    raise UnavailableError(msg)
                if time.monotonic() - silent_since >= LOOK_SECONDS:
                    # To the client, a partition of a topic that is gone is only silent.
                    watch.look()
                continue
            silent_since = time.monotonic()
            inside = records.before(part.end)
            held.add(inside)
            left -= len(inside)
            last = int(records.offsets[-1]) + 1
            if len(inside) < len(records):
                break
            step = held.room or held.count
            if not held.room:
                yield held.take()
        if held.count:
            yield held.take()
        consumer.unassign()
    if left > 0 and not compacted:
        msg = (
            f"{doing}: the log index counts {part.records} records, {left} are not there. "
            "Somebody has deleted or compacted them; verify() the table and log.repair() it."
        )
        raise DataLostError(msg)
    if left == 0 and last != part.end:
        msg = f"{doing}: the log index counts {part.records} records, there are more. {FOREIGN}"
        raise CorruptedError(msg)


def _first_foreign(log: KafkaLog, part: PartitionSlice) -> CorruptedError | None:
    """Make the error that names the first record of another producer in a slice; None where no range holds any.

    The last record of a snapshot says how many there are. Where its range holds more, those before it that cannot be
    decoded are another producer's; else those at the front, as the publisher's own come together. (A record that came
    in between them is found by verify() alone, which compares rows.)
    """
    group, found = f"{log.group}-reader", FetchRange(log.topic, part.partition, part.start, part.end, log.topic_id)
    ends, held = [boundary.end for boundary in part.boundaries], list[Any]()
    for records in read_records(log.client, group, found, "read_committed", all_keys=True, messages=True):
        for message in records.messages:
            held.append(message)
            if message.offset() + 1 not in ends:
                continue
            position = RegisterPosition.from_headers(message.offset(), message.headers(), log.table_id)
            if position is not None and len(held) > position.records:
                offset = next((m.offset() for m in held if not _is_readable(log, m)), held[0].offset())
                return CorruptedError(
                    f"topic {log.topic!r}, partition {part.partition}, offset {offset}: the record is not the table's. "
                    f"Expected {position.records} records of snapshot {position.snapshot} up to offset "
                    f"{message.offset()}, got {len(held)}. {FOREIGN}"
                )
            held = []
    return None


def _is_readable(log: KafkaLog, message: Any) -> bool:
    try:
        log.kept_codec().decode(
            pa.array([message.key()], pa.large_binary()), pa.array([message.value()], pa.large_binary())
        )
    except CorruptedError:
        return False
    return True


def _check_origin(log: KafkaLog, part: PartitionSlice, messages: Sequence[Any], snapshots: Any) -> None:
    """Check that each record names the snapshot that the index says is at its offset.

    Raises:
        CorruptedError: one does not, so it is another producer's.
    """
    for message, snapshot in zip(messages, snapshots, strict=True):
        named = dict(message.headers() or ()).get(SNAPSHOT_HEADER)
        if named != str(snapshot).encode():
            msg = (
                f"topic {log.topic!r}, partition {part.partition}, offset {message.offset()}: the record does not name "
                f"snapshot {snapshot}, to which its offset belongs. {FOREIGN}"
            )
            raise CorruptedError(msg)


def _located(error: CorruptedError, log: KafkaLog, part: PartitionSlice, offsets: np.ndarray) -> CorruptedError:
    """Name the offset in place of the record's position in its list."""
    head, _, text = str(error).partition(":")
    number = head.removeprefix("record ")
    where = f"offset {offsets[int(number)]}" if number.isdigit() else f"offsets {offsets[0]} to {offsets[-1]}"
    return CorruptedError(f"topic {log.topic!r}, partition {part.partition}, {where}:{text or ' ' + head}")
