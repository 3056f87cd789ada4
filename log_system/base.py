"""The log system interface: everything that the rest of the package asks of a table's log.

A log system is one implementation of ``LogSystem``, ``LogStorage`` and, if writers publish to it, ``LogPublisher``.
There are two: ``log_system/files`` and ``log_system/kafka``. ``tablestore/log_systems.py`` opens them by the option
``log.system``, and docs/internals/log_systems.md describes how to add another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from log_system.index import IndexEntry
from log_system.report import Compared, Progress, RepairReport, Report
from snapshot.records import ChangeSet, LogEnd, LogSinkFactory, RowCheck, SentRange, Snapshot, Split
from snapshot.schema.physical_names import Columns
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage

if TYPE_CHECKING:
    from snapshot.schema.evolution import Change

T = TypeVar("T")


class TaskRunner(Protocol):
    """Runs a function on each of several tasks at least once, for example on Spark's executors."""

    def __call__(self, tasks: Sequence[T], work: Callable[[T], str], /) -> list[str]:
        """Return the results in the order of the tasks; raise the error of the first task that failed."""
        ...


class LoggedTable(Protocol):
    """The table whose changes a log holds: its committed snapshots."""

    @property
    def storage(self) -> Storage:
        """The table's folder."""
        ...

    @property
    def spec(self) -> TableSpec:
        """The table's definition when it was opened."""
        ...

    def latest(self) -> int:
        """Return the newest committed snapshot."""
        ...

    def oldest(self, *, fresh: bool = True) -> int:
        """Return the oldest snapshot that has not expired; with ``fresh=False``, as last seen."""
        ...

    def snapshot(self, snapshot_id: int, /) -> Snapshot:
        """Return a snapshot.

        Raises:
            NotFoundError: there is no such snapshot, or it has expired.
        """
        ...

    def changes(self, snapshot_id: int, buckets: int, /) -> ChangeSet:
        """Return a snapshot's changes as they are in the table's files.

        Raises:
            DataLostError: the snapshot has expired.
            CorruptedError: another Delta writer committed it, and its changes are not known.
        """
        ...

    def published(self, snapshot_id: int, buckets: int, /) -> ChangeSet:
        """Return a snapshot's changes as they are to be published; raises what ``changes`` raises."""
        ...

    def truncates(self, snapshot_id: int, /) -> bool:
        """Return whether one record in each partition stands for the snapshot's deletes."""
        ...

    def fingerprint(self, snapshot_id: int, /, *, fresh: bool = True) -> str:
        """Return the fingerprint of a snapshot's commit; empty if its entry in the Delta log is gone.

        Args:
            snapshot_id: the snapshot.
            fresh: read the entry; else what is known of it as of the last look at the table, if anything, suffices.
        """
        ...

    def spec_at_least(self, snapshot_id: int, /) -> TableSpec:
        """Return the definition as of a snapshot or a later one."""
        ...

    def layout(self, snapshot_id: int, /) -> object:
        """Return the files of a snapshot.

        Raises:
            CorruptedError: another Delta writer has changed rows of a table with a key.
            InvalidInputError: another Delta writer has enabled an unsupported feature.
        """
        ...

    def alter(self, spec: TableSpec, snapshot_id: int, commit_id: str, /) -> Snapshot:
        """Commit a new definition as a snapshot without rows.

        Raises:
            ConflictError: another writer has committed that snapshot.
        """
        ...


@dataclass(frozen=True)
class PartitionOffsets:
    """The offsets that one partition of a log holds.

    Attributes:
        partition: the partition.
        first: the first offset; retention has removed earlier ones.
        end: the offset after the last committed record.
    """

    partition: int
    first: int
    end: int


class LogWatch(Protocol):
    """Notices, for a waiting reader, that the log was deleted."""

    def look(self) -> None:
        """Check the log unless it was checked recently; ignore a broker that does not answer.

        Raises:
            NotFoundError: the log no longer exists.
            DataLostError: the log was deleted and created again.
        """
        ...


class RecordRange(Split, Protocol):
    """The records of one log partition between two offsets."""

    def between(self, start: int, end: int, /) -> RecordRange:
        """Return the range of the same partition between two other offsets."""
        ...


