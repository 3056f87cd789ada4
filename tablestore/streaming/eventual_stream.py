"""The streaming read of an eventual log: a Spark source with Kafka offsets, because it reads ahead of commits.

It starts with the rows of a snapshot (``full``) or at offsets of the log. Then it reads all of the log's records,
committed or not. The log converges to the table (see ``publisher/eventual_publisher.py``), so the records that are
read, reduced to the last one of each key, converge too.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from log_system.outages import outlasting
from snapshot.errors import DataLostError, InvalidInputError
from snapshot.records import LogEnd, Split
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.options.read_options import ReadOptions, ScanMode
from tablestore.read.spark_splits import ReadSplit
from tablestore.read.split_planner import initial_splits
from tablestore.spark.error_messages import shows_messages
from tablestore.streaming.change_feed import BEFORE_FULL, Position
from tablestore.streaming.snapshot_stream import REPORT_SECONDS, Offset, SnapshotStream


@dataclass(frozen=True)
class TailSplit:
    """Records of one log partition as changes; ``_commit_version`` is NULL."""

    records: Split

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes with ``_kind``, ``_seq``, ``_commit_timestamp`` and ``_commit_version``."""
        for batch in self.records.read():
            yield uncommitted(batch)


def uncommitted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with a ``_commit_version`` of NULL."""
    return batch.append_column(COMMIT_VERSION, pa.nulls(batch.num_rows, pa.int64()))


def check_uncommitted(options: ReadOptions) -> None:
    """Check that no option refers to snapshots, which a log that shows uncommitted changes does not keep apart.

    Raises:
        InvalidInputError: an option does.
    """
    given = {
        "maxSnapshotsPerTrigger": (options.snapshots_max, "Use 'maxRowsPerTrigger' (max_rows of read_stream)"),
        "until": (options.until, "Leave it out"),
        "until-timestamp": (options.until_ms, "Leave it out"),
        "consumer": (options.consumer, "Leave it out"),
    }
    if options.scan_mode is ScanMode.FROM_SNAPSHOT_FULL:
        given["scan-mode"] = (options.scan_mode, "Use 'full', or 'from-snapshot'")
    for name, (value, instead) in given.items():
        if value is not None:
            msg = (
                f"option {name!r}: table {options.path!r} has log.consistency='eventual', whose stream does not keep "
                f"snapshots apart. {instead}."
            )
            raise InvalidInputError(msg)


@shows_messages
class EventualStream(SnapshotStream):
    """Reads an eventual log up to its end.

    An offset holds the table's id, the topic's id, ``offsets`` (the Kafka offset in each partition), ``epochs`` (each
    partition's leader epoch when it reached there; -1 or none at all: unknown) and ``snapshot``, which is
    ``BEFORE_FULL`` until the initial rows have been read.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Read the table at ``options.path`` as rows of ``schema``.

        Raises:
            InvalidInputError: an option refers to snapshots, which an eventual log does not keep apart.
        """
        super().__init__(options, schema)
        check_uncommitted(options)
        self._tail = outlasting(self._table.log.tail())
        self._ends: list[LogEnd] | None = None
        self._looked: tuple[list[LogEnd], float] = ([], float("-inf"))
        self._kept: tuple[list[LogEnd], list[int]] = ([], [])
        self._planned = False

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query starts."""
        mode = self._options.scan_mode
        if mode is ScanMode.FULL:
            return self._at(BEFORE_FULL, [], "")
        if mode is ScanMode.LATEST:
            ends = self._tail.ends()
            return self._at(0, _offsets(ends), self._tail.generation()) | {"epochs": [each.epoch for each in ends]}
        if mode is ScanMode.EARLIEST:
            return self._at(0, self._tail.starts(), self._tail.generation())
        return self._at(0, *self._ends_of(self._feed.begin(self._options)))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the offsets at which an ``availableNow`` run ends."""
        self._target = self._table.newest_visible()
        self._ends = self._look()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch: the log's end, or an earlier one if the read limit requires it.

        The read limit counts offsets.

        Raises:
            DataLostError: the topic was created again since the query read it, or has lost records that it read.
            NotFoundError: the topic was deleted.
            TableReplacedError: the query has read an earlier table at the same path.
        """
        # Check first, because requests about a deleted topic wait for a while for it to come back.
        self._table.check_log(self._watch)
        if self._snapshot(start) == BEFORE_FULL:
            newest = self._table.newest_visible() if self._target is None else self._target
            return self._at(newest, *self._ends_of(newest))
        ends = self._ends or self._look()
        begun = _reached(start)
        epochs = [end.epoch for end in ends]
        is_shorter = any(end.offset < old.offset for end, old in zip(ends, begun, strict=True))
        has_new_leader = any(old.epoch not in (-1, end.epoch) for end, old in zip(ends, begun, strict=True))
        # While nothing arrives, a new leader is asked once.
        if is_shorter or (has_new_leader and self._kept != (begun, epochs)):
            self._tail.check(start.get("topic", ""), begun)
            self._kept = begun, epochs
        # A transaction marker may become visible later than the records before it, so the end may seem to move back.
        through = [max(end.offset, old.offset) for end, old in zip(ends, begun, strict=True)]
        if isinstance(limit, ReadMaxRows):
            through = _limited(start["offsets"], through, limit.max_rows)
        if through == start["offsets"]:
            return start
        topic = start.get("topic") or self._tail.generation()
        return start | {"offsets": through, "epochs": epochs, "topic": topic}

    def reportLatestOffset(self) -> Offset:
        """Return the log's end, which is at most a second old, for the query's progress."""
        if time.monotonic() - self._looked[1] >= REPORT_SECONDS:
            self._look()
        return self._at(self._recent(), _offsets(self._looked[0]), "")

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch.

        Raises:
            DataLostError: the log's retention has removed records that the query has not read, or the topic was created
                again.
            TableReplacedError: the query has read an earlier table at the same path.
        """
        if self._snapshot(start) == BEFORE_FULL:
            files = self._table.files
            self._feed.check(self._position(end))
            rows = initial_splits(files, files.snapshot(self._snapshot(end)), tasks=self._options.tasks)
            return [ReadSplit(part) for part in rows]
        ranges = self._ranges(start["offsets"], end)
        return [ReadSplit(TailSplit(each)) for each in self._tail.splits(ranges, newest=False)]

    def _ranges(self, begun: Sequence[int], end: Offset) -> list[tuple[int, int, int]]:
        """Return the partitions with offsets to read, each with the first offset and the end.

        Raises:
            DataLostError: the log's retention has removed records that the query has not read, or the topic was created
                again.
        """
        ranges = [(p, *pair) for p, pair in enumerate(zip(begun, end["offsets"], strict=True))]
        ranges = [each for each in ranges if each[1] < each[2]]
        if ranges:
            # A micro-batch that is repeated was planned before the query was started again.
            self._tail.check(end.get("topic", ""), () if self._planned else _reached(end))
            self._planned = True
            first = self._tail.starts()
            lost = [p for p, at, _ in ranges if first[p] > at]
            if lost:
                msg = (
                    f"table {self._table.path!r}: the log's retention has passed offsets that this query has not read "
                    f"(partitions {lost}). Start a new query with scan_mode='full'."
                )
                raise DataLostError(msg)
        return ranges

    def _look(self) -> list[LogEnd]:
        """Return the log's end, and keep it for the query's progress."""
        self._looked = self._tail.ends(), time.monotonic()
        return self._looked[0]

    def _ends_of(self, snapshot: int) -> tuple[list[int], str]:
        entry = self._table.index.get(snapshot)
        # A snapshot without changes, such as a compaction, gets its entry with the next write.
        if entry is None and self._table.newest_visible() < snapshot <= self._feed.newest_rows():
            entry = self._table.index.latest()
        if entry is None:
            msg = (
                f"table {self._table.path!r}: snapshot {snapshot} has no entry in the log index, so the offsets "
                "where it ends are unknown. Start with scan_mode='full', or call recover() to rebuild the entry."
            )
            raise DataLostError(msg)
        return list(entry.ends), entry.topic or self._tail.generation()

    def _at(self, snapshot: int, offsets: Sequence[int], topic: str) -> Offset:
        # Only the initial rows are those of a snapshot; the log's records are read whatever is committed.
        reached = self._feed.position(snapshot) if snapshot else Position(snapshot)
        return self._offset(reached) | {"offsets": list(offsets), "topic": topic}


def _reached(start: Offset) -> list[LogEnd]:
    """Return how far a stream has read each partition; the offsets it began with may hold no epochs."""
    offsets = start["offsets"]
    return [LogEnd(*each) for each in zip(offsets, start.get("epochs") or [-1] * len(offsets), strict=True)]


def _offsets(ends: Sequence[LogEnd]) -> list[int]:
    return [end.offset for end in ends]


def _limited(begun: Sequence[int], ends: Sequence[int], rows_max: int) -> list[int]:
    """Return the ends of a micro-batch of at most ``rows_max`` offsets, shared evenly among the partitions.

    A partition with fewer offsets leaves its share to the others. If there are offsets to read, at least one is read.
    """
    left, found = rows_max, list(begun)
    waiting = [(end - start, partition) for partition, (start, end) in enumerate(zip(begun, ends, strict=True))]
    heapq.heapify(waiting)
    while waiting:
        held, partition = heapq.heappop(waiting)
        share = min(held, -(-left // (len(waiting) + 1)))
        found[partition] += share
        left -= share
    return found
