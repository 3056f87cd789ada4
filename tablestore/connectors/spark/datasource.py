"""The Spark data sources ``format("kafka-table")`` and ``format("upsert-kafka")``: rows in Kafka messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from log_system.kafka.client.consumers import FetchRange
from snapshot.errors import InvalidInputError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.kafka.scan_planner import Scan
from tablestore.connectors.option_names import FORMATS, PRIMARY_KEY, Connector, Side
from tablestore.connectors.spark.changelog_stream import CHANGELOG_FORMAT, ChangelogStream
from tablestore.connectors.spark.partition_watermarks import IDLE, MESSAGES, PartitionStream, take_watermarks
from tablestore.connectors.spark.sink import Sink, Written
from tablestore.connectors.spark.split_reader import RangeSplit, live, read_final, read_last, read_rows, shown
from tablestore.connectors.spark.stream import KafkaStream
from tablestore.connectors.table import KafkaTable
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task


@shows_messages
class KafkaDataSource(DataSource):
    """Data source over topics whose messages are rows; ``ConnectorOptions`` documents the options."""

    connector: ClassVar[Connector] = Connector.KAFKA

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return FORMATS[cls.connector]

    def schema(self) -> StructType:
        """Raise, because messages carry no schema; the user must specify one."""
        msg = (
            f"format({self.name()!r}): messages carry no schema; give the columns by .schema('a BIGINT, b STRING'), "
            "metadata columns among them."
        )
        raise InvalidInputError(msg)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader that reads up to the current end or the configured bound."""
        return KafkaReader(self._table(schema, Side.SOURCE), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader, of a single partition if the options contain per-partition watermark settings."""
        options = dict(self.options)
        watched = take_watermarks(options)
        if watched is None:
            return KafkaStream(self._table(schema, Side.SOURCE), schema)
        rows = StructType([field for field in schema.fields if field.name not in (IDLE, MESSAGES)])
        return PartitionStream(KafkaTable.of(self.connector, options, rows, Side.SOURCE), rows, watched)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return a batch writer that appends rows; in an upsert table, each row replaces the row of its key."""
        if overwrite:
            msg = f"format({self.name()!r}) does not overwrite: a topic can only be added to. Use mode('append')."
            raise InvalidInputError(msg)
        return TopicWriter(Sink.open(self.connector, dict(self.options), schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return a writer of micro-batches."""
        if overwrite and self.connector is Connector.KAFKA:
            msg = (
                "A 'kafka' table doesn't support consuming update changes, which outputMode('complete') makes; it only "
                "appends rows. Use outputMode('append'), or an 'upsert-kafka' table."
            )
            raise InvalidInputError(msg)
        return TopicWriter(Sink.open(self.connector, dict(self.options), schema, is_stream=True))

    def _table(self, schema: StructType, side: Side) -> KafkaTable:
        return KafkaTable.of(self.connector, dict(self.options), schema, side)


@shows_messages
class UpsertKafkaDataSource(KafkaDataSource):
    """Data source over a topic where the last message of a key is its current row."""

    connector: ClassVar[Connector] = Connector.UPSERT


@shows_messages
class ChangelogDataSource(UpsertKafkaDataSource):
    """The stream of an upsert table through the normalize operator, which query plans show by this source's name."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return CHANGELOG_FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader that turns messages into a changelog."""
        return ChangelogStream(self._table(schema, Side.SOURCE), schema)


@dataclass
class _Message(WriterCommitMessage):
    """The result of one write task."""

    written: Written


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message.written for message in messages if isinstance(message, _Message)]


@shows_messages
class TopicWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writer of a batch (``df.write.format(...)`` and ``INSERT INTO``) or of micro-batches (``df.writeStream``)."""

    def __init__(self, sink: Sink) -> None:
        """Write into ``sink``."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write or stage a task's rows."""
        return _Message(self._sink.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Commit; with exactly-once delivery, the staged rows are written here, those of a micro-batch only once."""
        self._sink.commit(_written(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Delete the staging files."""
        self._sink.abort(_written(messages))


@shows_messages
class KafkaReader(DataSourceReader):
    """Reads the messages that topics hold at planning time.

    Of an upsert table, it reads the current row of each key. Of a changelog format, it reads the rows that the changes
    leave, or the changes themselves if ``_change_type`` is in the schema.
    """

    def __init__(self, table: KafkaTable, schema: StructType) -> None:
        """Read the table as rows of ``schema``."""
        options = table.options
        self._shows_changes = CHANGE_TYPE in schema.fieldNames()
        if self._shows_changes and not options.is_changelog:
            msg = f"column '{CHANGE_TYPE}': a batch read has rows, not changes. Leave it out, or read a stream."
            raise InvalidInputError(msg)
        if options.is_changelog and not self._shows_changes and not options.primary_key:
            msg = (
                f"{options.what}: which rows the changes leave is known here by the PRIMARY KEY only. Set option "
                f"'{PRIMARY_KEY}', read with tablestore.connectors.read(), which compares whole rows, or add "
                f"'{CHANGE_TYPE} STRING' to the schema to read the changes."
            )
            raise InvalidInputError(msg)
        self._table = table
        self._schema: pa.Schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one split for each Kafka partition that has messages to read."""
        with closing(Scan(self._table.scan_spec())) as scan:
            begin = scan.begin()
            # What transactions that are open now write is not read, wherever the read ends.
            ends, until = scan.ends(), scan.until()
            end = ends if until is None else {each: min(until[each], ends.get(each, 0)) for each in until}
            parts = scan.ranges(begin, {each: max(offset, begin.get(each, 0)) for each, offset in end.items()})
        return [RangeSplit(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        begin_task()
        # If there is nothing to read, Spark starts one task without a split.
        if not isinstance(partition, RangeSplit):
            return
        for rows in self._rows(partition.part):
            if rows.num_rows:
                yield shown(rows, self._schema)

    def _rows(self, part: FetchRange) -> Iterator[pa.RecordBatch]:
        columns = [name for name in self._schema.names if name not in (CHANGE_TYPE, SEQ)]
        if self._table.options.is_upsert:
            return map(live, read_last(self._table, part, columns))
        if self._table.options.is_changelog and not self._shows_changes:
            return read_final(self._table, part, columns)
        return read_rows(self._table, part, columns)
