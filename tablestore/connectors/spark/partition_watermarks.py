"""Per-partition watermarks, as in Flink's sources: the slowest partition holds windows open.

Spark's ``withWatermark`` follows the newest event time over all partitions, so a partition that lags behind loses rows.
Here each partition is a separate source with its own watermark, and Spark uses the minimum of a query's watermarks.

While a partition is idle and others are active, its stream advances its event time with heartbeats. A heartbeat is a
row that contains only the event time of the slowest active partition and a marker. The marker is used to drop the row
after the watermark operator.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import ArrayType, BooleanType, DataType, StructField, StructType, TimestampNTZType, TimestampType

from log_system.kafka.client.cluster import Offsets, Partition
from log_system.kafka.client.consumers import FetchRange
from log_system.kafka.client.secrets import reveal, wrap
from log_system.outages import outlasting
from snapshot.errors import DataLostError, InvalidInputError
from snapshot.quoting import backquoted
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import SEQ, free_name
from snapshot.storage import Storage
from tablestore.connectors.kafka.scan_planner import Scan, ScanSpec
from tablestore.connectors.option_names import FORMATS, Connector, Side
from tablestore.connectors.spark.split_reader import read_rows, shown
from tablestore.connectors.spark.stream import Json, KafkaStream, offsets_of
from tablestore.connectors.table import KafkaTable
from tablestore.options.declaration import OptionSpec
from tablestore.options.value_types import duration_or_ms
from tablestore.spark.connect import check_streams
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task

IDLE: Final = "_idle"
"""Name of the boolean column that marks a heartbeat."""
MESSAGES: Final = "_messages"
"""Name of the column with the last messages of active partitions, in heartbeats for a computed event time."""
MESSAGE: Final = "_message"
"""The name by which ``Computed.of_message`` refers to one of these messages."""
_PARTITION, _COLUMN, _TIMEOUT, _ZONE = "watermark.partition", "watermark.column", "watermark.idle-ms", "watermark.zone"
_COUNT = "watermark.partitions"
_LOOK_BACK: Final = 10
"""How many offsets before a partition's end are read: the last ones may be transaction markers."""


@dataclass(frozen=True)
class Computed:
    """Spark's expression of a computed event-time column.

    Attributes:
        expression: the expression over the table's columns.
        of_message: the same over the fields of a struct ``_message``.
    """

    expression: str
    of_message: str


@dataclass(frozen=True)
class PartitionWatermarks:
    """The settings of a single-partition stream.

    Attributes:
        partition: the partition.
        column: the event-time column; empty if it is computed.
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


@dataclass
class _MessagesBeat(InputPartition):
    """A split that yields one heartbeat row with the last message of each range, for Spark to compute event times."""

    parts: list[FetchRange]


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
            raise _added(self._table.options.what, self._plan.discovered, self._watched.count)
        beat = start.get("beat")
        active = self._pulse.others(moved=end["at"] != start["at"]) if self._watched.idle_ms else []
        due = self._due(active, beat)
        if due is not None:
            return {**end, "beat": due}
        return end if beat is None or end is start else {**end, "beat": beat}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, including a heartbeat if its event time has advanced."""
        parts = list(super().partitions(start, end))
        beat = end.get("beat")
        if isinstance(beat, int) and beat != start.get("beat"):
            parts.append(_Beat(beat))
        elif beat is not None and beat != start.get("beat"):
            parts.append(_MessagesBeat(self._pulse.last_messages([((t, p), at) for t, p, at in beat])))
        return parts

    def _due(self, active: Sequence[Partition], beat: Any) -> Any:
        """Return the heartbeat that is due while others are active: an event time or, if computed, where they end.

        Returns:
            What an offset holds as ``beat``; None if that would not be new.
        """
        if self._watched.column:
            at = self._pulse.reached(active)
            return at if at is not None and (beat is None or at > beat) else None
        ends = [[*each, at] for each, at in sorted(self._pulse.ends(active).items())]
        return ends if ends and ends != beat else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        if isinstance(partition, _Beat):
            yield self._marked(self._beat(partition.at), is_idle=True)
            return
        if isinstance(partition, _MessagesBeat):
            begin_task()
            yield from self._messages_beat(partition.parts)
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

    def _messages_beat(self, parts: Sequence[FetchRange]) -> Iterator[pa.RecordBatch]:
        columns = [name for name in self._schema.names if name not in (CHANGE_TYPE, SEQ)]
        last: list[pa.RecordBatch] = []
        for part in parts:
            batches = [batch for batch in read_rows(self._table, part, columns) if batch.num_rows]
            last += [shown(batch.slice(batch.num_rows - 1), self._schema) for batch in batches[-1:]]
        if last:
            rows = pa.Table.from_batches(last, schema=self._schema).combine_chunks().to_struct_array()
            held = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), pa.concat_arrays(rows.chunks))
            nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in self._schema], schema=self._schema)
            yield self._marked(nothing, is_idle=True, messages=held)

    def _marked(self, batch: pa.RecordBatch, *, is_idle: bool, messages: pa.Array | None = None) -> pa.RecordBatch:
        marked = batch.append_column(pa.field(IDLE, pa.bool_()), pa.array([is_idle] * batch.num_rows, pa.bool_()))
        if self._watched.column or not self._watched.idle_ms:
            return marked
        kind = pa.list_(pa.struct(self._schema))
        return marked.append_column(
            pa.field(MESSAGES, kind), pa.nulls(batch.num_rows, kind) if messages is None else messages.cast(kind)
        )


