"""The streaming read: a Spark source whose offsets are snapshot ids.

An offset is the last snapshot that has been read, so a micro-batch holds whole snapshots and a restart resumes exactly
at the checkpoint's offset. -1 means that nothing has been read and the stream starts with a full snapshot. The offset
also holds the table's id, because a new table at the same path counts its snapshots from 0 again, and the fingerprint
of the snapshot's commit, because a table that is restored from an older copy uses the same ids for other commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

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

from log_system.gate import limited
from snapshot.errors import InvalidInputError, TableReplacedError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION, RESERVED
from tablestore.context import TableContext
from tablestore.options.read_options import ReadOptions, ScanMode
from tablestore.read.frame_columns import columns_of_frame
from tablestore.read.spark_splits import ReadSplit
from tablestore.read.splits import as_feed
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task
from tablestore.streaming.change_feed import BEFORE_FULL, Feed, Position
from tablestore.streaming.consumers import ConsumerProgress

REPORT_SECONDS: Final = 1.0
"""How old the end of a source in a query's progress may be: Spark asks for it each time it looks for new rows."""
_REST: Final = 4
"""How many times the duration of a look that found nothing a stream waits before the next one."""
_REST_SECONDS_MAX: Final = 1.0

Offset = dict[str, Any]
"""``snapshot`` and ``commit``, the fields of ``Position``, and ``table``, the id of the table.

Offsets of earlier versions have no ``commit``."""


def feed_schema(spec: TableSpec) -> StructType:
    """Return the columns of a change feed, as in Delta: the table's columns, change type, commit version and timestamp.

    A delete has values in the key columns; in formats that carry only the key, its other columns are NULL.
    """
    columns = [
        StructField(f.name, f.dataType, f.nullable or (spec.has_key and f.name not in spec.primary_key))
        for f in spec.schema.fields
    ]
    return StructType(
        [
            *columns,
            StructField(CHANGE_TYPE, StringType()),
            StructField(COMMIT_VERSION, LongType()),
            StructField(COMMIT_TIMESTAMP, TimestampType()),
        ]
    )


