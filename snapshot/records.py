"""Data classes and protocols that the layers share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa

from snapshot.schema.physical_names import Columns


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
