"""The maintenance methods of ``TableStore``: rollback, tags, expiry, consumers, orphan removal and metadata tables."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from snapshot.records import Snapshot
from snapshot.store.tags import Tag
from tablestore.after_write import after_write
from tablestore.audit.log_inspection import Progress
from tablestore.context import TableContext
from tablestore.exclusive import exclusive
from tablestore.inspect.frames import Inspector
from tablestore.maintenance import change_tags, rollback
from tablestore.maintenance import remove_orphans as orphans
from tablestore.maintenance.expire_partitions import PartitionsReport, expire_partitions, has_old_partitions
from tablestore.maintenance.expire_snapshots import Age, ExpireReport, expire, rules_of
from tablestore.read import batch
from tablestore.read.time_travel import Point
from tablestore.streaming.consumers import Consumer, Consumers, reset_consumer
from tablestore.streaming.saved_state import SavedState, save_state
from tablestore.write.metrics import Hook
from tablestore.write.writer import Writer


class Life(ABC):
    """Base class of ``TableStore`` with the methods that work on a table's history."""

    _writer: Writer
    _run_tasks: Callable[[Sequence[Any], Callable[[Any], str]], list[str]]

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        """Create a handle on ``table``."""
        self._spark = spark
        self._opened = table
        self._partitions_looked_at: float | None = None
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def _table(self) -> TableContext:
        """The table with its current definition."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The table's folder."""

    @abstractmethod
    def delete(self, where: Column) -> Snapshot | None:
        """Delete the rows that match a condition."""

    @abstractmethod
    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Run what is due after a write, such as compaction, and return the write's snapshot."""

    @exclusive
    def rollback(self, to: Point) -> Snapshot | None:
        """Restore an earlier state of the table as one new snapshot, and publish the changes this makes.

        In a table with a primary key, the changes are the rows that differ. In a table without one, files are compared:
        a concurrent append stays, and rows that a compaction has rewritten since are deleted and inserted again.

        Args:
            to: a snapshot's id, a tag or a time.

        Returns:
            The new snapshot; None if nothing differs.

        Raises:
            NotFoundError: there is no such snapshot or tag, or the snapshot has expired.
            InvalidInputError: the log's format cannot represent a delete.
            ConflictError: other writers committed first too often; nothing was written.
        """
        return self._done(rollback.rollback(self._table, self._writer, self._run_tasks, to))

    def save_state(
        self, checkpoint: str | os.PathLike[str], into: str | os.PathLike[str], *, ttl: str | None = None
    ) -> SavedState:
        """Save the state of a query that normalizes an eventual log, without deleted keys.

        The query must be stopped, and its last micro-batch must be complete. A new query with a new checkpoint
        continues from the saved state: ``read_stream(state=into)``. Spark never removes a key from this state, so
        saving it is the way to shrink it and to change its number of partitions (``spark.sql.shuffle.partitions`` of
        the new query).

        Args:
            checkpoint: the query's checkpoint; it is not changed.
            into: the folder to create.
            ttl: how long to keep a key that does not change, such as ``'30 d'``; None keeps keys forever. The next
                upsert of a dropped key is emitted as an insert, and a delete of it is not emitted.

        Returns:
            The numbers of keys saved and left out.

        Raises:
            InvalidInputError: the checkpoint belongs to another query, or its last micro-batch is incomplete; ``into``
                already contains a saved state; ``ttl`` is not a duration.
            UnavailableError: a file system operation failed.
        """
        return save_state(self._spark, self._table, os.fspath(checkpoint), os.fspath(into), ttl)

    @exclusive
    def expire_partitions(self, *, dry_run: bool = False, progress: Progress | None = None) -> PartitionsReport:
        """Delete partitions older than ``partition.expiration-time`` in one snapshot, and publish it.

        Args:
            dry_run: only report what would be deleted.
            progress: called with the number of partitions deleted so far and the total.

        Raises:
            InvalidInputError: the table has no partitions, the option is not set, or the log's format cannot represent
                a delete.
            ConflictError: other writers committed first too often; nothing was deleted.
        """
        names = self._table.spec.partition_by

        def rows() -> DataFrame:
            return batch.read(self._spark, self._table, snapshot=None, timestamp=None, columns=names)

        return expire_partitions(self._table, rows, self.delete, dry_run=dry_run, progress=progress)

    def _expire_partitions_if_due(self) -> None:
        """Delete expired partitions if the table's options say so; cheap if there are none.

        This runs after a completed write, so a failure is only logged as a warning; a later write tries again.
        """

        def work() -> None:
            options, now = self._table.options.partition, time.monotonic()
            looked = self._partitions_looked_at
            if not options.auto or (looked is not None and now - looked < options.check_interval_ms / 1000):
                return
            # Set before the delete, which is itself a write and would call this again.
            self._partitions_looked_at = now
            if has_old_partitions(self._table):
                self.expire_partitions()

        after_write(f"table {self.path}", "expiring partitions", work)

    def changes(self, from_: Point, to: Point | None = None) -> DataFrame:
        """Return the changes between two snapshots as a batch frame, read from the table's files.

        Args:
            from_: the snapshot before the first change (its id, a tag or a time).
            to: the last snapshot to include; by default the newest.

        Returns:
            The table's columns plus ``_change_type``, ``_commit_version`` and ``_commit_timestamp``, as in
            ``read_stream``.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            DataLostError: some of the changes have expired.
            InvalidInputError: ``to`` is before ``from_``.
        """
        return batch.read_changes(self._spark, self._table, from_, to)

    def tag(self, name: str, snapshot: Point | None = None) -> Tag:
        """Tag a snapshot, so that it can still be read after it expires: ``batch(tag=name)``.

        Args:
            name: a letter or ``_``, then letters, digits, ``.``, ``_`` or ``-``.
            snapshot: the snapshot's id, another tag, or a time; by default the newest.

        Raises:
            InvalidInputError: the name is invalid.
            AlreadyExistsError: a tag with this name exists.
            NotFoundError: there is no such snapshot, or it has expired.
        """
        return change_tags.make_tag(self._table, name, snapshot)

    def tags(self) -> list[Tag]:
        """Return the tags, ordered by snapshot."""
        return self._table.files.tags.all()

    def delete_tag(self, name: str) -> None:
        """Delete a tag and, if its snapshot has expired, the files that only the tag kept.

        Raises:
            NotFoundError: there is no such tag.
        """
        change_tags.delete_tag(self._table, name)

    def expire(
        self,
        *,
        older_than: Age | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ExpireReport:
        """Expire old snapshots: they can no longer be read, and files that only they need are removed.

        Always kept are the newest snapshot, snapshots that a named consumer has not read, snapshots that are not in the
        log yet, and the files of tagged snapshots.

        Args:
            older_than: expire snapshots that were replaced this long ago (a timedelta or text such as ``"7 d"``) or
                before this time. If only ``keep_last`` is given, the default is 10 minutes, which protects running
                readers. If neither is given, the table's options apply (``snapshot.retention``,
                ``snapshot.retain-min``, ``snapshot.retain-max``).
            keep_last: how many of the newest snapshots to keep.
            dry_run: only report what would be done.
            progress: called with the number of files removed so far and the total.

        Raises:
            InvalidInputError: an argument is invalid.
            ConflictError: other writers committed first too often; nothing has expired.
            UnavailableError: a file system operation failed; call ``expire`` again.
        """
        rules = rules_of(self._table, older_than, keep_last)
        return expire(self._table, rules, dry_run=dry_run, progress=progress)

    def consumers(self) -> list[Consumer]:
        """Return the named consumers, the one furthest behind first."""
        return Consumers(self._table.files.storage).all()

    def reset_consumer(self, name: str, snapshot: Point | None = None) -> None:
        """Delete a named consumer, or mark everything up to a snapshot as read.

        Stop the consumer's query first, since a running query records its own position again. A query that has a
        checkpoint resumes from the checkpoint; a query with a new checkpoint starts at the consumer's position.

        Args:
            name: the consumer's name.
            snapshot: the snapshot's id, a tag or a time; None deletes the consumer.

        Raises:
            NotFoundError: there is no such consumer, or no such snapshot.
        """
        reset_consumer(self._table, name, snapshot)

    def remove_orphans(
        self, *, older_than: Age = orphans.AGE, dry_run: bool = False, progress: Progress | None = None
    ) -> orphans.OrphanReport:
        """Remove orphan files: files left by failed writers and expiries that no snapshot or tag refers to.

        Args:
            older_than: remove only files written this long ago, at least an hour. A younger file may belong to a writer
                that has not committed yet, so choose more than the duration of the longest write.
            dry_run: only report what would be removed.
            progress: called with the number of files removed so far and the total.

        Raises:
            InvalidInputError: the age is less than an hour.
        """
        return orphans.remove_orphans(self._table, older_than, dry_run=dry_run, progress=progress)

    @property
    def metrics(self) -> Hook | None:
        """The function called after each write, publish, compaction and expiry of this handle, or None.

        It receives a ``tablestore.write.metrics.Measured``. An exception that it raises is logged and otherwise
        ignored. For reads and streams, use Spark's observable metrics and query progress.
        """
        return self._writer.meter.hook

    @metrics.setter
    def metrics(self, hook: Hook | None) -> None:
        self._writer.meter.hook = hook

    @property
    def inspect(self) -> Inspector:
        """The table's metadata tables as Spark frames: ``inspect.snapshots()``, ``files()``, ``consumers()`` etc."""
        return Inspector(self._spark, self._table)