class _Pulse:
    """Tracks, on the driver, which partitions are idle and which event time the active ones have reached.

    A partition is idle if it was without messages for the timeout when another one had its last message. So a
    micro-batch may take longer than the timeout, and it makes no difference if the others then fall silent, too.
    """

    def __init__(self, table: KafkaTable, watched: PartitionWatermarks) -> None:
        self._table = table
        self._watched = watched
        self._scan = outlasting(Scan(table.scan_spec()))
        self._ends: Offsets = {}
        self._moved_at: dict[Partition, float] = {}
        self._since = 0.0
        self._reached: dict[Partition, tuple[int, int | None]] = {}

    def others(self, *, moved: bool) -> list[Partition]:
        """Return the active partitions if this one is idle; none if it is active.

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
            return []
        return active

    def reached(self, active: Sequence[Partition]) -> int | None:
        """Return the event time that the slowest of some partitions has reached; None if none is known to have one."""
        return min((at for at in map(self._last, active) if at is not None), default=None)

    def ends(self, active: Sequence[Partition]) -> Offsets:
        """Return where partitions end."""
        return {each: self._ends[each] for each in active}

    def last_messages(self, ends: Sequence[tuple[Partition, int]]) -> list[FetchRange]:
        """Return the ranges that hold the last message of partitions before offsets."""
        firsts = self._scan.firsts([each for each, _ in ends])
        return [FetchRange(*each, max(firsts[each], end - _LOOK_BACK), end) for each, end in ends if firsts[each] < end]

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


def _added(what: str, now: int, begun: int) -> DataLostError:
    return DataLostError(
        f"{what}: partitions were added since this query began, {now} instead of {begun}. A query with a watermark of "
        "each partition has a source for each. Start a new query, with a new checkpoint; 'scan.startup.mode' = "
        "'group-offsets' and 'properties.auto.offset.reset' = 'earliest' continue where this one ended."
    )


_NOTED: ContextVar[list[tuple[str, list[Partition]]] | None] = ContextVar("_NOTED", default=None)


@contextmanager
def partitions_noted() -> Iterator[list[tuple[str, list[Partition]]]]:
    """Yield a list of the tables that ``read_with_watermark`` reads within the context, with their partitions."""
    noted: list[tuple[str, list[Partition]]] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def check_partitions(checkpoint: str, noted: Sequence[tuple[str, Sequence[Partition]]]) -> None:
    """Check that a query that continues from a checkpoint has no source for a partition that is not in it.

    The checkpoint need not exist; ``noted`` is what ``partitions_noted`` has yielded.

    Raises:
        DataLostError: partitions were added to a topic. Spark itself would only count the sources.
    """
    folder = Storage.at(checkpoint).child("offsets") if noted else None
    batches = [int(name) for name in folder.names() if name.isdigit()] if folder is not None else []
    if folder is None or not batches:
        return
    # The version of the file and what Spark knows of the micro-batch precede the sources.
    lines = (folder.read(str(max(batches))) or b"").decode().splitlines()[2:]
    sources = [json.loads(line) for line in lines if line.startswith("{")]
    begun = {each for source in sources if isinstance(source.get("at"), dict) for each in offsets_of(source["at"])}
    for what, partitions in noted:
        known = [each for each in partitions if each in begun]
        if known and len(known) < len(partitions):
            raise _added(what, len(partitions), len(known))


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
    computed: Computed | None = None,
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
        options: the table's options; ``scan.watermark.idle-timeout`` replaces the setting.
        column: the event-time column.
        delay: how late a row may be relative to the newest row of its partition, such as ``2 seconds``.
        computed: Spark's expression of ``column``, if it is not one of ``schema``.
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
    if taken := [name for name in columns.names if name.lower() in (IDLE, MESSAGES)]:
        msg = f"column '{taken[0]}': heartbeats use this name in a table with a watermark. Rename it."
        raise InvalidInputError(msg)
    table = KafkaTable.of(connector, options, columns, Side.SOURCE)
    with closing(Scan(table.scan_spec())) as scan:
        partitions = scan.partitions()
    if not partitions:
        msg = f"{table.options.what}: no partition exists yet, so there is no watermark."
        raise InvalidInputError(msg)
    noted = _NOTED.get()
    if noted is not None:
        noted.append((table.options.what, partitions))
    idle_ms = table.options.idle_ms
    if idle_ms is None:
        idle_ms = OptionSpec(IDLE_TIMEOUT, duration_or_ms()).parse(spark.conf.get(IDLE_TIMEOUT, "0") or "0")
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    messages = [StructField(MESSAGES, ArrayType(_nullable(columns)))] if computed and idle_ms else []
    marked = StructType([*columns.fields, StructField(IDLE, BooleanType()), *messages])
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
    name = free_name(_EVENT_TIME, frame.columns)
    return _marked(_watermark(frame.withColumn(name, time), name, delay).drop(name), column)


def _watermark(frame: DataFrame, column: str, delay: str) -> DataFrame:
    """Return a frame with Spark's watermark on a column, which all rows move, also those that the query filters out.

    Spark pushes filters below the watermark operator, but not below one that is not deterministic, such as this one.
    """
    return frame.withWatermark(column, delay).where(F.spark_partition_id() >= 0)


def _marked(frame: DataFrame, column: str) -> DataFrame:
    """Set Spark's watermark key on the column itself, so that later operators on the column recognize the watermark."""
    return frame.withColumn(column, F.col(backquoted(column)).alias(column, metadata={MARK: 0}))


def _nullable(columns: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in columns.fields])


def _with_watermark(frame: DataFrame, column: str, delay: str, computed: Computed | None) -> DataFrame:
    """Return the rows of one partition with Spark's watermark, which heartbeats move while the partition is idle."""
    if computed is not None:
        time = F.expr(computed.expression)
        if MESSAGES in frame.columns:
            # That of the slowest active partition; a time that moves nothing if none of them has one.
            beat = f"array_min(transform({MESSAGES}, {MESSAGE} -> {computed.of_message}))"
            lowest = F.lit("0001-01-01 00:00:00").cast(frame.select(time).schema[0].dataType)
            time = F.when(F.col(IDLE), F.coalesce(F.expr(beat), lowest)).otherwise(time)
        frame = frame.withColumn(column, time).drop(MESSAGES)
        _check_time(frame.schema[column])
    # Spark supports watermarks on TIMESTAMP only, so a TIMESTAMP_NTZ is read as UTC.
    name = free_name(_EVENT_TIME, frame.columns)
    frame = frame.withColumn(name, instant(F.col(backquoted(column)), frame.schema[column].dataType))
    return _watermark(frame, name, delay).where(~F.col(IDLE)).drop(IDLE, name)


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
