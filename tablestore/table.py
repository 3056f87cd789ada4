"""``TableStore``: the handle of one table. Each verb delegates to the module of its name."""

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
    """One table: its snapshots in Delta files, its changes in a Kafka log.

    Get one with ``TableStore.create(spark, path, schema, ...)`` or ``TableStore.open(spark, path)``. Several
    threads may use one handle: what changes the table runs one at a time, in the order in which threads get the
    handle's lock (which costs less than a microsecond where nobody else holds it), and reads run beside it. To write at
    the same time, give each thread a handle of its own: any number of handles, in any processes, may work on a table.
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
        """Write and publish by the options as they are now. For verbs, which hold the lock."""
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
        """Make an empty table and, with a log system, its topic.

        Args:
            spark: the session; see ``tablestore.session``.
            path: folder of the table; a local path or the URL of an object store.
            schema: the columns, as a Spark schema or DDL text such as ``"id bigint, name string"``.
            primary_key: with a key, writes upsert; without one, they append.
            partition_by: columns whose values make folders of the root Delta table.
            log_system: ``"kafka"`` publishes every snapshot to a Kafka topic; None for no log.
            options: see ``docs/reference/options.md``; with a log, ``kafka.bootstrap.servers`` and ``kafka.topic`` are
                required.
            client_options: as ``options`` of ``open``: Kafka client options that are not stored.
            allow_references: as in ``open``.

        Raises:
            InvalidInputError: a column, key or option is wrong, or an existing topic does not fit; nothing was made.
            AlreadyExistsError: there is a table, or something else, at the path.
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
        """Open a table that exists.

        Args:
            spark: the session.
            path: folder of the table.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: which ``env:`` and ``file:`` references the table's stored options may hold, such as
                ``["env:ORDERS_*", "file:/etc/kafka/*"]``; by default what ``TABLESTORE_ALLOWED_REFERENCES`` says. See
                ``docs/reference/options.md``.

        Raises:
            NotFoundError: there is no table at the path.
            InvalidInputError: a stored client option is one that only the program may give, or is not allowed.
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
            frame: the table's columns, in any order. In a table with a key, a column ``_change_type`` (``insert``,
                ``update_postimage``, ``delete``; ``update_preimage`` is left out) says what each row does; of several
                rows of one key the last counts.
            batch: name and increasing number of the write, for callers that may repeat it after a crash: a number that
                has landed under that name, or is below one that has, is not written again, and a warning says so. A
                query that begins anew, its checkpoint deleted, counts from 0 again and needs a new name.
            merge_schema: first add the columns and fields that the table lacks and widen the types that are too narrow,
                as a snapshot of its own; what the frame lacks is NULL.

        Returns:
            The snapshot, committed and published; None when the frame has no rows.

        Raises:
            InvalidInputError: the rows do not fit the table; nothing was written.
            ConflictError: other writers committed first too often; nothing was written.
            PublishPendingError: committed, but the log's broker fails; the next write or ``recover()`` publishes it.
        """
        commit_id = None if batch is None else CommitId.of_batch(batch)
        return self.write_as(self._merged(frame) if merge_schema else frame, commit_id)

    @exclusive
    def write_as(self, frame: DataFrame, commit_id: CommitId | None) -> Snapshot | None:
        """Write rows as one snapshot under a name that says whether they have landed before; see ``write``."""
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
            checkpoint: folder in which Spark keeps the query's progress; names the query.
            output_mode: ``append``, or ``update`` for a table with a key.
            trigger: arguments of Spark's ``trigger``, such as ``{"availableNow": True}``.
            query_name: name of the query in Spark's progress.
            transform: makes of the rows of a micro-batch those that are written.

        Raises:
            InvalidInputError: the columns do not fit, or the output mode does not.
        """
        # The query runs in a thread of its own, so it writes through a handle of its own.
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
            snapshot: its id.
            timestamp: the newest snapshot at or before this time (datetime, ISO-8601 text, or epoch milliseconds).
            tag: its tag.
            columns: the columns wanted; naming them here saves reading the others where changes are merged.
            schema: ``newest``: an old snapshot has the columns that the table has now, NULL where it had none; ``own``:
                those that the table had then.

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
        """Follow the table's changes, from the log where there is one.

        With ``log.consistency=eventual`` rows are seen before they are committed, ``_commit_version`` is NULL but for
        the rows that ``full`` begins with, and the query has to run in output mode ``update``: repeats fold into a
        true changelog in Spark's state store. Other scan modes than ``full`` begin with an empty state.

        Args:
            scan_mode: ``full`` (the newest snapshot's rows as inserts, then every change after it), ``latest``,
                ``earliest``, ``from-snapshot`` (that snapshot's changes first), ``from-timestamp`` or ``from-tag``
                (the changes after the tag's snapshot).
            snapshot: for ``from-snapshot``.
            timestamp: for ``from-timestamp``.
            tag: for ``from-tag``.
            until: the last snapshot of the stream (its id, which may be yet to come, a tag or a time): the query gives
                nothing after it, and one with ``availableNow`` ends there.
            consumer: a name under which the stream's progress stands in the table, so that what it has not read does
                not expire. A new query of a known consumer begins after what that has read, whatever ``scan_mode``.
            max_rows: rows of a micro-batch; a larger snapshot passes whole.
            max_snapshots: snapshots of a micro-batch; not with ``log.consistency=eventual``.
            normalize: False leaves the state out, where repeats, updates without preimages and deletes without rows do
                no harm: for a consumer that upserts by key. Only with ``log.consistency=eventual``.
            state: a folder of ``save_state``: the query goes on where that stream was, with the keys that it had, for
                which it gives nothing. In place of a scan mode; needed until the first micro-batch is done.

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
        """Follow the normalized stream of an eventual log with a state in proportion to the keys that live.

        A query over ``read_stream()`` keeps every key that it has seen. This runs one and, when its state has twice the
        keys that it began with (and over 200,000), or is as old as ``ttl``, saves the keys that live and goes on
        with another: together they give one changelog, as one query would. The stream pauses meanwhile, for about
        ten seconds per million keys. It returns when the query ends: by itself, as with ``availableNow``, or stopped
        by another thread. Who writes to the table meanwhile does it with another handle.

        Args:
            write: gets the changes (columns as of ``read_stream``) and a number, and gives what is to be started, such
                as ``changes.writeStream.foreachBatch(...)``; output mode and checkpoint are set here. The number is
                another for each query, whose micro-batches are numbered from 0: who keeps a micro-batch's number to
                know a repeat keeps this one with it.
            checkpoint: a folder for this stream, in which each query has its own.
            ttl: how long a key is surely kept that does not change, as in ``'30 d'``: at most twice that, while the
                query runs. A key that was forgotten begins with an insert when it comes again, and its delete gives
                nothing.
            scan_mode: where a new stream begins, as in ``read_stream``: ``full``, ``latest`` or ``earliest``.
            max_rows: rows of a micro-batch.

        Raises:
            InvalidInputError: the log is not eventual; ``write`` adds an aggregate, a join of streams or
                ``dropDuplicates`` to the query; ``ttl`` is no duration; the columns were changed since the query began.
            StreamingQueryException: a query failed. What is done stays done; call it again to go on.
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
        """List the table's snapshots, newest first, as far back as they have not expired."""
        return list(islice(self._table.files.snapshots(), limit))

    @exclusive
    def compact(self) -> Snapshot | None:
        """Fold all changes into the root, so that any Delta reader sees the newest snapshot. Publishes nothing.

        In a table without a key it puts the rows of small files together.

        Returns:
            The maintenance snapshot; None when there was nothing to do.
        """
        return compact(self._table, self._run_tasks)

    @exclusive
    def recover(self, *, skip_foreign: Collection[int] = ()) -> list[IndexEntry]:
        """Publish what is committed and not in the log, after a crash of any writer.

        In a table without a key that is also what other Delta writers did to its rows (``DELETE``, ``UPDATE``,
        ``MERGE``, ``RESTORE``, an overwrite): the difference between the rows that they took out and those that they
        brought in becomes the changes of a snapshot of its own.

        Args:
            skip_foreign: versions of other Delta writers that are left out of log and streams for good, such as those
                whose files are gone; a warning says what each did.

        Returns:
            What was published; empty without a log.

        Raises:
            InvalidInputError: a version to skip is none of another writer that waits to be published.
            DataLostError: files that another writer took out are gone; the message says how to skip its version.
        """
        self._renew()
        adopt(self._table, skip_foreign)
        if self._publisher is None:
            return []
        buckets = self._table.options.buckets
        return recover(self._table.files, self._publisher, self._table.index, buckets=buckets)

    def verify(self, progress: Progress | None = None) -> Report:
        """Compare log and table for every snapshot still in the log, record by record. Changes nothing.

        Args:
            progress: called with the offsets read so far and in all.

        Returns:
            Where they differ: partition, offset, key and snapshot of each difference; ``ok`` when nowhere.

        Raises:
            UnavailableError: the broker or the file system does not answer.
        """
        return verify(self._table, progress)

    @exclusive
    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Mend log index, register and the end of the log, without showing a plain consumer a change twice.

        Takes the log over, so that nobody else publishes meanwhile.

        Args:
            progress: as for ``verify``.

        Returns:
            What was done, how log and table compare now, and what to do about what could not be mended.

        Raises:
            UnavailableError: the broker or the file system does not answer; repair again.
            FencedError: another writer has taken the log over; repair again.
        """
        self._renew()
        return repair(self._table, self._publisher, progress)

    @exclusive
    def drop(self, *, keep_topic: bool = False) -> None:
        """Remove the table, and the topic if ``create`` made it.

        The topic is deleted only if Kafka's ids of topic and cluster are those that ``create`` has kept. A broker that
        does not answer ends the drop before anything is changed. A drop that did not end is finished by another, or by
        the next ``create`` at the path.

        Args:
            keep_topic: leave the topic as it is; then the broker need not answer.

        Raises:
            NotFoundError: there is no table at the path any more.
            TableReplacedError: the table was dropped and created again; that one stays.
            UnavailableError: the broker or the file system does not answer; drop again.
        """
        if self._publisher is not None:
            self._publisher.discard()
        opened = self._opened
        try:
            table = opened.refreshed()
        except (NotFoundError, CorruptedError):
            # The drop before did not end.
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
        """Remove the table at a path, or what is left of one whose ``drop`` or ``create`` did not end; see ``drop``.

        Args:
            path: folder of the table.
            options: Kafka client options (``kafka.*``) that are not stored with the table, such as a password.
            allow_references: as in ``open``.
            keep_topic: leave the topic as it is.

        Raises:
            NotFoundError: there is no table, and nothing is left of one.
            UnavailableError: the broker or the file system does not answer; drop again.
        """
        create_drop.drop_at(os.fspath(path), options, Allowed.of(allow_references), keep_topic=keep_topic)

    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Do after a write what is due: fold changes into the root, drop what has expired, delete old partitions."""
        if made is not None:
            after_write(f"table {self.path}", "maintenance", self._maintain)
        return made

    def _maintain(self) -> None:
        """Do the maintenance that is due; see ``_done``."""
        self._renew()
        meter = self._writer.meter
        meter.made("compact", lambda: compact_if_due(self._table, self._run_tasks))
        with meter.measured("expire") as tell:
            report = expire_if_due(self._table)
            if report is not None:
                tell(report.oldest, report.snapshots)
        self._expire_partitions_if_due()

    def __repr__(self) -> str:
        """Show path, key and log."""
        spec, of_log = self._opened.spec, self._opened.log
        key = f", primary_key={list(spec.primary_key)}" if spec.primary_key else ""
        log = f", log_system='kafka', topic={of_log.topic!r}" if of_log else ""
        return f"TableStore({self.path!r}{key}{log})"
