"""Reads a table's messages as rows, in tasks: plain rows, or of each key the last one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.messages import Records
from log_system.kafka.client.range_reader import read_records
from snapshot.errors import DataLostError
from snapshot.merge.deduplicate import last_per_key
from snapshot.merge.duckdb_engine import connect
from snapshot.row_kind import CHANGE_TYPE, RowKind
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.kafka.message_codec import MessageDecoder
from tablestore.connectors.kafka.scan_planner import Scan
from tablestore.connectors.spark.session_zone import session_zone
from tablestore.connectors.table import KafkaTable

_MEMORY = "256MB"


@dataclass
class RangeSplit(InputPartition):
    """Some messages of one partition."""

    part: FetchRange


def read_rows(
    table: KafkaTable, part: FetchRange, columns: Sequence[str], zone: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Read each message as a row.

    Args:
        table: the table.
        part: the messages.
        columns: those wanted.
        zone: the session's time zone, for callers that are no task.

    Yields:
        The columns asked for; an upsert table adds ``_change_type``, and ``_seq`` (the offset).
    """
    options = table.options
    decoder = MessageDecoder(table.coding, columns, zone or session_zone())
    for records in _records(table, part, decoder):
        batch, offsets = decoder.decode(records, part)
        if options.is_upsert:
            batch = batch.append_column(SEQ, pa.array(offsets))
        yield batch


def _records(table: KafkaTable, part: FetchRange, decoder: MessageDecoder) -> Iterator[Records]:
    """Read a part; where retention overtakes it since it was planned, go on as a new plan of what is left says.

    Raises:
        DataLostError: retention has removed messages, and the options do not say to go on.
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
                options.properties.isolation_level,
                all_keys=decoder.needs_keys,
                messages=decoder.needs_messages,
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
    """Read of each key the last message, deletes among them, in the order of their offsets.

    A key is in one partition, so what is last there is last. DuckDB keeps the rows, and spills rather than growing.

    Yields:
        The columns asked for and the key's, ``_change_type`` and ``_seq``.
    """
    key = table.coding.layout.key
    wanted = [*columns, *(name for name in key if name not in columns)]
    with tempfile.TemporaryDirectory(prefix="tablestore-") as folder:
        engine: duckdb.DuckDBPyConnection = connect(memory_limit=_MEMORY, temp_directory=folder, filesystem=None)
        try:
            yield from last_per_key(engine, key, read_rows(table, part, wanted))
        finally:
            engine.close()


def live(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave deletes out."""
    return batch.filter(pc.not_equal(batch.column(CHANGE_TYPE), RowKind.DELETE.change_type))


def shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch exactly the columns that Spark expects."""
    arrays = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
    )
