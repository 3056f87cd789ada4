"""Read complete snapshots from the log as Arrow, in bulk, at offsets chosen by the gate. Runs in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from log_system.gate import PartitionSlice
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records, Wanted
from log_system.kafka.client.range_reader import BatchSize, read_records
from log_system.kafka.log import KafkaLog
from log_system.kafka.register import RegisterPosition
from snapshot.errors import BadRecordError, CorruptedError, DataLostError
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION

FOREIGN = (
    "Another producer writes to this topic: allow it to the table's writers alone (Kafka ACLs). verify() names each "
    "such record. To go on without them, set option 'log.foreign-records' to 'skip'."
)
_REMEDY: Final = "Restart the reader from a snapshot; a longer log.retention gives readers more time."
_BATCH: Final = BatchSize(first=10, records=20_000, bytes=4 << 20)
"""Larger batches of JSON are slower (measured); one record of the arrow format may hold up to a megabyte."""


def read_slice(log: KafkaLog, part: PartitionSlice) -> Iterator[pa.RecordBatch]:
    """Yield the changes of consecutive snapshots in one partition.

    Args:
        log: the log, which is not compacted.
        part: the offsets and how many records they hold.

    Yields:
        The table's columns, ``_kind`` (int8), ``_commit_version`` (int64), ``_commit_timestamp`` (timestamp, UTC).

    Raises:
        DataLostError: retention has removed the offsets, or the topic was deleted and created again.
        NotFoundError: the topic was deleted.
        CorruptedError: the records do not match the log index, or one cannot be decoded.
        UnavailableError: the broker does not respond.
    """
    try:
        yield from _decoded(log, part)
    except CorruptedError as error:
        found = _first_foreign(log, part)
        if found is None:
            raise
        raise found from error


def _decoded(log: KafkaLog, part: PartitionSlice) -> Iterator[pa.RecordBatch]:
    codec = log.kept_codec()
    ends = np.array([b.end for b in part.boundaries])
    versions = np.array([b.snapshot for b in part.boundaries])
    times = np.array([b.timestamp_ms for b in part.boundaries]) * 1000
    for records in _records(log, part):
        try:
            # The record count of the range reveals other producers' records, so these are the table's own.
            decoded = codec.decode(records.keys, records.values, own=True)
        except BadRecordError as error:
            where = f"topic {log.topic!r}, partition {part.partition}, offset {records.offsets[error.position]}"
            msg = f"{where}: {error.reason}"
            raise CorruptedError(msg) from error
        number = np.searchsorted(ends, records.offsets, side="right")
        snapshot = number[decoded.record]
        batch = decoded.batch.append_column(COMMIT_VERSION, pa.array(versions[snapshot]))
        yield batch.append_column(COMMIT_TIMESTAMP, pa.array(times[snapshot]).cast(pa.timestamp("us", "UTC")))


def _records(log: KafkaLog, part: PartitionSlice) -> Iterator[Records]:
    """Yield exactly the slice's records.

    Raises:
        DataLostError: there are fewer records than the log index counts.
        CorruptedError: there are more.
    """
    found = replace(_offsets(log, part), records=part.records)
    left, last = part.records, part.start
    # The value of one of the table's own rows contains its key, so keys are needed only for deletes.
    for records in read_records(log.client, f"{log.group}-reader", found, Wanted(), remedy=_REMEDY, batch=_BATCH):
        left, last = left - len(records), int(records.offsets[-1]) + 1
        yield records
    if left > 0:
        msg = (
            f"read {found}: the log index counts {part.records} records, {left} are not there. "
            "Somebody has deleted or compacted them, or a broker has lost them; verify() the table and log.repair() it."
        )
        raise DataLostError(msg)
    if left == 0 and last != part.end:
        msg = f"read {found}: the log index counts {part.records} records, there are more. {FOREIGN}"
        raise CorruptedError(msg)


def _offsets(log: KafkaLog, part: PartitionSlice) -> FetchRange:
    return FetchRange(log.topic, part.partition, part.start, part.end, log.topic_id)


def _first_foreign(log: KafkaLog, part: PartitionSlice) -> CorruptedError | None:
    """Return the error that names another producer's first record in a slice; None if the counts show no such record.

    The last record of a snapshot holds the snapshot's record count. If its range holds more records, blame the first
    one that cannot be decoded; if all can be decoded, blame the first record of the range, because the publisher's own
    records are written together at its end. (Only verify(), which compares rows, finds a record between those.)
    """
    group, found = f"{log.group}-reader", _offsets(log, part)
    ends, held = [boundary.end for boundary in part.boundaries], list[Any]()
    for records in read_records(log.client, group, found, Wanted(all_keys=True, messages=True)):
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
    except BadRecordError:
        return False
    return True
