"""Spark's ``format("tablestore")``: batch and streaming reads and writes of a table by its path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from log_system.files.log import FilesLog
from log_system.outages import Outages
from snapshot.errors import ConflictError, CorruptedError, InvalidInputError, NotFoundError, TableReplacedError
from snapshot.merge.predicate import Predicate
from snapshot.merge.pushed_filters import split_filters
from snapshot.records import CommitId, Snapshot
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import conform
from snapshot.staging.stage import StagedFile, Stager
from snapshot.staging.task_results import accept_staged, staged_to_arrow
from snapshot.store.commit import EXPIRED
from tablestore.after_write import after_write
from tablestore.context import TableContext
from tablestore.maintenance.expire_snapshots import expire_if_due
from tablestore.options.read_options import FORMAT, NORMALIZED_FORMAT, ReadOptions, parse_read_options
from tablestore.read.frame_columns import columns_of_frame
from tablestore.read.spark_splits import ReadSplit
from tablestore.read.split_planner import snapshot_splits
from tablestore.read.splits import as_feed
from tablestore.read.time_travel import chosen_snapshot
from tablestore.spark.error_messages import shows_messages
from tablestore.spark.python_worker import begin_task
from tablestore.spark.query_checkpoint import check_table, commit_id_of, note_landed
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.normalized_stream import NormalizedStream
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.arrow_input import prepare_batches
from tablestore.write.frame_input import check_columns
from tablestore.write.writer import Writer

_COMMITS = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module of the processes in which Spark commits and aborts micro-batches."""
_BATCH = "streaming.sql.batchId"
"""The property of Spark's tasks that holds the number of their micro-batch."""
T = TypeVar("T")
_OF_CATALOG = "provider"
"""The option that Spark adds for tables of its catalog."""


@shows_messages
class TableStoreDataSource(DataSource):
    """A table as a Spark data source. Options: see ``ReadOptions``."""

    _frame: tuple[str, int] | None = None
    """See ``ReadOptions.frame``: Spark keeps this object with the frame."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)`` and ``USING``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the table's columns; with ``readChangeFeed``, also those of its change feed."""
        self._refuse_create_table()
        options = self._options()
        table = _opened(options)
        spec = _spec(table, options)
        self._frame = spec.table_id, spec.since
        if options.change_feed:
            return feed_schema(spec)
        wanted = spec.schema.fieldNames() if options.columns is None else options.columns
        return StructType([field for field in spec.schema.fields if field.name in wanted])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a snapshot."""
        return SnapshotReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader that follows snapshots as they become visible, or an eventual log to its end."""
        options = self._options()
        shows_uncommitted = _opened(options).log.shows_uncommitted
        return (EventualStream if shows_uncommitted else SnapshotStream)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return the writer that appends rows or, in a table with a key, upserts them."""
        if overwrite:
            msg = (
                f"format({FORMAT!r}) does not overwrite; TableStore.overwrite() does. Write with mode('append'), which "
                "upserts where there is a key."
            )
            raise InvalidInputError(msg)
        return TableWriter(_Sink.open(self._options(), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return the writer that writes each micro-batch exactly once."""
        options = self._options()
        if not options.checkpoint:
            msg = "option 'checkpointLocation' is required for a streaming write: it names the query across restarts."
            raise InvalidInputError(msg)
        if overwrite:
            msg = "outputMode('complete') is not supported; use 'append', or TableStore.write_stream() for 'update'."
            raise InvalidInputError(msg)
        if _COMMITS in sys.modules:
            # An error here, where Spark only commits or aborts a micro-batch, would hide why the commit has failed.
            return TableWriter(None, options.checkpoint)
        sink = _Sink.open(options, schema)
        check_table(options.checkpoint, options.path, sink.stager.spec.table_id)
        return TableWriter(sink, options.checkpoint)

    def _refuse_create_table(self) -> None:
        """Check that Spark does not ask for ``CREATE TABLE``.

        Raises:
            InvalidInputError: it does. Spark could not read that table again: its own catalog does not pass the path
                on to a Python data source, and any other catalog, such as Delta's, does not look for one.
        """
        if _OF_CATALOG in self.options:
            path = self.options.get("path") or self.options.get("location") or "/path/of/the/table"
            msg = (
                f"CREATE TABLE ... USING {FORMAT}: Spark could not read the table again by its name. Use CREATE "
                f"TEMPORARY VIEW name USING {FORMAT} OPTIONS (path '{path}'), which takes INSERT INTO too. A new "
                "table is created by TableStore.create(spark, path, ...)."
            )
            raise InvalidInputError(msg)

    def _options(self) -> ReadOptions:
        return replace(parse_read_options(dict(self.options)), frame=self._frame)


@shows_messages
class NormalizedDataSource(TableStoreDataSource):
    """The stream of an eventual log through the normalize operator, which query plans show by this source's name."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NORMALIZED_FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader that turns the log's records into a changelog."""
        return NormalizedStream(self._options(), schema)


