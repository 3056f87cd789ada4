"""The verbs of a table's life: time travel, tags, expiry, consumers, and looking inside."""

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
    """What ``TableStore`` can do with its own past."""

    _writer: Writer
    _run_tasks: Callable[[Sequence[Any], Callable[[Any], str]], list[str]]

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        """Work on ``table``."""
        self._spark = spark
        self._opened = table
        self._partitions_looked_at: float | None = None
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def _table(self) -> TableContext:
        """The table as it is defined now."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The table's folder."""

    @abstractmethod
    def delete(self, where: Column) -> Snapshot | None:
        """Delete the rows that a condition selects."""

    @abstractmethod
    def _done(self, made: Snapshot | None) -> Snapshot | None:
        """Do what is due after a write."""

    @exclusive
    def rollback(self, to: Point) -> Snapshot | None:
        """Make the table what it was, by one new snapshot; what that changes is published.

        In a table with a key these are the rows that differ. Without a key files are compared: an append that commits
        at the same time stays, and rows that a compaction has copied since go and come back.

        Args:
            to: a snapshot's id, a tag or a time.

        Returns:
            The snapshot; None where nothing differs.

        Raises:
            NotFoundError: there is no such snapshot or tag, or the snapshot has expired.
            InvalidInputError: the log's format cannot say a delete.
            ConflictError: others wrote at the same time too often; nothing was written.
        """
        return self._done(rollback.rollback(self._table, self._writer, self._run_tasks, to))

    def save_state(
        self, checkpoint: str | os.PathLike[str], into: str | os.PathLike[str], *, ttl: str | None = None
    ) -> SavedState:
        """Save the state of a query over the normalized stream of an eventual log, without the keys that are gone.

        The query must have stopped, with no micro-batch half done. A new query with a new checkpoint goes on with it:
        ``read_stream(state=into)``. Spark's state forgets no key, so this is how a state becomes smaller, and how the
        number of its parts changes (``spark.sql.shuffle.partitions`` of the new query).

        Args:
            checkpoint: the query's checkpoint; it is left as it is.
            into: a folder to make.
            ttl: how long a key is kept that does not change, as in ``'30 d'``; without it, for ever. A key that was
                forgotten begins with an insert when it comes again, and its delete gives nothing.

        Returns:
            How many keys were saved, and left out.

        Raises:
            InvalidInputError: the checkpoint is of another query, or its last micro-batch is not done; ``into`` holds a
                saved state already; ``ttl`` is no duration.
            UnavailableError: the file system refused.
        """
        return save_state(self._spark, self._table, os.fspath(checkpoint), os.fspath(into), ttl)

    @exclusive
    def expire_partitions(self, *, dry_run: bool = False, progress: Progress | None = None) -> PartitionsReport:
        """Delete partitions that are older than ``partition.expiration-time``, by one snapshot, which is published.

        Args:
            dry_run: only say what would be deleted.
            progress: called with the partitions deleted so far and in all.

        Raises:
            InvalidInputError: the table has no partitions or no such option, or the log's format cannot say a delete.
            ConflictError: other writers committed first too often; nothing was deleted.
        """
        names = self._table.spec.partition_by

        def rows() -> DataFrame:
            return batch.read(self._spark, self._table, snapshot=None, timestamp=None, columns=names)

        return expire_partitions(self._table, rows, self.delete, dry_run=dry_run, progress=progress)

    def _expire_partitions_if_due(self) -> None:
        """Delete old partitions by the table's options; cheap while there are none.

        It follows a write that is done, so a failure is a warning; a later write tries again.
        """

        def work() -> None:
            options, now = self._table.options.partition, time.monotonic()
            looked = self._partitions_looked_at
            if not options.auto or (looked is not None and now - looked < options.check_interval_ms / 1000):
                return
            # The delete is a write too.
            self._partitions_looked_at = now
            if has_old_partitions(self._table):
                self.expire_partitions()

        after_write(f"table {self.path}", "expiring partitions", work)

    def changes(self, from_: Point, to: Point | None = None) -> DataFrame:
        """Read what changed between two snapshots, in a batch, from the table's files.

        Args:
            from_: the changes after this snapshot (its id, a tag or a time).
            to: up to this one; by default the newest.

        Returns:
            The table's columns, ``_change_type``, ``_commit_version``, ``_commit_timestamp``, as ``read_stream`` gives.

        Raises:
            NotFoundError: there is no such snapshot or tag.
            DataLostError: changes in between have expired.
            InvalidInputError: the second comes before the first.
        """
        return batch.read_changes(self._spark, self._table, from_, to)

    def tag(self, name: str, snapshot: Point | None = None) -> Tag:
        """Name a snapshot, which can then be read after it has expired: ``batch(tag=name)``.

        Args:
            name: a letter or ``_``, then letters, digits, ``.``, ``_`` or ``-``.
            snapshot: its id, another tag, or a time; by default the newest.

        Raises:
            InvalidInputError: the name is not one.
            AlreadyExistsError: there is a tag of this name.
            NotFoundError: there is no such snapshot, or it has expired.
        """
        return change_tags.make_tag(self._table, name, snapshot)

    def tags(self) -> list[Tag]:
        """List the tags, by their snapshots."""
        return self._table.files.tags.all()

    def delete_tag(self, name: str) -> None:
        """Remove a tag and, where its snapshot has expired, the files that only it kept.

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
        """Expire old snapshots: they can no longer be read, and what only they needed is removed.

        The newest snapshot stays, and what a named consumer has not read, what the log lacks, and what a tag names.

        Args:
            older_than: snapshots that were replaced so long ago (a timedelta or text such as ``"7 d"``) or before a
                time. With ``keep_last`` alone 10 minutes, for readers under way; with neither, the table's options
                decide (``snapshot.retention``, ``snapshot.retain-min``, ``snapshot.retain-max``).
            keep_last: so many of the newest snapshots stay.
            dry_run: only say what would be done.
            progress: called with the files removed so far and in all.

        Raises:
            InvalidInputError: an argument is wrong.
            ConflictError: other writers committed first too often; nothing has expired.
            UnavailableError: the file system refused; expire again.
        """
        rules = rules_of(self._table, older_than, keep_last)
        return expire(self._table, rules, dry_run=dry_run, progress=progress)

    def consumers(self) -> list[Consumer]:
        """List the named consumers, those that have read least first."""
        return Consumers(self._table.files.storage).all()

    def reset_consumer(self, name: str, snapshot: Point | None = None) -> None:
        """Forget a named consumer, or set it to have read up to a snapshot.

        A running query says again where it is; stop it first. A query goes on from its checkpoint; one with a new
        checkpoint begins where the consumer is set.

        Args:
            name: of the consumer.
            snapshot: its id, a tag or a time; None forgets the consumer.

        Raises:
            NotFoundError: there is no such consumer, or no such snapshot.
        """
        reset_consumer(self._table, name, snapshot)

    def remove_orphans(
        self, *, older_than: Age = orphans.AGE, dry_run: bool = False, progress: Progress | None = None
    ) -> orphans.OrphanReport:
        """Remove files that nothing points at, left by writers and expiries that died.

        Args:
            older_than: only files written so long ago; an hour at least. A younger one may be that of a writer that is
                about to commit: choose more than the longest write takes.
            dry_run: only say what would be removed.
            progress: called with the files removed so far and in all.

        Raises:
            InvalidInputError: the age is less than an hour.
        """
        return orphans.remove_orphans(self._table, older_than, dry_run=dry_run, progress=progress)

    @property
    def metrics(self) -> Hook | None:
        """A function that is told of each write, publish, compaction and expiry of this handle; None for none.

        It gets a ``tablestore.write.metrics.Measured``. What it raises is logged and stops nothing. Reads and streams
        are measured by Spark: by its observable metrics and a query's progress.
        """
        return self._writer.meter.hook

    @metrics.setter
    def metrics(self, hook: Hook | None) -> None:
        self._writer.meter.hook = hook

    @property
    def inspect(self) -> Inspector:
        """What is inside the table, as frames: ``inspect.snapshots()``, ``files()``, ``consumers()``, and so on."""
        return Inspector(self._spark, self._table)
