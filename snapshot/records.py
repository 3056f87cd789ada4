"""Plain records that the layers hand to each other."""

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
            ``compact``, ``expire`` or, for a commit made by another Delta writer, ``foreign``.
        rows: changes in the snapshot.
        timestamp_ms: when it was committed, in milliseconds since the epoch.
        commit_id: ``writer:batch`` of the write that made it, empty for a foreign one.
        fingerprint: identifies its commit. The log names it beside the id, because another commit may get the id when
            the table is restored from an older copy. Empty if the Delta log entry is not at hand.
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
    """Records that a staging task has put into one log partition, before their snapshot is committed.

    Attributes:
        first: offset of the first record.
        end: offset after the last one.
        records: how many there are; fewer than ``end - first`` when others wrote in between.
    """

    first: int
    end: int
    records: int


class LogSink(Protocol):
    """Takes changes into the log while they are staged (``log.consistency=eventual``)."""

    def send(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Queue changes (the table's columns, then ``_kind``) of a bucket."""
        ...

    def close(self) -> dict[int, SentRange]:
        """Wait until the log has all of them and say where, by bucket."""
        ...


class LogSinkFactory(Protocol):
    """Makes the tap of one task. Picklable."""

    def open(self) -> LogSink:
        """Connect."""
        ...


class RowCheck(Protocol):
    """Looks at rows while they are staged. Picklable."""

    def check(self, rows: pa.RecordBatch) -> None:
        """Refuse rows (the table's columns, and ``_kind`` where they are changes) that the log would not take.

        Raises:
            InvalidInputError: there is such a row.
        """
        ...


class ChangeSet(Protocol):
    """The changes of one snapshot, as the log publishes them: an ordered list of changes for each bucket.

    The order depends only on what is stored, so that a publisher that repeats the snapshot after a crash sees the same
    changes at the same positions.
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
        """The same columns, by their names and by their stored names."""
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
        """Read a bucket's changes (the table's columns, then ``_kind``), leaving out the first ``skip``."""
        ...


class Split(Protocol):
    """What one task reads. Picklable."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the split."""
        ...
