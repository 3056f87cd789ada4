"""The parts that a table's verbs share: the open table, its writer, and the lock that orders its changes."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from log_system.base import LogPublisher, TaskRunner
from log_system.index import IndexEntry
from log_system.report import Progress
from snapshot.delta.forked import check_process
from snapshot.records import CommitId, Snapshot
from snapshot.staging.stage import StagedFile, Stager
from snapshot.store.creation import dropped_on_error
from tablestore.after_write import after_write
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact_if_due
from tablestore.maintenance.expire_partitions import (
    PartitionsReport,
    PartitionValues,
    expire_partitions,
    has_old_partitions,
)
from tablestore.maintenance.expire_snapshots import expire_if_due
from tablestore.write.foreign_commits import adopt
from tablestore.write.publish import publish_through, recover
from tablestore.write.writer import Writer


class TableHandle(ABC):
    """An open table, its writer and its publisher. Subclasses say what runs tasks and verbs: Spark, or this process.

    Attributes:
        lock: Held by each verb that changes the table; see ``exclusive``.
        table: The table as it was defined when it was last refreshed. Verbs call ``refresh`` instead.
        publisher: Publishes snapshots; None without a log.
        writer: Stages and commits rows.
        run_tasks: Runs a function on each of several tasks.
    """

    def __init__(self, table: TableContext, run_tasks: TaskRunner, publish_tasks: TaskRunner | None) -> None:
        self.lock = threading.RLock()
        self.table = table
        self.run_tasks = run_tasks
        self._publish_tasks = publish_tasks
        self._compaction_checked: int | None = None
        self._partitions_checked: float | None = None
        self._open_writer(table)

    def _open_publisher(self, table: TableContext) -> LogPublisher | None:
        return table.log.publisher(self._publish_tasks)

    def _open_writer(self, table: TableContext) -> None:
        self._written_by = table.options
        self.publisher = self._open_publisher(table)
        self.writer = Writer(table, self.publisher, self._open_publisher)

    def refresh(self) -> TableContext:
        """Return the table as it is defined now; another handle may have changed its columns or options."""
        with dropped_on_error(self.table.files):
            self.table = self.table.refreshed()
        return self.table

    def renew(self) -> None:
        """Look for changes of the table's definition; open writer and publisher again if its options have changed.

        The caller holds the lock.
        """
        self._follow(self.table.refreshed())

    def _follow(self, now: TableContext) -> None:
        self.table = now
        if now.options == self._written_by:
            return
        if self.publisher is not None:
            self.publisher.discard()
        meter = self.writer.meter
        self.writer.discard()
        self._open_writer(now)
        self.writer.meter.as_before(meter)

    def write(
        self, stage: Callable[[Stager], Sequence[StagedFile]], commit_id: CommitId | None = None
    ) -> Snapshot | None:
        """Write rows as one snapshot; see ``Writer.write``. A commit id that has landed before is not written again."""
        with self.lock:
            return self.finish(self.writer.write(stage, commit_id))

    def recover(self, skip_foreign: Collection[int] = ()) -> list[IndexEntry]:
        """Publish every committed snapshot that the log lacks; see ``TableStore.recover``."""
        with self.lock:
            self.renew()
            adopt(self.refresh(), skip_foreign)
            return self.writer.measured_publish(lambda turns: recover(self.refresh(), self.publisher, turns=turns))

    def catch_up(self) -> bool:
        """Publish every committed snapshot that the log lacks, in place of a writer that does not.

        Returns:
            Whether another publisher had taken the log over since this one published.
        """
        with self.lock:
            self.renew()
            adopt(self.refresh(), ())
            table, publisher, fences = self.table, self.publisher, self.writer.fences
            assert publisher is not None, "there is nothing to catch up with in a log without a publisher"
            self.writer.measured_publish(
                lambda turns: publish_through(table, publisher, table.files.latest(), own=True, turns=turns)
            )
            return self.writer.fences > fences

    def finish(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Run the maintenance that is due after a write, and return the write's snapshot.

        A failure of maintenance is a warning: the write is done.
        """
        if snapshot is not None:
            written = f"table {self.table.path}"
            # The write has looked for changes of the table's definition.
            after_write(written, "opening it with its new options", partial(self._follow, self.writer.table))
            for what, work in self.maintenance().items():
                after_write(written, what, work)
        return snapshot

    def maintenance(self) -> Mapping[str, Callable[[], None]]:
        """Return, by name, what maintains the table, in order; each does what the table's options say is due.

        What is due is decided as of the table's last look, by ``renew`` or the write before.
        """
        return {
            "compacting": self._compact_if_due,
            "expiring": self._expire_if_due,
            "expiring partitions": self._expire_partitions_if_due,
        }

    def expire_partitions(
        self, given: Mapping[str, str], *, dry_run: bool = False, progress: Progress | None = None
    ) -> PartitionsReport:
        """Delete old partitions; see ``Maintenance.expire_partitions``. Given options replace the table's."""
        return expire_partitions(
            self.refresh(), self._partitions, self._delete_partitions, given, dry_run=dry_run, progress=progress
        )

    def _compact_if_due(self) -> None:
        table = self.table
        self.writer.meter.made("compact", lambda: compact_if_due(table, self.run_tasks, self._compaction_checked))
        # As of the check: this costs no request.
        self._compaction_checked = table.files.log.version(fresh=False)

    def _expire_if_due(self) -> None:
        with self.writer.meter.measured("expire") as tell:
            report = expire_if_due(self.table)
            if report is not None:
                tell(report.oldest, report.snapshots)

    def _expire_partitions_if_due(self) -> None:
        options, now = self.table.options.partition, time.monotonic()
        checked = self._partitions_checked
        if not options.auto or (checked is not None and now - checked < options.check_interval_ms / 1000):
            return
        # The delete is a write too, so it comes back here.
        self._partitions_checked = now
        if has_old_partitions(self.table):
            self.expire_partitions({})

    @abstractmethod
    def _partitions(self) -> list[PartitionValues]:
        """Return the partitions of the newest snapshot's rows."""

    @abstractmethod
    def _delete_partitions(self, partitions: Sequence[PartitionValues]) -> Snapshot | None:
        """Delete all rows of some partitions."""


class HasHandle:
    """A table or one of its parts."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle


S = TypeVar("S", bound=HasHandle)
P = ParamSpec("P")
R = TypeVar("R")


def exclusive(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time run the verbs of a handle that change the table; a verb may call another one.

    Reads run beside them. The lock is reentrant and costs less than a microsecond where no other thread holds it.
    """

    @wraps(verb)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # In a forked process, a thread that is not there may hold the lock.
        check_process()
        with self._handle.lock, dropped_on_error(self._handle.table.files):
            return verb(self, *args, **kwargs)

    return locked


def shared(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a verb that runs beside others say that the table was dropped where it fails because of that."""

    @wraps(verb)
    def explained(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with dropped_on_error(self._handle.table.files):
            return verb(self, *args, **kwargs)

    return explained
