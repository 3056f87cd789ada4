"""Per-partition watermarks, as in Flink's sources: the slowest partition holds windows open.

Spark's ``withWatermark`` follows the newest event time over all partitions, so a partition that lags behind loses rows.
Here each partition is a separate source with its own watermark, and Spark uses the minimum of a query's watermarks.

While a partition is idle and others are active, its stream advances its event time with heartbeats. A heartbeat is a
row that contains only the event time of the slowest active partition and a marker. The marker is used to drop the row
after the watermark operator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, TimestampNTZType, TimestampType

from log_system.kafka.client.cluster import Offsets, Partition
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.secrets import reveal, wrap
from snapshot.errors import DataLostError, InvalidInputError
from snapshot.quoting import backquoted
from tablestore.connectors.kafka.scan_planner import Scan, ScanSpec
from tablestore.connectors.option_names import FORMATS, Connector, Side
from tablestore.connectors.spark.split_reader import read_rows
from tablestore.connectors.spark.stream import Json, KafkaStream
from tablestore.connectors.table import KafkaTable
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import duration_or_ms
from tablestore.spark.connect import check_streams
from tablestore.spark.error_messages import shows_messages

IDLE: Final = "_idle"
"""Name of the boolean column that marks a heartbeat."""
_PARTITION, _COLUMN, _TIMEOUT, _ZONE = "watermark.partition", "watermark.column", "watermark.idle-ms", "watermark.zone"
_COUNT = "watermark.partitions"
_LOOK_BACK: Final = 10
"""How many offsets before a partition's end are read: the last ones may be transaction markers."""


@dataclass(frozen=True)
class PartitionWatermarks:
    """The settings of a single-partition stream.

    Attributes:
        partition: the partition.
        column: the event-time column; empty if it is computed, for which there are no heartbeats.
        idle_ms: how long a partition must be without messages to be idle; 0 disables idleness.
        zone: the session's time zone.
        count: the number of partitions that the query reads.
    """

    partition: Partition
    column: str
    idle_ms: int
    zone: str
    count: int

    def options(self) -> dict[str, str]:
        """Return the settings as data source options."""
        topic, number = self.partition
        return {_PARTITION: f"{topic}:{number}", _COLUMN: self.column, _TIMEOUT: str(self.idle_ms),
                _ZONE: self.zone, _COUNT: str(self.count)}  # fmt: skip


def take_watermarks(options: dict[str, str]) -> PartitionWatermarks | None:
    """Remove the options of `PartitionWatermarks.options` from a data source's options and return them as settings.

    Option names must be in lower case. Returns None if the options contain no watermark settings.
    """
    if _PARTITION not in options:
        return None
    topic, _, number = options.pop(_PARTITION).rpartition(":")
    column, idle_ms, zone = options.pop(_COLUMN), options.pop(_TIMEOUT), options.pop(_ZONE)
    return PartitionWatermarks((topic, int(number)), column, int(idle_ms), zone, int(options.pop(_COUNT)))


@dataclass
class _Beat(InputPartition):
    """A split that yields one heartbeat row; ``at`` is its event time in microseconds."""

    at: int


