"""Spark's ``format("kafka-table")`` and ``format("upsert-kafka")``: rows in the messages of Kafka topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from snapshot.errors import InvalidInputError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from tablestore.connectors.kafka.scan_planner import Scan
from tablestore.connectors.option_names import Connector, Side
from tablestore.connectors.spark.partition_watermarks import IDLE, PartitionStream, take_watermarks
from tablestore.connectors.spark.sink import Sink, Written
from tablestore.connectors.spark.split_reader import RangeSplit, live, read_last, read_rows, shown
from tablestore.connectors.spark.stream import KafkaStream
from tablestore.connectors.table import KafkaTable
from tablestore.spark.python_worker import begin_task


class KafkaDataSource(DataSource):
    """Topics whose messages are rows. Options: see ``ConnectorOptions``."""

    connector: ClassVar[Connector] = Connector.KAFKA

    @classmethod
    def name(cls) -> str:
        """Give the name for ``format(...)``; ``kafka`` is Spark's own."""
        return "kafka-table"

    def schema(self) -> StructType:
        """Refuse to guess: messages have no schema of their own."""
        msg = (
            f"format({self.name()!r}): messages carry no schema; give the columns by .schema('a BIGINT, b STRING'), "
            "metadata columns among them."
        )
        raise InvalidInputError(msg)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read up to the current end, or where the options say."""
        return KafkaReader(self._table(schema, Side.SOURCE), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read messages as they come."""
        options = dict(self.options)
        watched = take_watermarks(options)
        if watched is None:
            return KafkaStream(self._table(schema, Side.SOURCE), schema)
        rows = StructType([field for field in schema.fields if field.name != IDLE])
        return PartitionStream(KafkaTable.of(self.connector, options, rows, Side.SOURCE), rows, watched)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """Append rows; in an upsert table they replace those of their keys."""
        if overwrite:
            msg = f"format({self.name()!r}) does not overwrite: a topic can only be added to. Use mode('append')."
            raise InvalidInputError(msg)
        return TopicBatchWriter(Sink.open(self.connector, dict(self.options), schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Write micro-batches."""
        if overwrite and self.connector is Connector.KAFKA:
            msg = (
                "A 'kafka' table doesn't support consuming update changes, which outputMode('complete') makes; it only "
                "appends rows. Use outputMode('append'), or an 'upsert-kafka' table."
            )
            raise InvalidInputError(msg)
        return TopicStreamWriter(Sink.open(self.connector, dict(self.options), schema, is_stream=True))

    def _table(self, schema: StructType, side: Side) -> KafkaTable:
        return KafkaTable.of(self.connector, dict(self.options), schema, side)


class UpsertKafkaDataSource(KafkaDataSource):
    """A topic whose messages are the newest rows of their keys."""

    connector: ClassVar[Connector] = Connector.UPSERT

    @classmethod
    def name(cls) -> str:
        """Give the name for ``format(...)``."""
        return "upsert-kafka"


@dataclass
class _Message(WriterCommitMessage):
    """What one task did."""

    written: Written


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message.written for message in messages if isinstance(message, _Message)]


class TopicBatchWriter(DataSourceArrowWriter):
    """``df.write.format(...)`` and ``INSERT INTO``."""

    def __init__(self, sink: Sink) -> None:
        """Write into ``sink``."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write or stage a task's rows."""
        return _Message(self._sink.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the write."""
        self._sink.commit(_written(messages), None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self._sink.abort(_written(messages))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format(...)``."""

    def __init__(self, sink: Sink) -> None:
        """Write into ``sink``."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write or stage a task's rows."""
        return _Message(self._sink.run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Finish a micro-batch; exactly-once writes it here, unless it is there."""
        self._sink.commit(_written(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged."""
        self._sink.abort(_written(messages))


class KafkaReader(DataSourceReader):
    """Reads what topics hold when the read is planned: each message, or of an upsert table the row of each key."""

    def __init__(self, table: KafkaTable, schema: StructType) -> None:
        """Read the table as rows of ``schema``."""
        if CHANGE_TYPE in schema.fieldNames():
            msg = f"column '{CHANGE_TYPE}': a batch read has rows, not changes. Leave it out, or read a stream."
            raise InvalidInputError(msg)
        self._table = table
        self._schema: pa.Schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task a partition."""
        scan = Scan(self._table.scan_spec())
        try:
            begin = scan.begin()
            end = scan.until() or scan.ends()
            parts = scan.ranges(begin, {each: max(offset, begin.get(each, 0)) for each, offset in end.items()})
        finally:
            scan.close()
        return [RangeSplit(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
        begin_task()
        # Where there is nothing to read, Spark starts one task without a part.
        if not isinstance(partition, RangeSplit):
            return
        columns = self._schema.names
        is_upsert = self._table.options.is_upsert
        for batch in (read_last if is_upsert else read_rows)(self._table, partition.part, columns):
            rows = live(batch) if is_upsert else batch
            if rows.num_rows:
                yield shown(rows, self._schema)
