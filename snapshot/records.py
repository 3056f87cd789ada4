"""Data classes and protocols that the layers share."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import pyarrow as pa

from snapshot.errors import InvalidInputError
from snapshot.quoting import is_unicode
from snapshot.schema.physical_names import Columns

OLDEST = "tablestore-oldest"
"""Delta ``txn`` id that records the id of the oldest snapshot that has not expired."""
FOREIGN = "tablestore-foreign"
"""Delta ``txn`` id that records the last version by which another Delta writer added files, as far as was checked."""
CHECKED = "tablestore-checked"
"""Delta ``txn`` id that records up to which version ``FOREIGN`` was checked."""
_NUMBER_MAX = 2**63 - 1
"""The largest version of a Delta ``txn`` action."""


@dataclass(frozen=True)
class Snapshot:
    """A committed version of a table.

    Attributes:
        id: the Delta version of the commit table; 0 is the empty table.
        operation: ``create``, ``append``, ``upsert``, ``delete``, ``update``, ``overwrite``, ``truncate``, ``merge``,
            ``compact``, ``expire``, ``alter``; ``foreign`` for a commit made by another Delta writer, ``expired`` for
            a commit whose log entry has expired.
        rows: changes in the snapshot.
        timestamp_ms: when it was committed, in milliseconds since the epoch.
        commit_id: ``writer:batch`` of the write that made it, empty for a foreign one.
        fingerprint: identifies the commit. The log stores it with the id, because another commit gets the id if the
            table is restored from an older copy. Empty if the Delta log entry was not read.
    """

    id: int
    operation: str
    rows: int
    timestamp_ms: int
    commit_id: str = ""
    fingerprint: str = field(default="", compare=False, repr=False)

    @property
    def time(self) -> datetime:
        """When the snapshot was committed (UTC)."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, tz=UTC)


@dataclass(frozen=True)
class CommitId:
    """Identifies a write, so that it is committed once however often it is tried.

    Attributes:
        writer: the writer, unique for each handle or streaming query.
        batch: the writer's increasing number of the write.
        durable: the writer may come back after a crash with the same number (a streaming query), so the number is
            kept in the Delta log (``txn``), not only beside the commit.
        checkpoint_id: identifies the checkpoint folder of a streaming query; it stays the same if the folder's content,
            and with it the query's id, is deleted. Also kept in the Delta log.
        plan: identifies what the batch of a streaming query reads, because a query whose checkpoint was set back plans
            other batches of the same numbers. Kept in the commit. Empty if unknown.
        landed: the newest batch of the writer that is known to have landed: the table lacks rows if it does not have
            it. -1 if unknown.
    """

    writer: str
    batch: int
    durable: bool = False
    checkpoint_id: str = ""
    plan: str = ""
    landed: int = -1

    @classmethod
    def of(cls, batch: object) -> CommitId | None:
        """Return the id of a write that the caller identifies by a name and a number; None for any other write.

        Args:
            batch: the name and the number, an integer (NumPy integers are accepted); or None.

        Raises:
            InvalidInputError: ``batch`` is anything else. A value that Delta's ``txn`` action cannot hold makes the
                table's log unreadable for other tools.
        """
        if batch is None:
            return None
        name, number = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (None, None)
        if not isinstance(name, str) or not name or name == OLDEST or not is_unicode(name):
            raise _no_batch(batch)
        try:
            # operator.index also accepts booleans.
            index = -1 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
        except TypeError:
            index = -1
        if not 0 <= index <= _NUMBER_MAX:
            raise _no_batch(batch)
        return cls(name, index, durable=True)

    @property
    def transactions(self) -> list[tuple[str, int]]:
        """The ``txn`` actions that keep the number of a durable id in the Delta log."""
        names = (self.writer, self.checkpoint_id) if self.durable else ()
        return [(name, self.batch) for name in names if name]

    def __str__(self) -> str:
        """Return the id as ``writer:batch``."""
        return f"{self.writer}:{self.batch}"


def _no_batch(batch: object) -> InvalidInputError:
    return InvalidInputError(
        f"batch: expected a pair (name, number) of a non-empty text (not {OLDEST!r}, which is reserved) and a "
        f"whole number from 0 to 2**63 - 1, such as ('job', 7); got {batch!r:.200}. Nothing was written."
    )


class LogEnd(NamedTuple):
    """Where a partition of a log ended.

    Attributes:
        offset: the offset after the last record.
        epoch: the partition's leader epoch at that time, which tells whether the log has lost that end since and grown
            again; -1 if unknown.
    """

    offset: int
    epoch: int = -1

    def may_be_lost(self, now: LogEnd) -> bool:
        """Return whether the leader has changed since, and may have lost this end."""
        return self.epoch not in (-1, now.epoch)


@dataclass(frozen=True)
class SentRange:
    """Records that a staging task produced to one log partition before their snapshot is committed.

    Attributes:
        first: offset of the first record.
        end: offset after the last one.
        records: number of records; fewer than ``end - first`` if other producers wrote in between.
    """

    first: int
    end: int
    records: int


class LogSink(Protocol):
    """Sends changes to the log while they are staged (``log.consistency=eventual``)."""

    def send(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Queue changes of a bucket (the table's columns, then ``_kind``)."""
        ...

    def close(self) -> dict[int, SentRange]:
        """Wait until the log has acknowledged all changes, and return their offsets by bucket."""
        ...


class LogSinkFactory(Protocol):
    """Opens the sink of one task. Picklable."""

    def open(self) -> LogSink:
        """Connect to the log."""
        ...

    def outlasting(self) -> LogSinkFactory:
        """Return this factory for a query that is under way, whose sinks wait while brokers do not answer."""
        ...


class RowCheck(Protocol):
    """Checks rows while they are staged. Picklable."""

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that the log accepts rows (the table's columns, and ``_kind`` if they are changes).

        Raises:
            InvalidInputError: the log would reject a row.
        """
        ...


class ChangeSet(Protocol):
    """The changes of one snapshot, as the log publishes them: an ordered list of changes for each bucket.

    The order depends only on the stored files, so a publisher that repeats a snapshot after a crash sends the same
    changes in the same order.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table had in this snapshot, then ``_kind``."""
        ...

    @property
    def columns(self) -> Columns:
        """The same columns, by name and by physical name."""
        ...

    @property
    def buckets(self) -> Iterable[int]:
        """The buckets that may have changes; others have none."""
        ...

    def rows(self, bucket: int) -> int:
        """Return the number of changes in a bucket."""
        ...

    def missing(self) -> list[str]:
        """Return the paths of files with changes that do not exist."""
        ...

    def batches(self, bucket: int, skip: int, /) -> Iterator[pa.RecordBatch]:
        """Read a bucket's changes (the table's columns, then ``_kind``), skipping the first ``skip``."""
        ...


class Split(Protocol):
    """A part of a read, for one task. Picklable."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the split."""
        ...
