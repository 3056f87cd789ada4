"""One partition as a stream of its own, so that Spark gives it a watermark of its own; see `watermarks`.

While the partition is idle and others are not, the stream moves its own event time on by heartbeats: rows with nothing
but the event time of the slowest active partition, and a mark by which they are left out after the watermark operator.

Watermarks per partition, as Flink's sources have them: the slowest partition holds windows open.

Spark's own ``withWatermark`` follows the newest event time of all partitions, so a partition that is behind loses rows.
Here each partition is a source with a watermark of its own, and Spark takes the least of a query's watermarks.
"""

from __future__ import annotations

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
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, TimestampNTZType

from log_system.kafka.client.cluster import Offsets, Partition
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.secrets import reveal, wrap
from snapshot.errors import InvalidInputError
from snapshot.quoting import backquoted
from tablestore.connectors.kafka.scan_planner import Scan, ScanSpec
from tablestore.connectors.option_names import Connector, OptionReader, Side
from tablestore.connectors.spark.split_reader import read_rows
from tablestore.connectors.spark.stream import Json, KafkaStream
from tablestore.connectors.table import KafkaTable
from tablestore.options.value_types import duration_or_ms

IDLE: Final = "_idle"
"""Name of the boolean column that marks a heartbeat."""
_PARTITION, _COLUMN, _TIMEOUT, _ZONE = "watermark.partition", "watermark.column", "watermark.idle-ms", "watermark.zone"
_LOOK_BACK: Final = 10
"""How many offsets before a partition's end are looked at: the last ones may be markers of transactions."""


@dataclass(frozen=True)
class PartitionWatermarks:
    """What a stream of one partition is told.

    Attributes:
        partition: the partition.
        column: the event time's.
        idle_ms: after this long without a message a partition is idle; 0 is never.
        zone: the session's time zone.
    """

    partition: Partition
    column: str
    idle_ms: int
    zone: str

    def options(self) -> dict[str, str]:
        """Write this as options of a data source."""
        topic, number = self.partition
        return {_PARTITION: f"{topic}:{number}", _COLUMN: self.column, _TIMEOUT: str(self.idle_ms), _ZONE: self.zone}


def take_watermarks(options: dict[str, str]) -> PartitionWatermarks | None:
    """Take out of a data source's options (named in lower case) what `PartitionWatermarks.options` has put in."""
    if _PARTITION not in options:
        return None
    topic, _, number = options.pop(_PARTITION).rpartition(":")
    column, idle_ms, zone = options.pop(_COLUMN), options.pop(_TIMEOUT), options.pop(_ZONE)
    return PartitionWatermarks((topic, int(number)), column, int(idle_ms), zone)


@dataclass
class _Beat(InputPartition):
    """A heartbeat: an event time, in microseconds."""

    at: int


class PartitionStream(KafkaStream):
    """Reads one partition; heartbeats are in its offsets, so that a restart repeats them."""

    def __init__(self, table: KafkaTable, schema: StructType, watched: PartitionWatermarks) -> None:
        """Read the partition as rows of ``schema``, to which ``_idle`` is added."""
        super().__init__(table, schema)
        if watched.column not in schema.fieldNames() or not pa.types.is_timestamp(
            table.coding.layout.schema.field(watched.column).type
        ):
            msg = f"watermark: expected a timestamp column, got {watched.column!r}; the columns are {schema.names}."
            raise InvalidInputError(msg)
        self._watched = watched
        self._pulse = _Pulse(table, watched)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Give how far the next micro-batch may go; while there is nothing to read, whether a heartbeat is due."""
        end = super().latestOffset(start, limit)
        beat = start.get("beat")
        due = self._pulse.due(moved=end["at"] != start["at"]) if self._watched.idle_ms else None
        if due is not None and (beat is None or due > beat):
            return {**end, "beat": due}
        return end if beat is None or end is start else {**end, "beat": beat}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Plan a micro-batch."""
        parts = list(super().partitions(start, end))
        if end.get("beat") != start.get("beat"):
            parts.append(_Beat(end["beat"]))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
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
        """Carry to tasks only what ``read`` needs."""
        return {**super().__getstate__(), "_watched": self._watched}

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
    """Knows on the driver which partitions are idle, and what event time the others have reached."""

    def __init__(self, table: KafkaTable, watched: PartitionWatermarks) -> None:
        self._table = table
        self._watched = watched
        self._scan = Scan(table.scan_spec())
        self._ends: Offsets = {}
        self._moved_at: dict[Partition, float] = {}
        self._reached: dict[Partition, tuple[int, int | None]] = {}

    def due(self, *, moved: bool) -> int | None:
        """Give the event time that a heartbeat should have now; None while the partition is not idle, or all are.

        Args:
            moved: whether the partition has something to read.
        """
        now, ends = time.monotonic(), self._scan.ends()
        for each, end in ends.items():
            if self._ends.get(each) != end:
                self._moved_at[each] = now
        self._ends = ends
        active = [each for each in ends if now - self._moved_at[each] < self._watched.idle_ms / 1000]
        if moved or self._watched.partition in active or not active:
            return None
        reached = [self._last(each) for each in active]
        return min((at for at in reached if at is not None), default=None)

    def close(self) -> None:
        self._scan.close()

    def _last(self, partition: Partition) -> int | None:
        """Give the event time of a partition's last message; what that has passed is no earlier."""
        end = self._ends[partition]
        held = self._reached.get(partition)
        if held is None or held[0] != end:
            # Retention may have removed some of these, which is nothing to complain of here.
            part = FetchRange(*partition, max(self._scan.firsts([partition])[partition], end - _LOOK_BACK), end)
            found: Any = None
            for batch in read_rows(self._table, part, [self._watched.column], self._watched.zone):
                times = batch.column(self._watched.column).drop_null()
                found = times[-1].value if len(times) else found
            self._reached[partition] = (end, found)
        return self._reached[partition][1]


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
        msg = f"{_POLICY}: expected 'min', got {spark.conf.get(_POLICY)!r}; a slow partition would lose its rows."
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
        given = {**options, **PartitionWatermarks(partition, column, idle_ms, zone).options()}
        frame = spark.readStream.format("kafka-table").schema(marked).options(**reveal(given)).load()
        # Spark has watermarks on instants only; without a zone a time is taken as one of UTC.
        frame = frame.withColumn(_EVENT_TIME, instant(F.col(backquoted(column)), columns[column].dataType))
        # The condition names the event time, lest Spark moves it before the watermark, which would then miss the rows.
        kept = ~(F.col(IDLE) & F.col(_EVENT_TIME).isNotNull())
        frames.append(frame.withWatermark(_EVENT_TIME, delay).where(kept).drop(IDLE, _EVENT_TIME))
    # The column itself carries Spark's mark too, by which operators that are put on it know the watermark.
    marked_column = F.col(backquoted(column)).alias(column, metadata={MARK: 0})
    return reduce(DataFrame.union, frames).withColumn(column, marked_column)


def instant(time: Column, data_type: DataType) -> Column:
    """Give a time as an instant, one without a zone as if it were UTC's."""
    if not isinstance(data_type, TimestampNTZType):
        return time
    return F.expr("TIMESTAMP '1970-01-01 00:00:00Z'") + (time - F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'"))
