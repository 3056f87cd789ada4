"""``OpenTable``: what a table's handle has with Spark and without, and its parts ``tags``, ``consumers``, ``log``."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial

from log_system.index import IndexEntry
from log_system.report import Progress, RepairReport
from snapshot.records import Snapshot
from snapshot.store.tags import Tag
from tablestore.maintenance import change_tags
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire_tags
from tablestore.options.read_options import timestamp_millis
from tablestore.options.specification import TableOptions
from tablestore.read.time_travel import Point
from tablestore.streaming import consumers
from tablestore.streaming.consumers import Consumer
from tablestore.table.handle import HasHandle, TableHandle, exclusive, shared
from tablestore.table.maintenance import Maintenance
from tablestore.write.metrics import Hook
from tablestore.write.publish import recover


class TableTags(HasHandle):
    """The tags of one table. A tagged snapshot can be read by ``read(tag=...)`` after it has expired."""

    def __call__(self) -> list[Tag]:
        """Return the tags; deprecated."""
        warnings.warn("table.tags() is deprecated; use table.tags.all()", DeprecationWarning, stacklevel=2)
        return self.all()

    def all(self) -> list[Tag]:
        """Return the tags, ordered by snapshot."""
        return self._handle.refresh().files.tags.all()

    @shared
    def create(self, name: str, snapshot: Point | None = None, *, retained: timedelta | str | None = None) -> Tag:
        """Tag a snapshot.

        Args:
            name: A letter or ``_``, then letters, digits, ``.``, ``_`` or ``-``.
            snapshot: A snapshot's id, another tag, or a time; by default the newest snapshot.
            retained: After how long the next expiry deletes the tag: a timedelta or text such as ``"7 d"``; by default
                never.

        Raises:
            InvalidInputError: The name or the time is not valid.
            AlreadyExistsError: A tag of this name exists.
            NotFoundError: There is no such snapshot, or it has expired.
            ConflictError: It took so long that others removed files of the snapshot; there is no tag.
            OutcomeUnknownError: The file system does not respond, and the tag may exist; its files stay.
        """
        return change_tags.make_tag(self._handle.refresh(), name, snapshot, retained)

    @shared
    def delete(self, name: str) -> None:
        """Delete a tag and, if its snapshot has expired, the files that only the tag kept.

        Raises:
            NotFoundError: There is no such tag.
        """
        change_tags.delete_tag(self._handle.refresh(), name)

    @shared
    def expire(self, created_before: datetime | None = None) -> list[str]:
        """Delete the tags whose time is over, and those created before a time; return their names."""
        before_ms = None if created_before is None else timestamp_millis(created_before)
        return list(expire_tags(self._handle.refresh(), before_ms))


class TableConsumers(HasHandle):
    """The named consumers of one table; ``read_stream(consumer=...)`` adds one."""

    def __call__(self) -> list[Consumer]:
        """Return the consumers; deprecated."""
        warnings.warn("table.consumers() is deprecated; use table.consumers.all()", DeprecationWarning, stacklevel=2)
        return self.all()

    def all(self) -> list[Consumer]:
        """Return the consumers, those furthest behind first."""
        return consumers.Consumers(self._handle.table.files.storage).all()

    @shared
    def reset(self, name: str, snapshot: Point | None = None) -> None:
        """Set how far a consumer has read, or forget it.

        Stop its query first: a running query records its progress again. A query continues from its checkpoint; one
        with a new checkpoint starts after this snapshot.

        Args:
            name: The consumer's name.
            snapshot: The last snapshot it has read: an id, a tag or a time. None forgets the consumer.

        Raises:
            DataLostError: The changes after the snapshot expired meanwhile; the consumer stays where it was.
            NotFoundError: There is no such consumer, or no such snapshot.
        """
        consumers.reset_consumer(self._handle.refresh(), name, snapshot)


class TableLog(HasHandle):
    """The log of one table."""

    @property
    def shows_uncommitted(self) -> bool:
        """Whether readers see changes before they are committed (``log.consistency=eventual``)."""
        return self._handle.table.log.shows_uncommitted

    @exclusive
    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Repair the log index, the register and the end of the log; no plain consumer sees a change twice.

        Takes over the log, so that no other writer publishes in the meantime.

        Args:
            progress: Called with the offsets read so far and in all.

        Returns:
            What was done, how log and table compare now, and what to do about the rest.

        Raises:
            NotFoundError: The table was dropped meanwhile; nothing of this repair stays.
            UnavailableError: The broker or the file system does not answer; repair again.
            FencedError: Another writer has taken over the log; repair again.
        """
        self._handle.renew()
        table, publisher = self._handle.refresh(), self._handle.publisher
        return table.log.repair(publisher, partial(recover, table, publisher), progress)


class OpenTable(HasHandle):
    """A table's definition, its parts, and the verbs that take no rows."""

    def __init__(self, handle: TableHandle) -> None:
        super().__init__(handle)
        self.maintenance = Maintenance(handle)
        self.tags = TableTags(handle)
        self.consumers = TableConsumers(handle)
        self.log = TableLog(handle)

    @property
    def path(self) -> str:
        """The table's folder."""
        return self._handle.table.path

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key's columns; empty for an append table."""
        return self._handle.table.spec.primary_key

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return self._handle.table.spec.partition_by

    @property
    def options(self) -> TableOptions:
        """The table's options, as of this handle's last verb or ``refresh``."""
        return self._handle.table.options

    @property
    def metrics(self) -> Hook | None:
        """A function called after each write, commit, publish, compaction and expiry of this handle; None for none.

        It gets a ``tablestore.write.metrics.Measured``. An error that it raises is logged and stops nothing. Spark
        measures reads and streams itself, in observable metrics and a query's progress.
        """
        return self._handle.writer.meter.hook

    @metrics.setter
    def metrics(self, hook: Hook | None) -> None:
        self._handle.writer.meter.hook = hook

    @exclusive
    def compact(self) -> Snapshot | None:
        """Merge all changes into the base table, so that any Delta reader sees the newest snapshot. Publishes nothing.

        In a table without a key, rewrite small files into larger ones.

        Returns:
            The maintenance snapshot; None if there was nothing to do.
        """
        return compact(self._handle.refresh(), self._handle.run_tasks)

    @exclusive
    def recover(self, *, skip_foreign: Collection[int] = ()) -> list[IndexEntry]:
        """Publish the snapshots that are committed and not in the log, after a crash of any writer.

        In a table without a key this includes commits of other Delta writers (``DELETE``, ``UPDATE``, ``MERGE``,
        ``RESTORE``, an overwrite): the difference between the rows removed and added becomes a snapshot's changes.

        Args:
            skip_foreign: Versions of other Delta writers to leave out of log and streams for good, such as those whose
                files are gone. A warning says what each did.

        Returns:
            The entries added to the log index; empty without a log.

        Raises:
            InvalidInputError: A version to skip is not a commit of another writer that waits to be published.
            DataLostError: Files that another writer removed are gone; the message says how to skip its version.
        """
        return self._handle.recover(skip_foreign)
