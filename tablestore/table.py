"""``TableStore``, the handle of one table. Its methods delegate to the modules that implement them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from log_system.index import IndexEntry
from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import wrap
from snapshot.errors import CorruptedError, InvalidInputError, NotFoundError
from snapshot.records import Snapshot
from snapshot.store.commit import CommitId
from tablestore.after_write import after_write
from tablestore.audit.log_inspection import Progress
from tablestore.audit.repair import repair
from tablestore.audit.report import RepairReport, Report
from tablestore.audit.verify import verify
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.api import Altering
from tablestore.dml.api import RowVerbs
from tablestore.dml.run import Verbs
from tablestore.exclusive import exclusive
from tablestore.maintenance.api import Life
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.maintenance.expire_snapshots import expire_if_due
from tablestore.options.read_options import NEWEST, ScanMode
from tablestore.options.table_options import TableOptions
from tablestore.read import batch as read
from tablestore.read.time_travel import Point
from tablestore.spark.tasks import run_tasks
from tablestore.streaming import stream_read
from tablestore.streaming.follow import Write, follow
from tablestore.streaming.saved_state import ttl_ms
from tablestore.streaming.stream_write import start_stream
from tablestore.write.foreign_commits import adopt
from tablestore.write.open_publisher import open_publisher
from tablestore.write.recovery import recover
from tablestore.write.writer import Writer


class TableStore(RowVerbs, Altering, Life):
    """A handle of one table: its snapshots in Delta files, its changes in a Kafka log.

    Get one with ``TableStore.create(spark, path, schema, ...)`` or ``TableStore.open(spark, path)``. Several threads
    may share a handle: methods that change the table take the handle's lock and run one at a time, and reads run
    concurrently. To write concurrently, give each thread its own handle: any number of handles, in any processes, may
    work on a table.
    """

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        """Use ``create`` or ``open``."""
        super().__init__(spark, table)
        self._written_by = table.options
        self._reopen = partial(open_publisher, spark=spark)
        self._publisher = open_publisher(table, spark)
        self._writer = Writer(table, self._publisher, self._reopen)
        self._run_tasks = partial(run_tasks, spark)
        self._verbs = Verbs(spark, self._writer)

    @property
    def _table(self) -> TableContext:
        """The table as it is defined now: another handle may have changed its columns or options."""
        now = self._opened = self._opened.refreshed()
        return now

    def _renew(self) -> None:
        """Rebuild writer and publisher if the table's options have changed. Callers hold the lock."""
        now = self._table
        if now.options == self._written_by:
            return
        if self._publisher is not None:
            self._publisher.discard()
        self._written_by = now.options
        self._publisher = open_publisher(now, self._spark)
        hook = self._writer.meter.hook
        self._writer.discard()
        self._writer = Writer(now, self._publisher, self._reopen)
        self._writer.meter.hook = hook
        self._verbs = Verbs(self._spark, self._writer)

    @classmethod
    def create(  # noqa: PLR0913 - this is where all that makes a table has its name
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str],
        schema: StructType | str,
        *,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        log_system: str | None = None,
        options: Mapping[str, Any] | None = None,
        client_options: Mapping[str, object] | None = None,
        allow_references: Iterable[str] | None = None,
    ) -> TableStore:
        """Create an empty table and, with a log system, its topic.

        Args:
            spark: the session; see ``tablestore.session``.
            path: folder of the table; a local path or the URL of an object store.
            schema: the columns, as a Spark schema or DDL text such as ``"id bigint, name string"``.
            primary_key: with a key, writes upsert; without one, they append.
            partition_by: columns by which the root Delta table is partitioned.
            log_system: ``"kafka"`` publishes every snapshot to a Kafka topic; None for no log.
            options: see ``docs/reference/options.md``; with a log, ``kafka.bootstrap.servers`` and ``kafka.topic`` are
                required.
            client_options: Kafka client options that are not stored, as ``options`` of ``open``.
            allow_references: as in ``open``.

        Returns:
            A handle of the new table.

        Raises:
            InvalidInputError: a column, key or option is wrong, or an existing topic does not fit; nothing was created.
            AlreadyExistsError: there is already a table, or something else, at the path.
            UnavailableError: the broker or the file system does not answer.
        """
        table = create_drop.create(
            os.fspath(path),
            create_drop.as_schema(schema),
            primary_key=tuple(primary_key),
            partition_by=tuple(partition_by),
            log_system=log_system,
            options=options or {},
            runtime=client_options,
            allowed=Allowed.of(allow_references),
        )
        return cls(spark, table)

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        options: Mapping[str, object] | None = None,
        allow_references: Iterable[str] | None = None,
    ) -> TableStore:
        """Open an existing table.

        Args:
            spark: the session.
            path: folder of the table.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: which ``env:`` and ``file:`` references the table's stored options may hold, such as
                ``["env:ORDERS_*", "file:/etc/kafka/*"]``; the default is ``TABLESTORE_ALLOWED_REFERENCES`` from the
                environment. See ``docs/reference/options.md``.

        Returns:
            A handle of the table.

        Raises:
            NotFoundError: there is no table at the path.
            InvalidInputError: a stored client option is one that only the program may set, or is not allowed.
        """
        options = wrap(options or {})
        return cls(spark, TableContext.open(os.fspath(path), options, Allowed.of(allow_references)))

    @property
    def path(self) -> str:
        """The table's folder."""
        return self._opened.path

    @property
    def schema(self) -> StructType:
        """The table's columns; those of the primary key are NOT NULL."""
        return copy.deepcopy(self._table.spec.schema)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The key columns; empty for an append table."""
        return self._table.spec.primary_key

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return self._table.spec.partition_by

    @property
    def options(self) -> TableOptions:
        """The table's options."""
        return self._table.options

    @exclusive
    def write(
        self, frame: DataFrame, *, batch: tuple[str, int] | None = None, merge_schema: bool = False
    ) -> Snapshot | None:
        """Write rows as one snapshot: append them or, in a table with a key, upsert them.

        Args:
            frame: the table's columns, in any order. In a table with a key, an optional column ``_change_type``
                (``insert``, ``update_postimage`` or ``delete``; rows of ``update_preimage`` are ignored) says what each
                row does. If a key has several rows, the last one counts.
            batch: name and increasing number of the write, for callers that may repeat a write after a crash. A batch
                that has landed under that name, or has a lower number than one that has, is not written again; a
                warning is logged. A query that starts over with a deleted checkpoint counts from 0 again and needs a
                new name.
            merge_schema: first add the columns and fields that the table lacks and widen types that are too narrow, as
                a snapshot of its own. Columns that the frame lacks are NULL.

        Returns:
            The snapshot, committed and published; None if the frame has no rows.

        Raises:
            InvalidInputError: the rows do not fit the table; nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
            PublishPendingError: committed, but the log's broker fails; the next write or ``recover()`` publishes it.
        """
        commit_id = None if batch is None else CommitId.of_batch(batch)
        return self.write_as(self._merged(frame) if merge_schema else frame, commit_id)

    @exclusive
    def write_as(self, frame: DataFrame, commit_id: CommitId | None) -> Snapshot | None:
        """Write rows as one snapshot under a commit id, by which repeated writes are detected; see ``write``."""
        return self._done(self._writer.write(frame, commit_id))

    def write_stream(
        self,
        frame: DataFrame,
        *,
        checkpoint: str | os.PathLike[str],
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> StreamingQuery:
        """Start a streaming query that writes each micro-batch as one snapshot, exactly once across restarts.

        Args:
            frame: a streaming frame; columns as for ``write``.
            checkpoint: folder in which Spark keeps the query's progress. It identifies the query.
            output_mode: ``append``, or ``update`` for a table with a key.
            trigger: arguments of Spark's ``trigger``, such as ``{"availableNow": True}``.
            query_name: name of the query in Spark's progress.
            transform: applied to the rows of each micro-batch before they are written.

        Returns:
            The running query.

        Raises:
            InvalidInputError: the columns or the output mode do not fit the table.
        """
        # The query runs in its own thread, so it gets its own handle.
        table = self._table
        own = TableStore.open(self._spark, self.path, options=table.runtime, allow_references=table.allowed.entries)
        return start_stream(
            frame,
            own.write_as,
            has_key=bool(own.primary_key),
            checkpoint=os.fspath(checkpoint),
            output_mode=output_mode,
            trigger=trigger,
            query_name=query_name,
            transform=transform,
        )

    def read(
        self,
        *,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
        columns: Sequence[str] | None = None,
        schema: str = NEWEST,
    ) -> DataFrame:
        """Read the rows of a snapshot, by default the newest.

        Args:
            snapshot: id of the snapshot.
            timestamp: read the newest snapshot at or before this time (datetime, ISO-8601 text, or epoch milliseconds).
            tag: tag of the snapshot.
            columns: the columns to read. Where changes are merged, the others are not read from files.
            schema: ``newest`` reads an old snapshot with the table's current columns, NULL where the snapshot has no
                value; ``own`` reads it with the columns that the table had then.

        Returns:
            The rows.

        Raises:
            NotFoundError: there is no such snapshot or tag, or the snapshot has expired.
        """
        return read.read(
            self._spark, self._table, snapshot=snapshot, timestamp=timestamp, tag=tag, columns=columns, schema=schema
        )

    def read_stream(  # noqa: PLR0913 - this is where every option of a stream has its name
        self,
        *,
        scan_mode: str = ScanMode.FULL,
        snapshot: int | None = None,
        timestamp: datetime | str | int | None = None,
        tag: str | None = None,
        until: Point | None = None,
        consumer: str | None = None,
        max_rows: int | None = None,
        max_snapshots: int | None = None,
        normalize: bool | None = None,
        state: str | os.PathLike[str] | None = None,
    ) -> DataFrame:
        """Stream the table's changes, from the log if there is one.

        With ``log.consistency=eventual``, the stream has rows before they are committed, ``_commit_version`` is NULL
        except for the initial rows of ``full``, and the query must run in output mode ``update``: Spark's state store
        normalizes duplicate records into a true changelog. Scan modes other than ``full`` start with an empty state.

        Args:
            scan_mode: ``full`` (the newest snapshot's rows as inserts, then every later change), ``latest``,
                ``earliest``, ``from-snapshot`` (that snapshot's changes first), ``from-timestamp`` or ``from-tag``
                (the changes after the tag's snapshot).
            snapshot: for ``from-snapshot``.
            timestamp: for ``from-timestamp``.
            tag: for ``from-tag``.
            until: the last snapshot of the stream: its id (which may be in the future), a tag or a time. The query
                returns nothing after it, and a query with ``availableNow`` ends there.
            consumer: a name under which the table keeps the stream's progress, so that changes it has not read do not
                expire. A new query of a known consumer resumes after what the consumer has read, whatever ``scan_mode``
                says.
            max_rows: maximum rows of a micro-batch. A snapshot is never divided, even if it has more.
            max_snapshots: maximum snapshots of a micro-batch; not with ``log.consistency=eventual``.
            normalize: False runs without state, for consumers that upsert by key: the stream then has duplicates,
                updates without preimages and deletes without rows. Only with ``log.consistency=eventual``.
            state: a folder written by ``save_state``. The query resumes where that stream stopped and with the keys of
                its state, without emitting rows for them. Replaces a scan mode; the folder is needed until the first
                micro-batch is done.

        Returns:
            A streaming frame: the table's columns, ``_change_type``, ``_commit_version``, ``_commit_timestamp``.
        """
        wanted = stream_read.Stream(
            scan_mode=scan_mode,
            snapshot=snapshot,
            timestamp=timestamp,
            tag=tag,
            until=until,
            consumer=consumer,
            max_rows=max_rows,
            max_snapshots=max_snapshots,
            normalize=normalize,
            state=None if state is None else os.fspath(state),
        )
        return stream_read.read_stream(self._spark, self._table, wanted)

    def follow(
        self,
        write: Write,
        checkpoint: str | os.PathLike[str],
        *,
        ttl: str | None = None,
        scan_mode: str = ScanMode.FULL,
        max_rows: int | None = None,
    ) -> None:
        """Run the normalized stream of an eventual log with state that stays proportional to the number of live keys.

        A query over ``read_stream()`` keeps every key that it has seen. This method runs such a query. When the state
        has twice the keys that it started with (and over 200,000), or is as old as ``ttl``, this method saves the live
        keys and continues with a new query. Together the queries produce one changelog, as a single query would. The
        stream pauses for the change of query, for about ten seconds per million keys. The method returns when the query
        ends: by itself, as with ``availableNow``, or stopped by another thread. Use another handle to write to the
        table in the meantime.

        Args:
            write: receives the changes (columns as of ``read_stream``) and a number, and returns the stream to start,
                such as ``changes.writeStream.foreachBatch(...)``; output mode and checkpoint are set here. The number
                identifies the query. Each query numbers its micro-batches from 0, so to detect a repeated micro-batch,
                store this number together with the micro-batch's number.
            checkpoint: a folder for this stream, in which each query has its own.
            ttl: how long an unchanged key is guaranteed to be kept, as in ``'30 d'``; it is kept for at most twice that
                while the query runs. A forgotten key starts with an insert when it returns, and its delete is not
                emitted.
            scan_mode: where a new stream starts, as in ``read_stream``: ``full``, ``latest`` or ``earliest``.
            max_rows: maximum rows of a micro-batch.

        Raises:
            InvalidInputError: the log is not eventual; ``write`` adds an aggregate, a join of streams or
                ``dropDuplicates`` to the query; ``ttl`` is not a duration; the columns have changed since the query
                started.
            StreamingQueryException: a query failed. Finished work is kept; call the method again to continue.
        """
        if not self._table.is_eventual:
            msg = f"follow: it goes with log.consistency='eventual'; table {self.path!r} is not. Use read_stream()."
            raise InvalidInputError(msg)

        def stream(state: str | None) -> DataFrame:
            mode = scan_mode if state is None else ScanMode.FULL
            return self.read_stream(scan_mode=mode, max_rows=max_rows, state=state)

        save = partial(self.save_state, ttl=ttl)
        follow(stream, save, write, os.fspath(checkpoint), None if ttl is None else ttl_ms(ttl))

    def snapshots(self, limit: int | None = None) -> list[Snapshot]:
        """Return the table's unexpired snapshots, newest first, at most ``limit``."""
        return list(islice(self._table.files.snapshots(), limit))

    @exclusive
    def compact(self) -> Snapshot | None:
        """Compact all changes into the root, so that any Delta reader sees the newest snapshot; publish nothing.

        In a table without a key, combine small files into larger ones.

        Returns:
            The maintenance snapshot; None if there was nothing to do.
        """
        return compact(self._table, self._run_tasks)

    @exclusive
    def recover(self, *, skip_foreign: Collection[int] = ()) -> list[IndexEntry]:
        """Publish committed snapshots that the log lacks, after a crash of any writer.

        In a table without a key, this includes what other Delta writers did to its rows (``DELETE``, ``UPDATE``,
        ``MERGE``, ``RESTORE``, an overwrite): the difference between the rows of the files that they removed and of
        those that they added becomes the changes of a separate snapshot.

        Args:
            skip_foreign: versions of other Delta writers to leave out of log and streams permanently, such as those
                whose files are gone; a warning says what each did.

        Returns:
            What was published; empty without a log.

        Raises:
            InvalidInputError: a version to skip is not an unpublished version of another writer.
            DataLostError: files that another writer removed are gone; the message says how to skip its version.
        """
        self._renew()
        adopt(self._table, skip_foreign)
        if self._publisher is None:
            return []
        buckets = self._table.options.buckets
        return recover(self._table.files, self._publisher, self._table.index, buckets=buckets)

    def verify(self, progress: Progress | None = None) -> Report:
        """Compare log and table, record by record, for every snapshot still in the log; change nothing.

        Args:
            progress: called with the number of offsets read so far and the total.

        Returns:
            Partition, offset, key and snapshot of each difference; ``ok`` if there is none.

        Raises:
            UnavailableError: the broker or the file system does not answer.
        """
        return verify(self._table, progress)

    @exclusive
    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Repair the log index, the register and the end of the log; a plain consumer sees no change twice.

        Takes the log over first, so that no other writer publishes during the repair.

        Args:
            progress: as for ``verify``.

        Returns:
            What was done, the remaining differences between log and table, and what to do about them.

        Raises:
            UnavailableError: the broker or the file system does not answer; repair again.
            FencedError: another writer took the log over; repair again.
        """
        self._renew()
        return repair(self._table, self._publisher, progress)

    @exclusive
    def drop(self, *, keep_topic: bool = False) -> None:
        """Remove the table, and the topic if ``create`` made it.

        The topic is deleted only if its Kafka topic id and cluster id are those that ``create`` stored. If the broker
        does not answer, the drop fails before anything is changed. An unfinished drop is completed by another drop, or
        by the next ``create`` at the path.

        Args:
            keep_topic: leave the topic as it is; then the broker need not answer.

        Raises:
            NotFoundError: there is no longer a table at the path.
            TableReplacedError: the table was dropped and created again; the new table stays.
            UnavailableError: the broker or the file system does not answer; drop again.
        """
        if self._publisher is not None:
            self._publisher.discard()
        opened = self._opened
        try:
            table = opened.refreshed()
        except (NotFoundError, CorruptedError):
            # An earlier drop did not finish.
            create_drop.drop_at(opened.path, opened.runtime, opened.allowed, keep_topic=keep_topic)
        else:
            create_drop.drop(table, keep_topic=keep_topic)

    @staticmethod
    def drop_at(
        path: str | os.PathLike[str],
        *,
        options: Mapping[str, str] | None = None,
        allow_references: Iterable[str] | None = None,
        keep_topic: bool = False,
    ) -> None:
        """Remove the table at a path, or what an unfinished ``drop`` or ``create`` left there; see ``drop``.

        Args:
            path: folder of the table.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: as in ``open``.
            keep_topic: leave the topic as it is.

        Raises:
            NotFoundError: there is neither a table nor the remains of one.
            UnavailableError: the broker or the file system does not answer; drop again.
        """
        create_drop.drop_at(os.fspath(path), options, Allowed.of(allow_references), keep_topic=keep_topic)

    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Run the maintenance that is due after a write, and return the write's snapshot; see ``_maintain``."""
        if made is not None:
            after_write(f"table {self.path}", "maintenance", self._maintain)
        return made

    def _maintain(self) -> None:
        """Compact changes into the root, expire snapshots and expire partitions, as far as each is due."""
        self._renew()
        meter = self._writer.meter
        meter.made("compact", lambda: compact_if_due(self._table, self._run_tasks))
        with meter.measured("expire") as tell:
            report = expire_if_due(self._table)
            if report is not None:
                tell(report.oldest, report.snapshots)
        self._expire_partitions_if_due()

    def __repr__(self) -> str:
        """Return path, key and log as text."""
        spec, of_log = self._opened.spec, self._opened.log
        key = f", primary_key={list(spec.primary_key)}" if spec.primary_key else ""
        log = f", log_system='kafka', topic={of_log.topic!r}" if of_log else ""
        return f"TableStore({self.path!r}{key}{log})"
