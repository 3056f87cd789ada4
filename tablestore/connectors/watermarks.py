"""Watermarks per partition, as Flink's sources have them: the slowest partition holds windows open.

Spark's own ``withWatermark`` follows the newest event time of all partitions, so a partition that is behind loses rows.
Here each partition is a source with a watermark of its own, and Spark takes the least of a query's watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, TimestampNTZType

from log_system.kafka.scanning import Scan
from log_system.kafka.secrets import reveal, wrap
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from tablestore.connectors.names import Connector, OptionReader, Side
from tablestore.connectors.table import KafkaTable
from tablestore.connectors.watched import IDLE, Watched
from tablestore.option_types import duration_or_ms

IDLE_TIMEOUT = "table.exec.source.idle-timeout"
"""The session's setting: after this long without a message a partition holds nothing up. 0, the default, is never."""
MARK = "spark.watermarkDelayMs"
"""Spark's own mark, in the metadata of a column that has a watermark."""
_EVENT_TIME = "_event_time"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def read_with_watermark(
    spark: SparkSession, schema: StructType | str, options: Mapping[str, object], *, column: str, delay: str
) -> DataFrame:
    """Read a standard table's messages as they come, with the watermark of its slowest partition.

    A query has the partitions that are there when it is made: those that come later need a new query, since Spark fixes
    a query's sources in its checkpoint. Each partition costs a source, that is a Python process beside the driver.

    Args:
        spark: a session that knows ``format("kafka-table")``; its setting ``table.exec.source.idle-timeout`` says after
            how long (``1 s``) a partition is idle. An idle partition follows the slowest active one, and counts by
            itself again when it comes back.
        schema: the table's columns.
        options: the table's.
        column: the event time.
        delay: how much later than others of its partition a row may come, such as ``2 seconds``.

    Returns:
        A streaming frame with a watermark on ``column``.

    Raises:
        InvalidInputError: the options are wrong, or the session takes the newest of several watermarks.
        NotFoundError: a topic does not exist.
    """
    options = wrap(options)
    if spark.conf.get(_POLICY) != "min":
        msg = f"{_POLICY}: expected 'min', came {spark.conf.get(_POLICY)!r}; a slow partition would lose its rows."
        raise InvalidInputError(msg)
    columns = spark.createDataFrame([], schema).schema
    table = KafkaTable.of(Connector.KAFKA, options, columns, Side.SOURCE)
    scan = Scan(table.scan_spec())
    try:
        partitions = scan.partitions()
    finally:
        scan.close()
    if not partitions:
        msg = (
            f"{table.options.what}: there is no partition to read yet, and a watermark is the least of those there are."
        )
        raise InvalidInputError(msg)
    setting = OptionReader({IDLE_TIMEOUT: spark.conf.get(IDLE_TIMEOUT, "0") or "0"})
    idle_ms = setting.value(IDLE_TIMEOUT, duration_or_ms(), 0)
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    marked = StructType([*columns.fields, StructField(IDLE, BooleanType())])
    frames = []
    for partition in partitions:
        given = {**options, **Watched(partition, column, idle_ms, zone).options()}
        frame = spark.readStream.format("kafka-table").schema(marked).options(**reveal(given)).load()
        # Spark has watermarks on instants only; without a zone a time is taken as one of UTC.
        frame = frame.withColumn(_EVENT_TIME, instant(F.col(backquoted(column)), columns[column].dataType))
        # The condition names the event time, lest Spark moves it before the watermark, which would then miss the rows.
        kept = ~(F.col(IDLE) & F.col(_EVENT_TIME).isNotNull())
        frames.append(frame.withWatermark(_EVENT_TIME, delay).where(kept).drop(IDLE, _EVENT_TIME))
    # The column itself carries Spark's mark too, by which operators that are put on it know the watermark.
    marked_column = F.col(backquoted(column)).alias(column, metadata={MARK: 0})
    return reduce(DataFrame.union, frames).withColumn(column, marked_column)


def instant(time: Column, kind: DataType) -> Column:
    """Give a time as an instant, one without a zone as if it were UTC's."""
    if not isinstance(kind, TimestampNTZType):
        return time
    return F.expr("TIMESTAMP '1970-01-01 00:00:00Z'") + (time - F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'"))
