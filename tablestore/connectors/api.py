"""Reads and writes tables of the connectors with what only a whole query can give.

``format("kafka-table")`` and ``format("upsert-kafka")`` do the same where Spark lets a data source do it. A data source
cannot bring the rows of a key together before it writes them, choose the number of tasks, take updating results
(output mode ``update``), or keep state; these functions do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from log_system.kafka.client.secrets import reveal, wrap
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.option_names import Connector, Side
from tablestore.connectors.options import ConnectorOptions, parse_options
from tablestore.connectors.spark.sink import Sink, Written
from tablestore.spark.normalize import changelog

FORMATS = {Connector.KAFKA: "kafka-table", Connector.UPSERT: "upsert-kafka"}
_RESULT = "written string"


def read(spark: SparkSession, connector: str, schema: StructType | str, options: Mapping[str, object]) -> DataFrame:
    """Read a table up to its current end, or where the options say: rows, of an upsert table one for each key."""
    options = wrap(options)
    return spark.read.format(FORMATS[Connector(connector)]).schema(schema).options(**reveal(options)).load()


def read_stream(
    spark: SparkSession, connector: str, schema: StructType | str, options: Mapping[str, object]
) -> DataFrame:
    """Read a table's messages as they come.

    Of an upsert table these are upserts and deletes, told apart by ``_change_type``, which its schema must have; see
    `read_changes` for what became of its rows.
    """
    options = wrap(options)
    return spark.readStream.format(FORMATS[Connector(connector)]).schema(schema).options(**reveal(options)).load()


def read_changes(
    spark: SparkSession, schema: StructType | str, options: Mapping[str, object], *, ordered: bool = False
) -> DataFrame:
    """Read an upsert table as a changelog: what became of each row, and what it was before.

    The rows' last state is kept for each key, in Spark's state store. A micro-batch folds the messages of a key first:
    it tells the change from before it to after it.

    Args:
        spark: a session that knows ``format("upsert-kafka")``.
        schema: the table's columns.
        options: the table's.
        ordered: whether to add ``_seq``, the offset of the message, which is higher in what comes later of a key.

    Returns:
        A streaming frame of these columns and ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage``,
        ``delete``, which holds the row as it was). The query runs in output mode ``update``.
    """
    options = wrap(options)
    columns = spark.createDataFrame([], schema).schema
    records = StructType([*columns.fields, StructField(CHANGE_TYPE, StringType()), StructField(SEQ, LongType())])
    keys = parse_options(Connector.UPSERT, options, Side.SOURCE).key_fields
    carried = (SEQ,) if ordered else ()
    return changelog(read_stream(spark, Connector.UPSERT, records, options), columns, keys, carried=carried)


def write(frame: DataFrame, connector: str, options: Mapping[str, object]) -> None:
    """Append a frame's rows to a table; in an upsert table they replace those of their keys.

    Args:
        frame: the rows; ``_change_type`` says which of them are deletes.
        connector: ``kafka`` or ``upsert-kafka``.
        options: the table's.

    Raises:
        InvalidInputError: the options are wrong, or do not go with the rows.
        UnavailableError: the broker does not answer.
    """
    options, kind = wrap(options), Connector(connector)
    parsed = parse_options(kind, options, Side.SINK)
    _arranged(frame, parsed).write.format(FORMATS[kind]).options(**reveal(options)).mode("append").save()


def write_stream(
    frame: DataFrame,
    connector: str,
    options: Mapping[str, object],
    *,
    output_mode: str = "append",
    transform: Callable[[DataFrame], DataFrame] | None = None,
) -> DataStreamWriter:
    """Write a stream into a table.

    Args:
        frame: a streaming frame.
        connector: ``kafka`` or ``upsert-kafka``.
        options: the table's, and ``checkpointLocation``.
        output_mode: ``append``; an upsert table takes ``update`` and ``complete`` too.
        transform: makes of the rows of a micro-batch those that are written.

    Returns:
        The query, to be given a trigger and started.

    Raises:
        InvalidInputError: the options are wrong, or updating results would go to a table that only appends.
    """
    options, kind = wrap(options), Connector(connector)
    parsed = parse_options(kind, options, Side.SINK)
    if output_mode == "append" and transform is None:
        return _arranged(frame, parsed).writeStream.format(FORMATS[kind]).options(**reveal(options))
    if kind is Connector.KAFKA and output_mode != "append":
        msg = (
            f"A 'kafka' table doesn't support consuming update changes, which output mode '{output_mode}' makes; it "
            "only appends rows. Write to an 'upsert-kafka' table, or aggregate in windows with a watermark."
        )
        raise InvalidInputError(msg)
    if not parsed.checkpoint:
        msg = "option 'checkpointLocation' is required for a streaming write: it names the query across restarts."
        raise InvalidInputError(msg)
    writer = frame.writeStream.outputMode(output_mode).foreachBatch(_batch_writer(kind, options, transform))
    return writer.option("checkpointLocation", parsed.checkpoint)


def _batch_writer(
    kind: Connector, options: Mapping[str, object], transform: Callable[[DataFrame], DataFrame] | None
) -> Callable[[DataFrame, int], None]:
    def write_batch(rows: DataFrame, number: int) -> None:
        frame = rows if transform is None else transform(rows)
        sink = Sink.open(kind, options, frame.schema, is_stream=True)
        sink.commit(_run(_arranged(frame, sink.table.options), sink), number)

    return write_batch


def _run(frame: DataFrame, sink: Sink) -> list[Written]:
    """Let tasks write or stage the rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"written": [json.dumps(asdict(sink.run(batches)))]})

    return [Written(**json.loads(row.written)) for row in frame.mapInArrow(run, _RESULT).collect()]


def _arranged(frame: DataFrame, options: ConnectorOptions) -> DataFrame:
    """Bring the rows of a key into one task, as the last one written counts; and see to the number of tasks.

    Spark's shuffle keeps the order of rows that come from one task.
    """
    if options.is_upsert:
        keys = [backquoted(name) for name in options.key_fields]
        return (
            frame.repartition(*keys) if options.parallelism is None else frame.repartition(options.parallelism, *keys)
        )
    return frame if options.parallelism is None else frame.repartition(options.parallelism)