@shows_messages
class SnapshotReader(DataSourceReader):
    """Reads one snapshot, with filters applied before rows reach Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Read the table at ``options.path``."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._predicate = Predicate()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that DuckDB evaluates exactly as Spark does, and return the others, which Spark evaluates.

        Only with the option ``push_filters``; the caller must know that the relation is scanned only once. Spark 4.2.0
        reuses the plan made with the filters of one scan for all scans of the same relation: a second query of the
        frame, or the other side of a self-join, would silently lose the rows that the first scan filtered out.
        """
        if not self._options.push_filters:
            return filters
        spec = _spec(_opened(self._options), self._options)
        # Fields of structs are looked up by name, and may have other (physical) names in files.
        plain = [field for field, held in zip(spec.arrow, spec.physical, strict=True) if field.type == held.type]
        self._predicate, left = split_filters(filters, pa.schema(plain))
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits of the snapshot: one or several per bucket."""
        table = _opened(self._options)
        if self._options.changes_after is not None:
            return self._changes(table, self._options.changes_after)
        snapshot, spec = _snapshot(table, self._options), _spec(table, self._options)
        tasks, columns = self._options.tasks, self._schema.names
        predicate = self._predicate
        parts = snapshot_splits(table.files, snapshot, tasks=tasks, columns=columns, predicate=predicate, spec=spec)
        return [ReadSplit(part) for part in parts]

    def _changes(self, table: TableContext, after: int) -> Sequence[InputPartition]:
        """Return the splits of the changes after a snapshot: one per bucket."""
        through = self._options.changes_through
        through = table.files.latest() if through is None else through
        log = FilesLog(table.files, table.options.buckets)
        columns = _spec(table, self._options).change_columns
        return [ReadSplit(part) for part in log.plan(after, through, columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split. Runs in a task."""
        begin_task()
        if not isinstance(partition, ReadSplit):
            # If there are no splits, Spark makes a partition of its own.
            return
        if self._options.changes_after is not None:
            yield from as_feed(partition.part.read(), self._schema)
            return
        for batch in partition.part.read():
            yield conform(batch, self._schema)


def _opened(options: ReadOptions, table_id: str | None = None) -> TableContext:
    return TableContext.open(options.path, options.runtime, options.allowed, table_id or options.table_id)


def _spec(table: TableContext, options: ReadOptions) -> TableSpec:
    """Return the table definition whose columns are to be read.

    Raises:
        ConflictError: columns were changed since the frame was made.
    """
    spec = table.files.spec_of(_snapshot(table, options)) if options.own_schema else table.spec
    return columns_of_frame(spec, options)


def _snapshot(table: TableContext, options: ReadOptions) -> int:
    """Return the snapshot to read."""
    return chosen_snapshot(table.files, options.snapshot, options.timestamp_ms, options.tag)


@dataclass
class _StagedRows(WriterCommitMessage):
    """Descriptions of the files that one task staged, and with what."""

    rows: list[dict[str, object]]
    sink: _Sink