class LogTail(Protocol):
    """Reads a log's records as they arrive, before their snapshot is committed."""

    def starts(self) -> list[int]:
        """Return the first offset of each partition."""
        ...

    def ends(self) -> list[LogEnd]:
        """Return the end of each partition."""
        ...

    def generation(self) -> str:
        """Return an id that changes if the log is deleted and created again."""
        ...

    def check(self, generation: str, /, reached: Sequence[LogEnd] = ()) -> None:
        """Check that the log still is the one of an earlier ``generation``; an empty one is not checked.

        Args:
            generation: what ``generation`` returned earlier.
            reached: up to where each partition was there.

        Raises:
            DataLostError: the log was deleted and created again, or has lost its end.
        """
        ...

    def splits(self, ranges: Sequence[tuple[int, int, int]], *, newest: bool) -> list[RecordRange]:
        """Return splits of records, with the table's columns as opened, ``_kind``, ``_seq`` and ``_commit_timestamp``.

        Args:
            ranges: of each split the partition, the first offset and the offset after the last record. No later than
                those that ``ends`` has returned.
            newest: only the last record of each key is needed, so others may be left out.
        """
        ...


class LogSystem(Protocol):
    """The log of one open table."""

    @property
    def partitions(self) -> int:
        """The number of partitions, which is the table's number of buckets."""
        ...

    @property
    def storage(self) -> LogStorage:
        """Where the log is stored."""
        ...

    @property
    def publishes(self) -> bool:
        """Whether a snapshot must be published after its commit; if not, ``publisher`` returns None."""
        ...

    @property
    def shows_uncommitted(self) -> bool:
        """Whether readers see changes before they are committed.

        Such a log does not keep snapshots apart: readers must normalize its records and count offsets.
        """
        ...

    # Writing

    def sink(self) -> LogSinkFactory | None:
        """Return the sink to which staging sends changes; None if they are published after the commit."""
        ...

    def record_check(self) -> RowCheck | None:
        """Return the check that rejects rows, while they are staged, that the log would not take; None for no limit."""
        ...

    def check_columns(self, columns: pa.Schema) -> None:
        """Check that the log's records can hold these columns.

        Raises:
            InvalidInputError: they cannot.
        """
        ...

    def check_changes(self, spec: TableSpec, changes: Sequence[Change]) -> None:
        """Check that records in the log can still be read after changes of the table's columns.

        Args:
            spec: the table's definition before the changes.
            changes: the changes.

        Raises:
            InvalidInputError: they cannot.
        """
        ...

    def publisher(self, run_tasks: TaskRunner | None = None) -> LogPublisher | None:
        """Return a publisher, not yet connected; None if a commit is all that makes a snapshot visible.

        Args:
            run_tasks: publishes large snapshots in parallel; None publishes in this process.
        """
        ...

    # Reading

    def newest(self) -> int:
        """Return the newest snapshot that readers may see."""
        ...

    def rows(self, snapshot: int) -> int:
        """Return the number of changes in a snapshot."""
        ...

    def commit_of(self, snapshot: int) -> str:
        """Return the fingerprint of a snapshot's commit, as of the last call of ``newest``; empty if unknown."""
        ...

    def plan(self, after: int, through: int, columns: Columns) -> Sequence[Split] | None:
        """Return splits of the changes of snapshots ``after + 1`` to ``through``, each in commit order.

        Args:
            after: the snapshot before the first one to read.
            through: the last snapshot to read.
            columns: the columns to return.

        Returns:
            Splits that yield the columns, ``_kind``, ``_commit_version`` and ``_commit_timestamp``; None if the log
            lacks some of these changes, or does not keep snapshots apart. The table's files then may have them.

        Raises:
            DataLostError: these changes are no longer stored anywhere.
        """
        ...

    def watch(self) -> LogWatch:
        """Return the watch by which a waiting reader notices that the log was deleted."""
        ...

    def tail(self) -> LogTail:
        """Return the reader of uncommitted records.

        Raises:
            InvalidInputError: the log shows only committed snapshots.
        """
        ...

    def offsets(self) -> Sequence[PartitionOffsets]:
        """Return the offsets that each partition holds; empty for a log without records of its own."""
        ...

    def publishing_marks(self) -> Sequence[int]:
        """Return numbers that change while a publisher puts a snapshot into the log; empty if nothing tells.

        Raises:
            UnavailableError: the broker does not respond.
        """
        ...

    # Auditing

    def verify(
        self, progress: Progress | None = None, after: Compared | None = None, through: int | None = None
    ) -> Report:
        """Compare the log with the table; change nothing.

        Args:
            progress: called with the number of offsets read so far and the total.
            after: compare only the snapshots that follow; None for all. A log that does not keep snapshots apart, or
                whose compared part has changed, is compared whole; see ``Report.after``.
            through: the last snapshot to compare; None for the newest.
        """
        ...

    def repair(
        self, publisher: LogPublisher | None, recover: Callable[[], list[IndexEntry]], progress: Progress | None = None
    ) -> RepairReport:
        """Repair what can be repaired so that no reader sees a change twice or out of order.

        Args:
            publisher: a publisher that ``publisher()`` returned; it owns the log afterwards.
            recover: publishes what the log lacks with that publisher, and returns the index entries.
            progress: called with the number of offsets read so far and the total.
        """
        ...