@shows_messages
class PartitionStream(KafkaStream):
    """Streaming reader of one partition; heartbeats are part of its offsets, so that a restart repeats them."""

    def __init__(self, table: KafkaTable, schema: StructType, watched: PartitionWatermarks) -> None:
        """Read the partition as rows of ``schema``, to which ``_idle`` is added."""
        super().__init__(table, schema)
        if watched.column and (
            watched.column not in schema.fieldNames()
            or not pa.types.is_timestamp(table.coding.layout.schema.field(watched.column).type)
        ):
            msg = f"watermark: expected a timestamp column, got {watched.column!r}; the columns are {schema.names}."
            raise InvalidInputError(msg)
        self._watched = watched
        self._pulse = _Pulse(table, watched)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end position of the next micro-batch, with a heartbeat if the partition is idle and one is due.

        Raises:
            DataLostError: partitions were added, which no source of the query reads.
        """
        end = super().latestOffset(start, limit)
        if self._plan.discovered > self._watched.count:
            msg = (
                f"{self._table.options.what}: partitions were added since this query began, {self._plan.discovered} "
                f"instead of {self._watched.count}. A query with a watermark of each partition has a source for each. "
                "Start a new query, with a new checkpoint; 'scan.startup.mode' = 'group-offsets' and "
                "'properties.auto.offset.reset' = 'earliest' go on where this one ends."
            )
            raise DataLostError(msg)
        beat = start.get("beat")
        due = self._pulse.due(moved=end["at"] != start["at"]) if self._watched.idle_ms else None
        if due is not None and (beat is None or due > beat):
            return {**end, "beat": due}
        return end if beat is None or end is start else {**end, "beat": beat}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, including a heartbeat if its event time has advanced."""
        parts = list(super().partitions(start, end))
        if end.get("beat") != start.get("beat"):
            parts.append(_Beat(end["beat"]))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        if isinstance(partition, _Beat):
            yield self._marked(self._beat(partition.at), is_idle=True)
            return
        for batch in super().read(partition):
            yield self._marked(batch, is_idle=False)

    def stop(self) -> None:
        """Close connections."""
        self._pulse.close()
        super().stop()

    def __getstate__(self) -> Json:
        """Pickle only the state that ``read`` needs in tasks."""
        return {**super().__getstate__(), "_watched": self._watched}

    def _rows(self, part: FetchRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an offset range; of an upsert table, all messages of a key, since each has its time."""
        return read_rows(self._table, part, columns)

    def _spec(self) -> ScanSpec:
        return replace(self._table.scan_spec(), only=self._watched.partition)

    def _beat(self, at: int) -> pa.RecordBatch:
        arrays = [
            pa.array([at], pa.int64()).cast(field.type)
            if field.name == self._watched.column
            else pa.nulls(1, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _marked(self, batch: pa.RecordBatch, *, is_idle: bool) -> pa.RecordBatch:
        return batch.append_column(pa.field(IDLE, pa.bool_()), pa.array([is_idle] * batch.num_rows, pa.bool_()))


class _Pulse:
    """Tracks, on the driver, which partitions are idle and which event time the active ones have reached.

    A partition is idle if it was without messages for the timeout when another one had its last message. So a
    micro-batch may take longer than the timeout, and it makes no difference if the others then fall silent, too.
    """

    def __init__(self, table: KafkaTable, watched: PartitionWatermarks) -> None:
        self._table = table
        self._watched = watched
        self._scan = Scan(table.scan_spec())
        self._ends: Offsets = {}
        self._moved_at: dict[Partition, float] = {}
        self._since = 0.0
        self._reached: dict[Partition, tuple[int, int | None]] = {}

    def due(self, *, moved: bool) -> int | None:
        """Return the event time of a heartbeat that is due; None if the partition is active.

        Args:
            moved: whether the partition has new messages to read.
        """
        now, ends, timeout_s = time.monotonic(), self._scan.ends(), self._watched.idle_ms / 1000
        if not self._moved_at:
            # Partitions without messages to read are idle once the timeout has passed.
            begun, self._since = self._scan.begin(), now
            self._moved_at = dict.fromkeys(ends, -math.inf)
            self._ends = {each: begun.get(each, end) for each, end in ends.items()}
        self._moved_at |= {each: now for each, end in ends.items() if self._ends.get(each) != end}
        self._ends = ends
        newest = max(self._moved_at.values())
        active = [each for each in ends if newest - self._moved_at[each] < timeout_s]
        if moved or self._watched.partition in active or now - self._since < timeout_s:
            return None
        reached = [self._last(each) for each in active]
        return min((at for at in reached if at is not None), default=None)

    def close(self) -> None:
        self._scan.close()

    def _last(self, partition: Partition) -> int | None:
        """Return the event time of a partition's last message; None if no message is found near the partition's end.

        It is a lower bound of the event time that the partition has reached.
        """
        end = self._ends[partition]
        held = self._reached.get(partition)
        if held is None or held[0] != end:
            # Retention may have removed some of these offsets. That is not an error here, so start no earlier than the
            # first offset.
            part = FetchRange(*partition, max(self._scan.firsts([partition])[partition], end - _LOOK_BACK), end)
            found: Any = None
            for batch in read_rows(self._table, part, [self._watched.column], self._watched.zone):
                times = batch.column(self._watched.column).drop_null()
                found = times[-1].value if len(times) else found
            self._reached[partition] = (end, found)
        return self._reached[partition][1]


IDLE_TIMEOUT = "table.exec.source.idle-timeout"
"""Session setting: how long a partition must be without messages to be idle; 0 (the default) disables idleness."""
MARK = "spark.watermarkDelayMs"
"""Key that Spark sets in the metadata of a column with a watermark."""
_EVENT_TIME = "_event_time"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def read_with_watermark(
    spark: SparkSession,
    schema: StructType | str,
    options: Mapping[str, object],
    *,
    column: str,
    delay: str,
    computed: str | None = None,
    connector: Connector = Connector.KAFKA,
) -> DataFrame:
    """Return a streaming frame of a table's messages with the watermark of its slowest partition.

    The query reads the partitions that exist when it is created. Partitions added later end it with an error when they
    are discovered, and require a new query, because Spark fixes a query's sources in its checkpoint. Each partition is
    a separate source, which runs its own Python process next to the driver.

    Args:
        spark: a session in which the connector's format is registered. Its setting
            ``table.exec.source.idle-timeout`` (such as ``1 s``) says how long a partition must be without messages to
            be idle. The watermark of an idle partition follows the slowest active one until it has messages again.
        schema: the table's columns; of a table of changes also ``_change_type`` and, if wanted, ``_seq``.
        options: the table's options.
        column: the event-time column.
        delay: how late a row may be relative to the newest row of its partition, such as ``2 seconds``.
        computed: Spark's expression of ``column``, if it is not one of ``schema``. The session must have no idle
            timeout then.
        connector: the table's connector.

    Returns:
        A streaming frame with a watermark on ``column``, which is the last column if it is computed.

    Raises:
        InvalidInputError: the options are invalid, there is no partition, the event time is not a timestamp, or Spark's
            ``multipleWatermarkPolicy`` is not ``min``.
        NotFoundError: a topic does not exist.
    """
    check_streams(spark)
    options = wrap(options)
    if spark.conf.get(_POLICY) != "min":
        msg = f"{_POLICY}: expected 'min', got {spark.conf.get(_POLICY)!r}; a slow partition would lose its rows."
        raise InvalidInputError(msg)
    columns = spark.createDataFrame([], schema).schema
    table = KafkaTable.of(connector, options, columns, Side.SOURCE)
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
    idle_ms = OptionSpec(IDLE_TIMEOUT, duration_or_ms()).parse(spark.conf.get(IDLE_TIMEOUT, "0") or "0")
    if computed is not None and idle_ms:
        msg = (
            f"watermark for '{column}', a computed column: {IDLE_TIMEOUT} must be 0, got {idle_ms} ms: the event time "
            "of partitions is read before columns are computed. Declare it as a physical or metadata column."
        )
        raise InvalidInputError(msg)
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    marked = StructType([*columns.fields, StructField(IDLE, BooleanType())])
    frames = []
    for partition in partitions:
        watched = PartitionWatermarks(partition, "" if computed else column, idle_ms, zone, len(partitions))
        given = {**options, **watched.options()}
        frame = spark.readStream.format(FORMATS[connector]).schema(marked).options(**reveal(given)).load()
        frames.append(_with_watermark(frame, column, delay, computed))
    united = _marked(reduce(DataFrame.union, frames), column)
    return united if table.options.scan_parallelism is None else united.coalesce(table.options.scan_parallelism)


def with_watermark(frame: DataFrame, column: str, delay: str) -> DataFrame:
    """Return a streaming frame with Spark's watermark of all its rows on a column, which may be a TIMESTAMP_NTZ."""
    _check_time(frame.schema[column])
    time = instant(F.col(backquoted(column)), frame.schema[column].dataType)
    return _marked(frame.withColumn(_EVENT_TIME, time).withWatermark(_EVENT_TIME, delay).drop(_EVENT_TIME), column)


def _marked(frame: DataFrame, column: str) -> DataFrame:
    """Set Spark's watermark key on the column itself, so that later operators on the column recognize the watermark."""
    return frame.withColumn(column, F.col(backquoted(column)).alias(column, metadata={MARK: 0}))


def _with_watermark(frame: DataFrame, column: str, delay: str, computed: str | None) -> DataFrame:
    """Return the rows of one partition with Spark's watermark, which heartbeats move while the partition is idle."""
    if computed is not None:
        frame = frame.withColumn(column, F.expr(computed))
        _check_time(frame.schema[column])
    # Spark supports watermarks on TIMESTAMP only, so a TIMESTAMP_NTZ is read as UTC.
    frame = frame.withColumn(_EVENT_TIME, instant(F.col(backquoted(column)), frame.schema[column].dataType))
    # The filter refers to the event time so that Spark does not push it below the watermark operator, which would
    # then not see the heartbeats.
    kept = ~(F.col(IDLE) & F.col(_EVENT_TIME).isNotNull())
    return frame.withWatermark(_EVENT_TIME, delay).where(kept).drop(IDLE, _EVENT_TIME)


def _check_time(field: StructField) -> None:
    if not isinstance(field.dataType, TimestampType | TimestampNTZType):
        actual = field.dataType.simpleString()
        msg = f"watermark for '{field.name}', a computed column: expected TIMESTAMP or TIMESTAMP_LTZ, got {actual}."
        raise InvalidInputError(msg)


def instant(time: Column, data_type: DataType) -> Column:
    """Return a timestamp column as TIMESTAMP; a TIMESTAMP_NTZ is read as UTC."""
    if not isinstance(data_type, TimestampNTZType):
        return time
    return F.expr("TIMESTAMP '1970-01-01 00:00:00Z'") + (time - F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'"))


def complete_at(time: Column, name: str) -> Column:
    """Return a TIMESTAMP column by which Spark knows that a group is complete: when the watermark has passed it.

    Spark's watermark begins at 1970-01-01. What is complete then or before would be late from the start, so it is
    complete as soon as the watermark moves.
    """
    return F.greatest(time, F.timestamp_micros(F.lit(1))).alias(name, metadata={MARK: 0})
