"""The streaming reader: a Spark source whose offset holds the next Kafka offset of each partition."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 - Spark's process calls from its main thread
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from log_system.kafka.client.cluster import Offsets, Partition
from log_system.kafka.client.consumers import FetchRange
from log_system.outages import outlasting
from snapshot.errors import InvalidInputError, TableStoreError
from snapshot.records import LogEnd
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.system_columns import SEQ
from tablestore.connectors.kafka.positions import StartupMode
from tablestore.connectors.kafka.scan_planner import Scan, ScanSpec, recreated_between
from tablestore.connectors.spark.split_reader import RangeSplit, read_last, read_rows, shown
from tablestore.connectors.table import KafkaTable
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task

logger = logging.getLogger("tablestore")
_ENDS_SECONDS: Final = 1.0
"""How old the end offsets in a progress report may be: Spark asks for one in every micro-batch."""
_UNKEPT: Final = "unkept"
"""Marks a start that may change, such as the latest offset, and is in no checkpoint yet. A first micro-batch without
messages puts it there, so that a query that is restarted before it has read a message begins at the same place."""
Json = dict[str, Any]
"""A Spark source offset.

``at`` is the next Kafka offset by topic and partition, ``epochs`` is the partition's leader epoch at the time (none:
unknown), ``until`` is where a bounded read ends, and ``ids`` are the topic ids.
"""


@dataclass(frozen=True)
class _Look:
    """Where the partitions end, and the ids of the topics by name."""

    log_ends: Mapping[Partition, LogEnd]
    ids: Mapping[str, str]

    @property
    def ends(self) -> Offsets:
        """The end offsets."""
        return {each: end.offset for each, end in self.log_ends.items()}


@shows_messages
class KafkaStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of messages; it commits processed offsets for the consumer group, as Flink does."""

    def __init__(self, table: KafkaTable, schema: StructType) -> None:
        """Read the table as rows of ``schema``.

        Raises:
            InvalidInputError: the schema of a table of changes lacks ``_change_type``.
        """
        if table.options.has_changes and CHANGE_TYPE not in schema.fieldNames():
            msg = (
                f"{table.options.what} is read as a stream of changes: add '{CHANGE_TYPE} STRING' to the schema to "
                "tell deletes from updates"
                f"{', or use tablestore.connectors.read_changes()' if table.options.is_upsert else ''}."
            )
            raise InvalidInputError(msg)
        self._table = table
        self._schema: pa.Schema = arrow_schema(schema)
        self._scan: Scan | None = None
        self._asked: Scan | None = None
        self._target: _Look | None = None
        self._committed: Mapping[Partition, int] = {}
        self._committing: tuple[Mapping[Partition, int], Future[None]] | None = None
        self._threads = ThreadPoolExecutor(1, "commit-offsets")
        self._seen = _Look({}, {})
        self._ends_at = float("-inf")
        self._planned = False

    def initialOffset(self) -> Json:
        """Return the start position of a new query, including the end position of a bounded query."""
        options = self._table.options
        if options.properties.group_id is None:
            logger.info("%s: 'properties.group.id' is not set; reading as group %r.", options.what, options.group_id)
        begin, until = self._plan.begin(), self._plan.until()
        if until is not None:
            # A read whose end is before its start reads nothing.
            until = {each: max(end, begin.get(each, end)) for each, end in until.items()}
        found = _json(begin, until, self._plan.ids())
        if options.start.mode in (StartupMode.LATEST, StartupMode.GROUP):
            # The start is committed as well: the next query of the group begins there, even if this one reads nothing.
            return found | {_UNKEPT: True}
        self._committed = begin
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the configured limit of a micro-batch (``maxRowsPerTrigger``)."""
        rows = self._table.options.rows_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offsets of an ``availableNow`` run."""
        self._target = self._look()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end position of the next micro-batch.

        Spark calls this after the previous micro-batch has completed, so the previous end is committed for the consumer
        group from here on, and before ``partitions`` plans the next micro-batch. Spark itself calls ``commit`` only
        once the next micro-batch has started, and never for the last one.
        """
        if _UNKEPT in start:
            return {name: part for name, part in start.items() if name != _UNKEPT}
        self.commit(start)
        look = self._target or self._look()
        while True:
            end = self._end_of(start, look, limit)
            if end is start:
                # No micro-batch follows, and the query may end.
                self._await_commit()
                return start
            # The end offsets may belong to a topic that has been deleted and created again meanwhile.
            if self._plan.ids() == look.ids:
                return end
            look = self._look()
            self._target = self._target and look

    def _end_of(self, start: Json, look: _Look, limit: ReadLimit) -> Json:
        """Return where a micro-batch ends that begins at ``start``; ``start`` itself if there is nothing to read."""
        at, until = offsets_of(start["at"]), offsets_of(start["until"]) if "until" in start else None
        ends = look.ends
        if until is not None:
            ends = {each: min(end, until[each]) for each, end in ends.items() if each in until}
        # An offset in a topic that was deleted and created again says nothing about the new topic.
        other = recreated_between(start.get("ids", {}), look.ids)
        begun = {each: offset for each, offset in at.items() if each[0] not in other}
        reset = self._table.options.properties.reset
        passed: Offsets = {}
        if isinstance(limit, ReadMaxRows) and reset in ("earliest", "latest"):
            # A micro-batch of messages that retention has removed has none.
            first = self._plan.firsts([each for each in begun if each in ends])
            passed = {each: offset for each, offset in first.items() if begun[each] < offset}
            begun |= passed
        if reset == "latest":
            begun |= {each: end for each, end in ends.items() if each[0] in other or each in passed}
        new = {each: end for each, end in ends.items() if each not in begun}
        first = self._plan.firsts(list(new))
        begun |= {each: first[each] for each, end in new.items() if first[each] < end}
        moved = {each: ends.get(each, offset) for each, offset in begun.items()}
        if isinstance(limit, ReadMaxRows):
            moved = _limited(begun, moved, limit.max_rows)
        if moved == at and not other:
            return start
        found = _json(moved, until, {**start.get("ids", {}), **look.ids})
        epochs = {each: end.epoch for each, end in look.log_ends.items() if each in moved and end.epoch != -1}
        return found | {"epochs": nested(epochs)} if epochs else found

    def reportLatestOffset(self) -> Json:
        """Return the end offsets, which are at most a second old, for the query's progress report."""
        if time.monotonic() - self._ends_at >= _ENDS_SECONDS:
            self._look()
        return _json(self._seen.ends, None, {})

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch, one for each Kafka partition that has messages to read.

        Raises:
            DataLostError: retention has removed messages, or a topic was deleted and created again, and
                ``auto.offset.reset`` does not allow the read to continue.
        """
        self._await_commit()
        if _UNKEPT in start:
            return []
        lost = self._lost(start, end)
        begun, through = offsets_of(start["at"]), offsets_of(end["at"])
        found = self._plan.ranges(begun, through, recreated(start, end), end.get("ids"), lost)
        return [RangeSplit(part) for part in found]

    def _lost(self, start: Json, end: Json) -> set[Partition]:
        """Return the partitions of which the broker has lost messages that this query has read or planned to read.

        A micro-batch that is repeated was planned before the query was started again, so its end is compared, too.
        """
        other = recreated(start, end) | recreated_between(end.get("ids", {}), self._plan.known_ids)
        positions: list[Json] = [start]
        now: Mapping[Partition, LogEnd] = _reached(end)
        if not self._planned:
            positions, now = [start, end], self._plan.log_ends()
            self._planned = True
        lost: set[Partition] = set()
        for position in positions:
            reached = {each: was for each, was in _reached(position).items() if each in now and each[0] not in other}
            lost |= self._plan.lost(reached, now)
        return lost

    def commit(self, end: Json) -> None:
        """Start to commit the processed offsets for the consumer group, beside the micro-batch that follows.

        A failure is only logged, because the query resumes from its checkpoint, not from the group's offsets.
        """
        self._await_commit()
        offsets = offsets_of(end["at"])
        moved = {
            each: offset
            for each, offset in offsets.items()
            if self._committed.get(each) != offset and self._own_scan.is_known(each[0])
        }
        if moved:
            self._committing = offsets, self._threads.submit(self._own_scan.commit, moved)

    def _await_commit(self) -> None:
        """Wait for the commit that has been started."""
        if self._committing is None:
            return
        (offsets, done), self._committing = self._committing, None
        try:
            done.result()
        except TableStoreError as error:
            logger.warning("%s The query still continues from its checkpoint.", error)
        else:
            self._committed = offsets

    def stop(self) -> None:
        """Complete the commit that has been started, and close connections."""
        self._threads.shutdown()
        if self._scan is not None:
            self._scan.close()
        self._await_commit()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        begin_task()
        assert isinstance(partition, RangeSplit)
        columns = [name for name in self._schema.names if name not in (CHANGE_TYPE, SEQ)]
        for batch in self._rows(partition.part, columns):
            if batch.num_rows:
                yield shown(batch, self._schema)

    def __getstate__(self) -> Json:
        """Pickle only the state that ``read`` needs in tasks."""
        return {"_schema": self._schema, "_table": self._table}

    def _rows(self, part: FetchRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an offset range; of an upsert table, the last of each key."""
        return (read_last if self._table.options.is_upsert else read_rows)(self._table, part, columns)

    def _look(self) -> _Look:
        """Return the current end offsets, and keep them for the progress report."""
        self._seen = _Look(self._plan.log_ends(), self._plan.known_ids)
        self._ends_at = time.monotonic()
        return self._seen

    def _spec(self) -> ScanSpec:
        return self._table.scan_spec()

    @property
    def _plan(self) -> Scan:
        """The scan, which outlasts outages of the brokers."""
        if self._asked is None:
            self._asked = outlasting(self._own_scan)
        return self._asked

    @property
    def _own_scan(self) -> Scan:
        if self._scan is None:
            self._scan = Scan(self._spec())
        return self._scan


