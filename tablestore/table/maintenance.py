"""``table.maintenance``: expire, roll back, clean up."""

from __future__ import annotations

from log_system.report import Progress
from snapshot.records import Snapshot
from tablestore.maintenance import remove_orphans, rollback
from tablestore.maintenance.expire_partitions import PartitionsReport
from tablestore.maintenance.expire_snapshots import Age, ExpireReport, expire, rules_of
from tablestore.read.time_travel import Point
from tablestore.table.handle import HasHandle, exclusive, shared


class Maintenance(HasHandle):
    """Maintenance of one table. Compaction and expiry also run by themselves after writes; see the options."""

    @shared
    def expire(
        self,
        *,
        older_than: Age | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ExpireReport:
        """Expire old snapshots: they can no longer be read, and files that only they need are removed.

        The newest snapshot is kept, and so is what a named consumer has not read, the log lacks, or a tag names.

        Args:
            older_than: Expire snapshots replaced longer ago than this (a timedelta or text such as ``"7 d"``), or
                before this time. Default: 10 minutes with ``keep_last``, which protects running readers; otherwise the
                table's options (``snapshot.retention``, ``snapshot.retain-min``, ``snapshot.retain-max``).
            keep_last: Keep this many of the newest snapshots.
            dry_run: Only report what would be done.
            progress: Called with the number of files removed so far and in all.

        Raises:
            InvalidInputError: An argument is wrong.
            ConflictError: Other writers committed first too often; nothing has expired.
            UnavailableError: The file system refused; expire again.
        """
        table = self._handle.refresh()
        rules = rules_of(table, older_than, keep_last, dry_run=dry_run)
        return expire(table, rules, dry_run=dry_run, progress=progress)

    @exclusive
    def expire_partitions(
        self,
        *,
        expiration_time: str | None = None,
        timestamp_pattern: str | None = None,
        timestamp_formatter: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PartitionsReport:
        """Delete partitions older than ``partition.expiration-time`` as one snapshot, which is published.

        Args:
            expiration_time: A duration such as ``"7 d"``; default: the option of the table.
            timestamp_pattern: How to form a partition's time; default: ``partition.timestamp-pattern`` of the table.
            timestamp_formatter: The format of that time; default: ``partition.timestamp-formatter`` of the table.
            dry_run: Only report what would be deleted.
            progress: Called with the number of partitions deleted so far and in all.

        Raises:
            InvalidInputError: The table has no partitions, or neither it nor the call has an expiration time; an
                argument is not valid, or the log's format has no deletes.
            ConflictError: Other writers committed first too often; nothing was deleted.
        """
        arguments = {
            "partition.expiration-time": expiration_time,
            "partition.timestamp-pattern": timestamp_pattern,
            "partition.timestamp-formatter": timestamp_formatter,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        return self._handle.expire_partitions(given, dry_run=dry_run, progress=progress)

    @exclusive
    def rollback(self, to: Point) -> Snapshot | None:
        """Restore the rows of an earlier snapshot as one new snapshot, and publish the difference.

        In a table with a key the difference is the rows that differ. Without a key it is computed from files: an append
        that commits at the same time is kept, and rows that a compaction has rewritten since are deleted and inserted.

        Args:
            to: A snapshot's id, a tag or a time.

        Returns:
            The snapshot; None where nothing differs.

        Raises:
            NotFoundError: There is no such snapshot or tag, or the snapshot has expired.
            InvalidInputError: The log's format has no deletes.
            ConflictError: Other writers committed first too often; nothing was written.
        """
        handle = self._handle
        return handle.finish(rollback.rollback(handle.refresh(), handle.writer, handle.run_tasks, to))

    @shared
    def remove_orphans(
        self, *, older_than: Age = remove_orphans.AGE, dry_run: bool = False, progress: Progress | None = None
    ) -> remove_orphans.OrphanReport:
        """Remove files that no snapshot refers to, left behind by writers and expiries that died.

        Args:
            older_than: Only remove files written longer ago than this; at least an hour. A younger file may belong to
                a writer that is about to commit: choose more than the longest write takes.
            dry_run: Only report what would be removed.
            progress: Called with the number of files removed so far and in all.

        Raises:
            InvalidInputError: The age is less than an hour.
        """
        table = self._handle.refresh()
        return remove_orphans.remove_orphans(table, older_than, dry_run=dry_run, progress=progress)