@shows_messages
class SnapshotStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table's snapshots as they become visible, from the log or, without one, from the table's files."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Read the table at ``options.path`` as rows of ``schema``.

        Raises:
            InvalidInputError: a key table is read without the change type, which tells deletes from inserts, or the
                schema has other columns than the table.
            ConflictError: columns were changed since the frame was made.
        """
        self._options = options
        self._table = TableContext.open(options.path, options.runtime, options.allowed, options.table_id)
        if self._table.spec.has_key and CHANGE_TYPE not in schema.fieldNames():
            msg = (
                f"table {options.path!r} has a primary key, so its stream holds updates and deletes; "
                f"set option 'readChangeFeed'='true' to get {CHANGE_TYPE!r}, or use TableStore.read_stream()."
            )
            raise InvalidInputError(msg)
        columns_of_frame(self._table.spec, options)
        names = self._table.spec.arrow.names
        others = [name for name in schema.fieldNames() if name not in (*names, *RESERVED)]
        if others:
            msg = f"table {options.path!r}: expected a schema of its columns {names}, got {others}."
            raise InvalidInputError(msg)
        self._schema: pa.Schema = arrow_schema(schema)
        self._feed = Feed(self._table, tasks=options.tasks)
        self._target: int | None = None
        self._until: int | None = options.until
        self._first: Position | None = None
        self._seen: tuple[int, float] = (0, float("-inf"))
        self._watch = self._table.log.watch()
        name = options.consumer
        self._progress = None if name is None else ConsumerProgress(self._table, name)

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query starts."""
        # Spark asks again for the first micro-batch, when a named consumer may already have been written.
        if self._first is None:
            begun = None if self._progress is None else self._progress.begun()
            self._first = self._feed.position(self._feed.begin(self._options)) if begun is None else begun
        return self._offset(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit from the options."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        # Of Spark's limits, files come closest to snapshots.
        limit = self._options.snapshots_max
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the offset at which an ``availableNow`` run ends."""
        self._target = self._newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the last snapshot of the next micro-batch; a read limit never splits a snapshot.

        Raises:
            CorruptedError: the table was set back to before what the query has read, whatever was committed since.
            DataLostError: the topic was created again.
            NotFoundError: the topic was deleted.
            TableReplacedError: the query has read an earlier table at the same path.
        """
        began = time.monotonic()
        reached = self._position(start)
        after = reached.snapshot
        # Without its topic, nothing is published and nothing would ever become visible.
        self._table.check_log(self._watch)
        through = self._newest() if self._target is None else self._target
        if after == BEFORE_FULL and self._options.scan_mode is ScanMode.FROM_SNAPSHOT_FULL:
            through = self._options.snapshot or 0
        self._feed.check(reached, self._options.consumer)
        if self._progress is not None:
            # The query has read and committed everything up to its start offset.
            if after == BEFORE_FULL:
                self._progress.begin(self._feed.position(through))
            else:
                self._progress.read(reached)
        if after == BEFORE_FULL:
            return self._offset(self._feed.position(through))
        if through <= after:
            # Spark would look again after 10 ms, with two requests to the store each time.
            time.sleep(min(_REST * (time.monotonic() - began), _REST_SECONDS_MAX))
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        snapshots = None if isinstance(limit, ReadAllAvailable) else self._options.snapshots_max
        through = limited(after, through, self._feed.rows, rows_max=rows, snapshots_max=snapshots)
        return self._offset(self._feed.position(through))

    def commit(self, end: Offset) -> None:
        """Record the consumer's progress after the query has committed a micro-batch."""
        reached = self._position(end)
        if self._progress is not None and reached.snapshot != BEFORE_FULL:
            self._progress.read(reached)

    def reportLatestOffset(self) -> Offset:
        """Return the newest visible snapshot, which is at most a second old, for the query's progress."""
        return self._offset(self._feed.position(self._recent()))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch.

        Raises:
            CorruptedError: the table was set back since a query that is started again planned this micro-batch.
            DataLostError: neither the log nor the table's files still have all of its snapshots.
            TableReplacedError: the query has read an earlier table at the same path.
        """
        after, through = self._snapshot(start), self._snapshot(end)
        if after == through:
            return []
        self._feed.check(self._position(end), self._options.consumer)
        return [ReadSplit(part) for part in self._feed.parts(after, through)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split. Runs in a task."""
        begin_task()
        assert isinstance(partition, ReadSplit)
        return as_feed(partition.part.read(), self._schema)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for tasks: only what ``read`` needs."""
        return {"_schema": self._schema}

    def _newest(self) -> int:
        """Return the newest snapshot that the query may read: visible, and not after the query's ``until``."""
        newest, until_ms = self._table.newest_visible(), self._options.until_ms
        if self._until is None and until_ms is not None and self._table.files.snapshot(newest).timestamp_ms > until_ms:
            # There is a snapshot after that time, so the last one before it no longer changes.
            self._until = self._table.files.snapshot_as_of(until_ms).id
        self._seen = newest if self._until is None else min(newest, self._until), time.monotonic()
        return self._seen[0]

    def _recent(self) -> int:
        """Return the same as of at most ``REPORT_SECONDS`` ago."""
        return self._seen[0] if time.monotonic() - self._seen[1] < REPORT_SECONDS else self._newest()

    def _offset(self, reached: Position) -> Offset:
        return {"snapshot": reached.snapshot, "table": self._table.spec.table_id, "commit": reached.commit}

    def _snapshot(self, offset: Offset) -> int:
        return self._position(offset).snapshot

    def _position(self, offset: Offset) -> Position:
        if offset["table"] != self._table.spec.table_id:
            msg = (
                f"table {self._table.path!r} was dropped and created again since this query read it last. "
                "Start a new query, with a new checkpoint."
            )
            raise TableReplacedError(msg)
        return Position(int(offset["snapshot"]), offset.get("commit", ""))
