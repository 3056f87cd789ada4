"""Functions that read and write ``kafka`` and ``upsert-kafka`` tables, with features a Spark data source cannot offer.

For plain reads and writes they are equivalent to ``format("kafka-table")`` and ``format("upsert-kafka")``. A data
source cannot repartition rows by key before writing them, choose the number of tasks, accept output mode ``update``, or
keep state; these functions can.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from log_system.kafka.client.secrets import reveal, wrap
from log_system.outages import Outages
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ
from snapshot.storage import Storage
from tablestore.connectors.option_names import FORMATS, STATE, Connector, Side, kafka_connector
from tablestore.connectors.options import ConnectorOptions, parse_options
from tablestore.connectors.spark.changelog_stream import CHANGELOG_FORMAT
from tablestore.connectors.spark.changes_left import left_of
from tablestore.connectors.spark.sink import Sink, Written
from tablestore.spark.connect import check_streams, micro_batch
from tablestore.spark.error_messages import full_disks_named
from tablestore.spark.shipped import map_batches

_RESULT = "written string"


def read(spark: SparkSession, connector: str, schema: StructType | str, options: Mapping[str, object]) -> DataFrame:
    """Return a table's rows up to its current end or the configured bound.

    An upsert table has one row for each key, and a table of a changelog format the rows that its changes leave, by
    primary key if it has one. Changes are returned if the schema has ``_change_type``.
    """
    options, kind = wrap(options), kafka_connector(connector)
    reader = spark.read.format(FORMATS[kind]).options(**reveal(options))
    parsed = parse_options(kind, options, Side.SOURCE)
    if parsed.is_changelog and not parsed.primary_key:
        columns = spark.createDataFrame([], schema).schema
        names = columns.fieldNames()
        if CHANGE_TYPE not in names:
            changes = [StructField(CHANGE_TYPE, StringType()), StructField(SEQ, LongType())]
            rows = _limited(reader.schema(StructType([*columns.fields, *changes])).load(), kind, options)
            return left_of(rows, [name for name in names if name.lower() in parsed.metadata])
    return _limited(reader.schema(schema).load(), kind, options)


def read_stream(
    spark: SparkSession, connector: str, schema: StructType | str, options: Mapping[str, object]
) -> DataFrame:
    """Return a streaming frame of a table's messages.

    An upsert table yields upserts and deletes. Its schema must include ``_change_type``, which distinguishes them. Use
    `read_changes` to get a full changelog with the previous row of each change. A table of a changelog format yields
    its changes, with ``_change_type`` and, if the schema has it, ``_seq``, the offset of the message.
    """
    check_streams(spark)
    options, kind = wrap(options), kafka_connector(connector)
    frame = spark.readStream.format(FORMATS[kind]).schema(schema).options(**reveal(options)).load()
    return _limited(frame, kind, options)


def read_changes(
    spark: SparkSession,
    schema: StructType | str,
    options: Mapping[str, object],
    *,
    state: str | os.PathLike[str] | None = None,
    ordered: bool = False,
) -> DataFrame:
    """Return an upsert table as a streaming changelog with the row before and after each change.

    The query keeps the last row of each key in files. Each micro-batch folds all messages of a key into one change,
    from the row before the micro-batch to the row after it. All messages of a key must be in one partition of one
    topic, as Kafka's own partitioners place them. Topics of ``topic-pattern`` that are discovered are read from their
    start.

    Args:
        spark: a session in which ``format("upsert-kafka")`` is registered.
        schema: the table's columns.
        options: the table's options.
        state: the folder for the query's state, in which each query makes its own; takes the place of option
            ``stateLocation``. All executors must reach it, and it must stay the same when the query restarts.
        ordered: whether to add ``_seq``, the offset of the message. Later changes of a key have a higher ``_seq``.

    Returns:
        A streaming frame of these columns and ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage``,
        ``delete``; a delete holds the row before its deletion).

    Raises:
        InvalidInputError: the options are invalid, or neither ``state`` nor ``stateLocation`` is given.
    """
    check_streams(spark)
    options = wrap(options)
    columns = spark.createDataFrame([], schema).schema
    shown = [*columns.fields, StructField(CHANGE_TYPE, StringType())]
    shown += [StructField(SEQ, LongType())] if ordered else []
    if state is not None:
        others = {name: value for name, value in options.items() if name.lower() != STATE.lower()}
        options = wrap(others | {STATE: Storage.at(state).root})
    root = parse_options(Connector.UPSERT, options, Side.SOURCE).state
    if root is not None:
        Storage.at(root).check_put_new()
    frame = spark.readStream.format(CHANGELOG_FORMAT).schema(StructType(shown)).options(**reveal(options)).load()
    return _limited(frame, Connector.UPSERT, options)


def write(frame: DataFrame, connector: str, options: Mapping[str, object]) -> None:
    """Append a frame's rows to a table; in an upsert table, each row replaces the current row of its key.

    Args:
        frame: the rows; ``_change_type`` marks the deletes.
        connector: ``kafka`` or ``upsert-kafka``.
        options: the table's options.

    Raises:
        InvalidInputError: the options are invalid, or do not match the rows.
        UnavailableError: the broker does not answer.
    """
    options, kind = wrap(options), kafka_connector(connector)
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
    """Return a stream writer that writes a streaming frame to a table.

    Args:
        frame: a streaming frame.
        connector: ``kafka`` or ``upsert-kafka``.
        options: the table's options, and ``checkpointLocation``.
        output_mode: ``append``; an upsert table also accepts ``update`` and ``complete``.
        transform: maps the rows of a micro-batch to the rows that are written.

    Returns:
        The writer, on which the caller sets a trigger and calls ``start()``.

    Raises:
        InvalidInputError: the options are invalid, or the output mode produces updates and the table is append-only.
    """
    check_streams(frame.sparkSession)
    options, kind = wrap(options), kafka_connector(connector)
    parsed = parse_options(kind, options, Side.SINK)
    if output_mode == "append" and transform is None:
        return _arranged(frame, parsed).writeStream.format(FORMATS[kind]).options(**reveal(options))
    if parsed.is_changelog and transform is None and CHANGE_TYPE not in frame.columns:
        msg = (
            f"output mode '{output_mode}' makes update changes, which a '{parsed.value_format.name}' table takes with "
            f"the rows that they replace: add column '{CHANGE_TYPE}' to both, or write to an 'upsert-kafka' table."
        )
        raise InvalidInputError(msg)
    if kind is Connector.KAFKA and output_mode != "append" and not parsed.is_changelog:
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


def _limited(frame: DataFrame, connector: Connector, options: Mapping[str, object]) -> DataFrame:
    """Return a frame that is read by at most as many tasks as ``scan.parallelism`` says."""
    parallelism = parse_options(connector, options, Side.SOURCE).scan_parallelism
    return frame if parallelism is None else frame.coalesce(parallelism)


def _batch_writer(
    kind: Connector, options: Mapping[str, object], transform: Callable[[DataFrame], DataFrame] | None
) -> Callable[[DataFrame, int], None]:
    outages = Outages()

    def write_batch(rows: DataFrame, number: int) -> None:
        with micro_batch(rows):
            frame = rows if transform is None else transform(rows)
            sink = outages.outlast(lambda: Sink.open(kind, options, frame.schema, is_stream=True))
            sink.commit(_run(_arranged(frame, sink.table.options), sink), number)

    return write_batch


@full_disks_named()
def _run(frame: DataFrame, sink: Sink) -> list[Written]:
    """Write or stage the rows in Spark tasks, and return what each task wrote."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"written": [json.dumps(asdict(sink.run(batches)))]})

    return [Written(**json.loads(row.written)) for row in map_batches(frame, run, _RESULT).collect()]


def _arranged(frame: DataFrame, options: ConnectorOptions) -> DataFrame:
    """Return the frame repartitioned to the configured parallelism and, if there is a primary key, by key.

    The last row written for a key wins, so all rows of a key must be in one task. Spark's shuffle preserves the order
    of rows that come from the same task. Changes without a primary key stay in the order in which they come.
    """
    if options.primary_key:
        keys = [backquoted(name) for name in options.primary_key]
        return (
            frame.repartition(*keys) if options.parallelism is None else frame.repartition(options.parallelism, *keys)
        )
    if options.parallelism is None:
        return frame
    is_ordered = options.is_changelog and CHANGE_TYPE in frame.columns
    return frame.coalesce(options.parallelism) if is_ordered else frame.repartition(options.parallelism)
