"""A log system without a broker: readers follow the changes in the table's own files, and a commit publishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from log_system.base import LoggedTable, LogIdentity, LogPublisher, LogTail, PartitionOffsets, TaskRunner
from log_system.index import IndexEntry
from log_system.report import Compared, Progress, RepairReport, Report
from snapshot.errors import InvalidInputError
from snapshot.records import ChangeSet, Split
from snapshot.schema.adapter import RESTART, Adapter
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import stamped

if TYPE_CHECKING:
    from snapshot.schema.evolution import Change


@dataclass(frozen=True)
class FilesSplit:
    """Changes of several snapshots in one bucket, from the table's files.

    Attributes:
        changes: the snapshots, in order.
        bucket: the bucket.
        wanted: the columns to return.
    """

    changes: tuple[ChangeSet, ...]
    bucket: int
    wanted: Columns

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, in order, with ``_kind``, ``_commit_version`` and ``_commit_timestamp``."""
        for changes in self.changes:
            adapt = Adapter(changes.columns, self.wanted, RESTART)
            for batch in changes.batches(self.bucket, 0):
                yield stamped(adapt(batch), changes.snapshot.id, changes.snapshot.timestamp_ms)


@dataclass(frozen=True)
class NoStorage:
    """The storage of a log that is in the table's files: it comes and goes with the table."""

    name: str = ""

    def create(self, table_id: str, note: Callable[[LogIdentity], None]) -> LogIdentity:
        """Create nothing."""
        return LogIdentity()

    def first_entry(self, table_id: str) -> None:
        """Return None: there is no index."""

    def identify(self, spec: TableSpec) -> None:
        """Return None."""

    def remove(
        self, table_id: str, identity: LogIdentity, *, dropping: bool, deleted: Callable[[], None]
    ) -> str | None:
        """Delete nothing."""
        return None


@dataclass(frozen=True)
class FilesLog:
    """The changes in a table's files, as a log.

    Attributes:
        files: the table.
        partitions: the table's number of buckets.
    """

    files: LoggedTable
    partitions: int
    storage: NoStorage = NoStorage()
    publishes: bool = False
    shows_uncommitted: bool = False

    def sink(self) -> None:
        """Return None: staging writes the changes to files, and nowhere else."""

    def record_check(self) -> None:
        """Return None: files hold rows of any size."""

    def check_columns(self, columns: pa.Schema) -> None:
        """Accept all columns: the table's files hold them already."""

    def check_changes(self, spec: TableSpec, changes: Sequence[Change]) -> None:
        """Accept all changes: files name their columns' physical names, which never change."""

    def publisher(self, run_tasks: TaskRunner | None = None) -> LogPublisher | None:
        """Return None: a committed snapshot is visible."""
        return None

    def newest(self) -> int:
        """Return the newest committed snapshot."""
        return self.files.latest()

    def rows(self, snapshot: int) -> int:
        """Return the number of changes in a snapshot."""
        return self.files.snapshot(snapshot).rows

    def commit_of(self, snapshot: int) -> str:
        """Return the fingerprint of a snapshot's commit, without a read if the snapshot is among the newest."""
        return self.files.fingerprint(snapshot, fresh=False)

    def plan(self, after: int, through: int, columns: Columns) -> list[Split]:
        """Return splits of the changes of snapshots ``after + 1`` to ``through``, one per bucket.

        Raises:
            DataLostError: a snapshot has expired.
        """
        changes = [self.files.changes(snapshot, self.partitions) for snapshot in range(after + 1, through + 1)]
        by_bucket: dict[int, list[ChangeSet]] = {}
        for each in changes:
            for bucket in each.buckets:
                by_bucket.setdefault(bucket, []).append(each)
        return [FilesSplit(tuple(held), bucket, columns) for bucket, held in sorted(by_bucket.items())]

    def watch(self) -> FilesLog:
        """Return this log."""
        return self

    def look(self) -> None:
        """Do nothing: the log exists as long as the table, which readers check themselves."""

    def tail(self) -> LogTail:
        """Raise an error: only committed changes are visible."""
        msg = f"table {self.files.storage.root!r}: its changes are visible only after their commit."
        raise InvalidInputError(msg)

    def offsets(self) -> Sequence[PartitionOffsets]:
        """Return no offsets: files have none."""
        return ()

    def publishing_marks(self) -> Sequence[int]:
        """Return nothing: a commit is all that makes a snapshot visible."""
        return ()

    def verify(
        self, progress: Progress | None = None, after: Compared | None = None, through: int | None = None
    ) -> Report:
        """Return a report without differences: the log is the table.

        Raises:
            CorruptedError: another Delta writer has changed rows of a table with a key.
            InvalidInputError: another Delta writer has enabled an unsupported feature.
        """
        newest = self.files.latest()
        self.files.layout(newest)
        why = "this table's files are its log, so there is nothing to compare."
        return Report(self.files.storage.root, notes=(why,), compared=Compared(newest))

    def repair(
        self, publisher: LogPublisher | None, recover: Callable[[], list[IndexEntry]], progress: Progress | None = None
    ) -> RepairReport:
        """Return a report of no repairs."""
        return RepairReport((), self.verify(progress))
