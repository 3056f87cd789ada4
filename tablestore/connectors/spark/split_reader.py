"""Reads a table's messages as rows, in tasks: either every message or the last message of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records, Wanted, joined, newest
from log_system.kafka.client.range_reader import read_records
from snapshot.errors import DataLostError, NotFoundError
from snapshot.merge.deduplicate import last_records
from snapshot.row_kind import ADDED, CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ, renumbered
from tablestore.connectors.kafka.message_codec import MessageDecoder
from tablestore.connectors.kafka.scan_planner import Scan
from tablestore.connectors.spark.session_zone import session_zone
from tablestore.connectors.table import KafkaTable

_HELD_RECORDS = 300_000
_HELD_BYTES = 64 << 20
_DECODED_RECORDS = 20_000


@dataclass
class RangeSplit(InputPartition):
    """A split: an offset range of one Kafka partition."""

    part: FetchRange


def read_rows(
    table: KafkaTable, part: FetchRange, columns: Sequence[str], zone: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Read each message of an offset range as a row; callers outside a task must pass the session's time zone.

    Yields:
        The requested columns; for a table of changes also ``_change_type`` and ``_seq`` (the offset).
    """
    options = table.options
    decoder = MessageDecoder(table.coding, columns, zone or session_zone())
    for records in _records(table, part, decoder):
        batch, offsets = decoder.decode(records, part)
        if options.has_changes:
            batch = batch.append_column(SEQ, pa.array(offsets))
        yield batch


def _records(table: KafkaTable, part: FetchRange, decoder: MessageDecoder) -> Iterator[Records]:
    """Read the records of an offset range; if they are removed after planning, plan the rest again.

    Raises:
        DataLostError: retention has removed messages, or a topic was deleted, and ``auto.offset.reset`` does not allow
            the read to continue.
        NotFoundError: a topic configured by name was deleted.
    """
    options = table.options
    at, parts = (part.topic, part.partition), [part]
    while parts:
        rest = parts.pop()
        try:
            for records in read_records(
                options.client().outlasting(),
                options.group_id,
                rest,
                Wanted(all_keys=decoder.needs_keys, messages=decoder.needs_messages),
                isolation=options.properties.isolation_level,
            ):
                rest = replace(rest, start=int(records.offsets[-1]) + 1)
                yield records
        except (DataLostError, NotFoundError):
            with closing(Scan(table.scan_spec())) as scan:
                left = scan.ranges({at: rest.start}, {at: rest.end}, ids={rest.topic: rest.topic_id})
                parts = [replace(each, topic_id=rest.topic_id) for each in left]
            if rest in parts:
                raise


def read_last(table: KafkaTable, part: FetchRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the last message of each key, including deletes, in offset order, in bounded memory.

    All messages of a key are in one partition, so the last one in the partition is the last one overall.

    Yields:
        The requested columns, the key columns, ``_change_type`` and ``_seq``.
    """
    key = table.coding.layout.key
    decoder = MessageDecoder(table.coding, [*columns, *(name for name in key if name not in columns)], session_zone())
    return last_records(key, _last_rows(decoder, _records(table, part, decoder), part))


def read_final(table: KafkaTable, part: FetchRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the rows that the changes of a changelog format leave, by primary key, in bounded memory.

    All messages of a key are in one partition, so its last change there is the last one overall.

    Yields:
        The requested columns, the key columns, ``_change_type`` and ``_seq``.
    """
    key = table.options.primary_key
    wanted = [*columns, *(name for name in key if name not in columns)]
    # The rows of one message have the same offset.
    for batch in last_records(key, renumbered(read_rows(table, part, wanted))):
        yield batch.filter(pc.is_in(batch.column(CHANGE_TYPE), value_set=pa.array(ADDED)))


def _last_rows(decoder: MessageDecoder, batches: Iterable[Records], part: FetchRange) -> Iterator[pa.RecordBatch]:
    """Decode at least the last message of each key; leaving out others before they are decoded saves most of the work.

    A message that is not a row, such as one whose parse error is ignored, does not replace the one before. If there
    is one, all messages are decoded.
    """
    for records in _windows(batches):
        last = records
        if not decoder.needs_messages:
            last = newest(records.take(np.flatnonzero(records.keys.is_valid())))
        rows = list(_decoded(decoder, last, part))
        are_rows = sum(map(len, rows)) == len(last)
        yield from rows if are_rows else _decoded(decoder, records, part)


def _decoded(decoder: MessageDecoder, records: Records, part: FetchRange) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(records), _DECODED_RECORDS):
        batch, offsets = decoder.decode(records.slice(start, _DECODED_RECORDS), part)
        yield batch.append_column(SEQ, pa.array(offsets))


def _windows(batches: Iterable[Records]) -> Iterator[Records]:
    """Join records to as many as fit into bounded memory."""
    held: list[Records] = []
    for records in batches:
        held.append(records)
        if sum(map(len, held)) >= _HELD_RECORDS or sum(each.size for each in held) >= _HELD_BYTES:
            yield joined(held)
            held = []
    if held:
        yield joined(held)


def live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without deletes."""
    return batch.filter(pc.not_equal(batch.column(CHANGE_TYPE), RowKind.DELETE.change_type))


def shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns and types that Spark expects."""
    arrays = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
    )