class LogPublisher(Protocol):
    """Publishes one table's snapshots. One publisher owns the log at a time; a new owner fences the previous one."""

    @property
    def owns_log(self) -> bool:
        """Whether this publisher has taken over the log and has not noticed a later owner."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long the broker may be unreachable before publishing fails, in seconds."""
        ...

    @property
    def servers(self) -> str:
        """The bootstrap servers in the table's definition when this publisher was created."""
        ...

    @property
    def newest(self) -> int:
        """The newest snapshot with at least one change in the log; valid after ``take_over``."""
        ...

    @property
    def claimed(self) -> Sequence[tuple[int, str]]:
        """The last snapshots in the log with their commit fingerprints (empty: unknown); valid after ``take_over``."""
        ...

    def take_over(self) -> None:
        """Become the owner: abort the previous owner's open transactions and read what is already published."""
        ...

    def publish(self, snapshots: Sequence[ChangeSet]) -> list[IndexEntry]:
        """Write snapshots that follow each other to the log and the index unless they are already there."""
        ...

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Record, by partition, which changes of a snapshot were sent while they were staged."""
        ...

    def mend(self) -> None:
        """Repair records that attempts sent while staging and never committed."""
        ...

    def discard(self) -> None:
        """Release ownership and close connections; ``take_over`` starts again."""
        ...


class RepairSource(Protocol):
    """Compares a log that holds uncommitted records with the table, key by key."""

    def changes_from(self, snapshot: int) -> Sequence[ChangeSet]:
        """Return the changes of a snapshot and of all later committed snapshots, in order."""
        ...

    def wrong(
        self, partition: int, start: int, end: int, changed: Sequence[ChangeSet], *, whole: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield changes that repair the log: the committed value, or a delete, of each key whose last record is wrong.

        Args:
            partition: the log partition, which equals the bucket.
            start: the offset from which the log is read.
            end: the offset at which reading stops; the caller sends the repairs after it.
            changed: snapshots whose keys must have a correct last record in this range.
            whole: whether every key of the bucket must have one.

        Yields:
            The table's columns, then ``_kind``.
        """
        ...

    def differences(
        self,
        partition: int,
        start: int,
        end: int,
        changed: Sequence[ChangeSet],
        *,
        whole: bool = False,
        snapshot: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``wrong`` with the columns ``SAID``, ``AT`` and ``CHANGED``.

        Compare with ``snapshot``, or with the newest one.
        """
        ...


SAID = "_said"
"""int8: row kind of the log's last record of the key; NULL if there is none."""
AT = "_at"
"""int64: position of that record, as ``_seq``; NULL if there is none."""
CHANGED = "_changed"
"""int64: the last of the given snapshots that changed the key; NULL if none did."""


@dataclass(frozen=True)
class LogIdentity:
    """Which log belongs to a table: others may create one of the same name.

    Attributes:
        owned: whether the table's ``create`` created it, so that ``drop`` deletes it.
        topic_id: the id of the topic; empty if unknown, or for a log without one.
        cluster_id: the id of the topic's cluster.
    """

    owned: bool = False
    topic_id: str = ""
    cluster_id: str = ""


class LogStorage(Protocol):
    """Creates and deletes the place where a table's log is stored, such as a topic."""

    @property
    def name(self) -> str:
        """The name of that place; empty for a log without one."""
        ...

    def create(self, table_id: str, note: Callable[[LogIdentity], None]) -> LogIdentity:
        """Create the place, or check an existing one, and claim it for the table.

        Args:
            table_id: the table.
            note: stores the identity so that an interrupted ``create`` can be undone; called before the claim.

        Raises:
            AlreadyExistsError: another table uses it, or it has records.
            InvalidInputError: it does not match the options.
            NotFoundError: it was deleted in the meantime.
            UnavailableError: the broker does not respond.
        """
        ...

    def first_entry(self, table_id: str) -> IndexEntry | None:
        """Return the index entry of the empty table; None for a log without an index."""
        ...

    def identify(self, spec: TableSpec) -> LogIdentity | None:
        """Return which log of this name exists and whether the table provably owns it; None if there is none.

        Raises:
            UnavailableError: the broker does not respond.
        """
        ...

    def remove(
        self, table_id: str, identity: LogIdentity, *, dropping: bool, deleted: Callable[[], None]
    ) -> str | None:
        """Delete what the table provably owns, and the marks that show that the table uses it.

        Args:
            table_id: the table.
            identity: what ``create`` noted, or ``identify`` returned.
            dropping: whether a table is dropped; else an interrupted ``create`` is undone.
            deleted: called after the deletion; from then on, someone else may create one of the same name.

        Returns:
            The name of what was deleted; None if nothing was.

        Raises:
            UnavailableError: the broker does not respond.
        """
        ...
