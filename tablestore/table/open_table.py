"""``OpenTable``: what a table's handle has with Spark and without."""

from __future__ import annotations

from collections.abc import Collection

from log_system.index import IndexEntry
from snapshot.records import Snapshot
from tablestore.maintenance.compact import compact
from tablestore.options.specification import TableOptions
from tablestore.table.consumers import TableConsumers
from tablestore.table.handle import HasHandle, TableHandle, exclusive
from tablestore.table.log import TableLog
from tablestore.table.maintenance import Maintenance
from tablestore.table.tags import TableTags
from tablestore.write.metrics import Hook


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
