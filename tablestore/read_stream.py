"""The streaming read: a Spark source whose offsets are snapshot ids.

An offset is the last snapshot that has been read, so a micro-batch holds whole snapshots and a restart goes on exactly
where the checkpoint says. -1 stands for "nothing yet, begin with a full snapshot". Beside it stands the id of the
table, since one that is made anew at the same path counts its snapshots from 0 again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from log_system.gate import Gate, PartitionSlice, limited
from log_system.kafka.topic import earliest_offsets
from snapshot.adapt import Adapter
from snapshot.changes import change_columns, change_schema
from snapshot.columns import visible
from snapshot.errors import ConflictError, DataLostError, InvalidInputError, NotFoundError
from snapshot.rowkind import CHANGE_TYPE
from snapshot.schema import COMMIT_TIMESTAMP, COMMIT_VERSION, RESERVED, arrow_schema
from snapshot.spec import TableSpec
from tablestore.opened import OpenedTable
from tablestore.parts import RESTART, LogPart, LogPiece, Part, ReadPart, as_feed
from tablestore.plan import change_parts, seed_parts
from tablestore.read_options import ReadOptions, ScanMode

logger = logging.getLogger("tablestore")

BEFORE_FULL = -1
Offset = dict[str, Any]
"""``snapshot``, the id of the last snapshot read, and ``table``, the id of the table."""


def feed_schema(spec: TableSpec) -> StructType:
    """Give the columns of a change feed (those of Delta's): the table's, then what happened to the row, and when.

    A delete holds its key and, in formats that carry no more, NULL elsewhere.
    """
    return StructType(
        [
            *visible(change_columns(spec)).fields,
            StructField(CHANGE_TYPE, StringType()),
            StructField(COMMIT_VERSION, LongType()),
            StructField(COMMIT_TIMESTAMP, TimestampType()),
        ]
    )


class SnapshotStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table's snapshots as they become visible, from the log or, without one, from the table's files."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Read the table at ``options.path`` as rows of ``schema``.

        Raises:
            InvalidInputError: a key table is read without the columns that tell deletes from inserts.
            ConflictError: the table's columns were changed while the query began.
        """
        self._options = options
        self._table = OpenedTable.open(options.path, options.runtime)
        if self._table.spec.has_key and CHANGE_TYPE not in schema.fieldNames():
            msg = (
                f"table {options.path!r} has a primary key, so its stream holds updates and deletes; "
                f"set option 'readChangeFeed'='true' to get {CHANGE_TYPE!r}, or use TableStore.read_stream()."
            )
            raise InvalidInputError(msg)
        self._schema: pa.Schema = arrow_schema(schema)
        self._columns = change_columns(self._table.spec)
        missing = [n for n in schema.fieldNames() if n not in (*self._columns.fieldNames(), *RESERVED)]
        if missing:
            msg = f"table {options.path!r}: columns {missing} were renamed or dropped just now; start the query again."
            raise ConflictError(msg)
        self._gate = Gate(self._table.index)
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        """Give where a new query begins."""
        return self._offset(self._begin())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Give the limit that the read's options ask for."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        # Of the limits Spark knows, files are the nearest to snapshots.
        limit = self._options.snapshots_max
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where an ``availableNow`` run ends."""
        self._target = self._table.newest_visible()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Give the newest snapshot the next micro-batch may hold; a read limit never parts a snapshot.

        Raises:
            DataLostError: the query has read another table, which was at this path before.
        """
        after = self._snapshot(start)
        through = self._table.newest_visible() if self._target is None else self._target
        if after == BEFORE_FULL:
            return self._offset(through)
        if through <= after:
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        snapshots = None if isinstance(limit, ReadAllAvailable) else self._options.snapshots_max
        return self._offset(limited(after, through, self._rows, rows_max=rows, snapshots_max=snapshots))

    def reportLatestOffset(self) -> Offset:
        """Give the newest visible snapshot, for the query's progress."""
        return self._offset(self._table.newest_visible())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan a micro-batch.

        Raises:
            DataLostError: neither the log nor the table holds all of its snapshots any more, or the query has read
                another table, which was at this path before.
        """
        after, through = self._snapshot(start), self._snapshot(end)
        if after == through:
            return []
        return [ReadPart(part) for part in self._parts(after, through)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
        assert isinstance(partition, ReadPart)
        return as_feed(partition.part.read(), self._schema)

    def __getstate__(self) -> dict[str, Any]:
        """Carry to tasks only what ``read`` needs."""
        return {"_schema": self._schema}

    def _parts(self, after: int, through: int) -> Sequence[Part]:
        files = self._table.files
        if after == BEFORE_FULL:
            return seed_parts(files, files.snapshot(through), tasks=self._options.tasks)
        if self._table.log is not None:
            found = self._log_parts(after, through)
            if found is not None:
                return found
        try:
            return change_parts(files, after, through, self._table.options.buckets, self._columns)
        except DataLostError as error:
            msg = (
                f"table {self._table.path!r}: snapshots {after + 1} to {through} are no longer in the log nor all in "
                f"the table's files ({error}). Start a new query with scan_mode='full'."
            )
            raise DataLostError(msg) from error

    def _log_parts(self, after: int, through: int) -> list[Part] | None:
        """Plan from the log; None where its retention has passed or the index has no entry."""
        log = self._table.log
        assert log is not None
        columns, compacted = self._columns, self._table.options.log is not None and self._table.options.log.compacted
        pieces: dict[int, list[LogPiece]] = {}
        try:
            for spec, first, last in self._epochs(after, through):
                under = log.under(change_schema(spec))
                for piece in self._gate.slices(first - 1, last):
                    held = LogPiece(under, piece, Adapter(change_columns(spec), columns, RESTART))
                    pieces.setdefault(piece.partition, []).append(held)
        except DataLostError as error:
            logger.warning("table %s: %s Reading the table's files instead.", self._table.path, error)
            return None
        slices = [each.piece for held in pieces.values() for each in held]
        if slices and self._has_expired(slices):
            logger.warning(
                "table %s: the log's retention has passed snapshots %d to %d; reading the table's files instead.",
                self._table.path,
                after + 1,
                through,
            )
            return None
        return [LogPart(tuple(held), compacted=compacted) for _, held in sorted(pieces.items())]

    def _epochs(self, after: int, through: int) -> Iterator[tuple[TableSpec, int, int]]:
        """Part a run of snapshots where the table's columns were changed; give each part's first and last."""
        newest, last = self._table.files.spec_at_least(through), through
        found: list[tuple[TableSpec, int, int]] = []
        while last > after:
            spec = newest.at(last)
            first = max(after + 1, spec.since)
            found.append((spec, first, last))
            last = first - 1
        return reversed(found)

    def _has_expired(self, slices: Sequence[PartitionSlice]) -> bool:
        assert self._table.log is not None
        first = earliest_offsets(self._table.log.client, self._table.log.topic)
        return any(first[piece.partition] > piece.start and piece.records for piece in slices)

    def _begin(self) -> int:
        mode, newest = self._options.scan_mode, self._table.newest_visible()
        if mode is ScanMode.FULL:
            return BEFORE_FULL
        if mode is ScanMode.LATEST:
            return newest
        snapshots = list(self._table.files.snapshots())
        if mode is ScanMode.EARLIEST:
            return max(snapshots[-1].id - 1, 0)
        if mode is ScanMode.FROM_SNAPSHOT:
            wanted = self._options.snapshot or 0
            if not snapshots[-1].id <= wanted <= newest + 1:
                msg = (
                    f"option 'snapshot'={wanted}: table {self._table.path!r} can be streamed from snapshot "
                    f"{snapshots[-1].id} to {newest + 1} (the next)."
                )
                raise NotFoundError(msg)
            return max(wanted - 1, 0)
        time = self._options.timestamp_ms or 0
        younger = [s.id for s in snapshots if s.timestamp_ms >= time and s.id <= newest]
        return max(min(younger) - 1, 0) if younger else newest

    def _rows(self, snapshot: int) -> int:
        entry = None if self._table.log is None else self._table.index.get(snapshot)
        return self._table.files.snapshot(snapshot).rows if entry is None else entry.rows

    def _offset(self, snapshot: int) -> Offset:
        return {"snapshot": snapshot, "table": self._table.spec.table_id}

    def _snapshot(self, offset: Offset) -> int:
        if offset["table"] != self._table.spec.table_id:
            msg = (
                f"table {self._table.path!r} was dropped and made anew since this query read it last. "
                "Start a new query, with a new checkpoint."
            )
            raise DataLostError(msg)
        return int(offset["snapshot"])
