"""Reads a table's messages as rows, in tasks: either every message or the last message of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records, Wanted
from log_system.kafka.client.range_reader import read_records
from snapshot.errors import DataLostError
from snapshot.merge.deduplicate import last_records
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.kafka.message_codec import MessageDecoder
from tablestore.connectors.kafka.scan_planner import Scan
from tablestore.connectors.spark.session_zone import session_zone
from tablestore.connectors.table import KafkaTable


@dataclass
class RangeSplit(InputPartition):
    """A split: an offset range of one Kafka partition."""

    part: FetchRange


def read_rows(
    table: KafkaTable, part: FetchRange, columns: Sequence[str], zone: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Read each message as a row.

    Args:
        table: the table.
        part: the offset range to read.
        columns: the columns to read.
        zone: the session's time zone; callers outside a task must pass it.

    Yields:
        The requested columns; for an upsert table also ``_change_type`` and ``_seq`` (the offset).
    """
    options = table.options
    decoder = MessageDecoder(table.coding, columns, zone or session_zone())
    for records in _records(table, part, decoder):
        batch, offsets = decoder.decode(records, part)
        if options.is_upsert:
            batch = batch.append_column(SEQ, pa.array(offsets))
        yield batch


def _records(table: KafkaTable, part: FetchRange, decoder: MessageDecoder) -> Iterator[Records]:
    """Read the records of an offset range; if retention overtakes it after planning, plan the rest again.

    Raises:
        DataLostError: retention has removed messages, and ``auto.offset.reset`` does not allow the read to continue.
    """
    options = table.options
    at, parts = (part.topic, part.partition), [part]
    while parts:
        rest = parts.pop()
        try:
            for records in read_records(
                options.client(),
                options.group_id,
                rest,
                Wanted(all_keys=decoder.needs_keys, messages=decoder.needs_messages),
                isolation=options.properties.isolation_level,
            ):
                rest = replace(rest, start=int(records.offsets[-1]) + 1)
                yield records
        except DataLostError:
            scan = Scan(table.scan_spec())
            try:
                left = scan.ranges({at: rest.start}, {at: rest.end})
                parts = [replace(each, topic_id=rest.topic_id) for each in left]
            finally:
                scan.close()
            if rest in parts:
                raise


def read_last(table: KafkaTable, part: FetchRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the last message of each key, including deletes, in offset order, in bounded memory.

    All messages of a key are in one partition, so the last one in the partition is the last one overall.

    Yields:
        The requested columns, the key columns, ``_change_type`` and ``_seq``.
    """
    key = table.coding.layout.key
    wanted = [*columns, *(name for name in key if name not in columns)]
    return last_records(key, read_rows(table, part, wanted))


def live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without deletes."""
    return batch.filter(pc.not_equal(batch.column(CHANGE_TYPE), RowKind.DELETE.change_type))


def shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns and types that Spark expects."""
    arrays = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
    )