def _json(offsets: Mapping[Partition, int], until: Mapping[Partition, int] | None, ids: Mapping[str, str]) -> Json:
    """Return a position as JSON, with keys in a fixed order because Spark compares offsets as text."""
    found: Json = {"at": nested(offsets)}
    if until is not None:
        found["until"] = nested(until)
    return found | {"ids": dict(sorted(ids.items()))} if ids else found


def recreated(start: Json, end: Json) -> set[str]:
    """Return the topics whose id differs between two positions; positions in older checkpoints have no ids."""
    return recreated_between(start.get("ids", {}), end.get("ids", {}))


def nested(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as JSON: by topic, then by partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def offsets_of(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a position, by topic and partition."""
    return {(topic, int(number)): offset for topic, found in nested.items() for number, offset in found.items()}


def _reached(position: Json) -> dict[Partition, LogEnd]:
    """Return the offsets of a position that were reached in a known leader epoch."""
    at = offsets_of(position["at"])
    return {each: LogEnd(at[each], epoch) for each, epoch in offsets_of(position.get("epochs", {})).items()}


def _limited(start: Mapping[Partition, int], end: Mapping[Partition, int], rows_max: int) -> Offsets:
    """Return end offsets that divide a row limit among partitions in proportion to what each has left to read.

    Each partition with something left to read gets at least one offset.
    """
    left = {each: max(0, end[each] - start[each]) for each in end}
    total = sum(left.values())
    if total <= rows_max:
        return dict(end)
    return {each: start[each] + min(rest, max(1, rows_max * rest // total)) if rest else end[each]
            for each, rest in left.items()}  # fmt: skip