@dataclass(frozen=True)
class _Sink:
    """Stages rows in tasks and commits on the driver; it has no Spark session, so it publishes in this process."""

    options: ReadOptions
    stager: Stager

    @classmethod
    def open(cls, options: ReadOptions, schema: StructType) -> _Sink:
        table = _opened(options)
        check_columns(schema, table.spec)
        return cls(options, Writer(table, None).stager(whole_buckets=False))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> _StagedRows:
        begin_task()
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        shaped = prepare_batches(batches, self.stager.spec, task, self.stager.rule)
        stager = self.stager
        if stager.tap is not None and context and int(context.getLocalProperty(_BATCH) or 0) > 0:
            # Spark does not pass the rows of a micro-batch again when its task has failed.
            stager = replace(stager, tap=stager.tap.outlasting())
        return _StagedRows(staged_to_arrow(stager, shaped, task).to_pylist(), self)

    def commit(self, messages: Sequence[WriterCommitMessage | None], commit_id: CommitId | None) -> Snapshot | None:
        """Commit and publish what tasks staged; remove the files that no commit lists (``abort`` does not).

        A micro-batch after the first waits while brokers do not answer: it has an id by which it is committed once.

        Returns:
            The snapshot; None if there are no rows.

        Raises:
            PublishPendingError: committed, but not yet in the log.
            OutcomeUnknownError: the commit may still land, so the files stay.
            TableStoreError: nothing was committed.
        """
        rows = [row for message in messages if isinstance(message, _StagedRows) for row in message.rows]
        staged = accept_staged(self.stager, rows)
        try:
            table = _opened(self.options, self.stager.spec.table_id)
        except (NotFoundError, TableReplacedError):
            self.stager.remove(staged)
            raise
        writer = Writer(table, _outlast(commit_id, table.log.publisher), lambda table: table.log.publisher())
        try:
            landed = None if commit_id is None else self._find_landed(writer, staged, commit_id)
            if landed is None:
                landed = self._commit_new(writer, staged, commit_id)
            elif landed.operation != EXPIRED:
                listed = {file.path for file in table.files.log.commit_at(landed.id).added}
                self.stager.remove(each for each in staged if each.file.path not in listed)
            after_write(f"table {table.path}", "expiring", lambda: expire_if_due(table))
            return landed
        finally:
            writer.discard()

    def _find_landed(self, writer: Writer, staged: Sequence[StagedFile], commit_id: CommitId) -> Snapshot | None:
        """Return the snapshot of a micro-batch that has landed, and publish it.

        Raises:
            CorruptedError: the table lacks a micro-batch that had landed; the staged files are removed.
            InvalidInputError: another micro-batch of this number has landed; the staged files are removed.
        """
        try:
            return _outlast(commit_id, partial(writer.publish_landed, commit_id))
        except (CorruptedError, InvalidInputError):
            self.stager.remove(staged)
            raise

    def _commit_new(self, writer: Writer, staged: Sequence[StagedFile], commit_id: CommitId | None) -> Snapshot | None:
        """Commit and publish a write that has not landed."""
        with ExitStack() as undo:
            undo.callback(self.stager.remove, staged)
            _outlast(commit_id, writer.recover_once)
            if writer.table.looks_up:
                # Spark passes rows to a data source in any order, so only now are the rows of a bucket all known. They
                # are staged again by bucket, and the commit lists those files.
                return _outlast(commit_id, partial(writer.write, partial(self._stage_again, staged), commit_id))
            # From here on a commit may list the files.
            undo.pop_all()
        commit = partial(writer.write_staged, staged, commit_id, spec=self.stager.spec)
        return _outlast(commit_id, commit, partial(self._publish_landed, writer, commit_id))

    def _publish_landed(self, writer: Writer, commit_id: CommitId | None) -> Snapshot:
        """Publish what an attempt to commit has committed; it has removed the files if it has not.

        Raises:
            ConflictError: it has not.
        """
        landed = None if commit_id is None else writer.publish_landed(commit_id)
        if landed is None:
            msg = (
                f"table {self.options.path!r}: the file system did not answer, and nothing was committed. Start the "
                "query again; it repeats the micro-batch."
            )
            raise ConflictError(msg)
        return landed

    def _stage_again(self, staged: Sequence[StagedFile], stager: Stager) -> list[StagedFile]:
        if stager.spec.since != self.stager.spec.since:
            msg = (
                f"table {self.options.path!r}: its columns were changed, by snapshot {stager.spec.since}, while rows "
                "were staged; nothing was written. Write again."
            )
            raise ConflictError(msg)
        return stager.stage(stager.read(staged), 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks staged if the job failed before its commit.

        Spark calls this in another process than ``commit``: when a task failed, when ``commit`` failed, and when
        ``commit`` was interrupted and may still be running. ``commit`` was certainly not called only if a task's
        message is missing. Otherwise ``commit`` removes the files that no snapshot lists, and ``remove_orphans``
        removes what is left.
        """
        if None in messages:
            rows = [row for message in messages if isinstance(message, _StagedRows) for row in message.rows]
            self.stager.remove_paths([str(row["path"]) for row in rows if row["path"]])


@shows_messages
class TableWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """The writer of ``df.write.format("tablestore")``, ``INSERT INTO`` and ``df.writeStream.format("tablestore")``."""

    def __init__(self, sink: _Sink | None, checkpoint: str = "") -> None:
        """Write into ``sink``, or commit what others have staged; a stream is identified by its checkpoint."""
        self._sink = sink
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        assert self._sink is not None
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Commit and publish the rows of all tasks as one snapshot, unless this micro-batch has already landed."""
        sink = self._staged_with(messages)
        assert sink is not None, "Spark runs at least one task"
        if batchId is None:
            sink.commit(messages, None)
            return
        table_id = sink.stager.spec.table_id
        if sink.commit(messages, commit_id_of(self._checkpoint, batchId, table_id)) is not None:
            note_landed(self._checkpoint, batchId, table_id)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Remove the staged files."""
        sink = self._staged_with(messages)
        if sink is not None:
            sink.abort(messages)

    def _staged_with(self, messages: Iterable[WriterCommitMessage | None]) -> _Sink | None:
        """Return the sink of the tasks: the table may have other columns by now, or be another one."""
        return next((each.sink for each in messages if isinstance(each, _StagedRows)), self._sink)


def _outlast(commit_id: CommitId | None, ask: Callable[[], T], again: Callable[[], T] | None = None) -> T:
    """Ask as ``Outages.outlast`` does; a batch write and the first micro-batch of a query do not wait."""
    return Outages(was_answered=commit_id is not None and commit_id.batch > 0).outlast(ask, again)
