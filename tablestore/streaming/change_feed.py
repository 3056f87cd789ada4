"""A table's changes, snapshot by snapshot: where a reader starts, and whether it reads the log or the table's files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from log_system.gate import Gate, PartitionSlice, slices
from log_system.index import IndexEntry
from log_system.kafka.client.topic import earliest_of
from log_system.kafka.published_positions import is_another
from snapshot.errors import DataLostError, NotFoundError
from snapshot.schema.adapter import Adapter
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import with_kind
from snapshot.store.changes import SnapshotChanges
from tablestore.context import TableContext
from tablestore.options.read_options import ScanMode
from tablestore.read.split_planner import change_splits, initial_splits
from tablestore.read.splits import RESTART, FilesSplit, LogPiece, LogSplit, Split

logger = logging.getLogger("tablestore")

BEFORE_FULL = -1
"""Offset of a stream that has read nothing and starts with a full snapshot."""
_REPLACING = ("truncate", "overwrite")
"""Kinds of snapshots for whose deletes the log may have a single truncate record (``log.truncate-record``)."""


class Feed:
    """Plans reads of a table's changes, from the log or, without one, from the table's files.

    Changes have the columns of ``table`` as opened, whatever columns the table had in their snapshots or has now.

    The files are also read if the log is eventual, because such a log does not keep snapshots apart, and if the table
    has ``log.foreign-records=skip``.
    """

    def __init__(self, table: TableContext, *, tasks: int = 2, from_files: bool = False) -> None:
        """Plan reads of ``table``.

        Args:
            table: the table.
            tasks: approximate number of splits for the initial rows of a full read.
            from_files: read committed changes from the files and ignore the log.
        """
        self._table = table
        # The files hold only the table's own changes; the log may hold records of other producers.
        skips = table.log is not None and table.log.skips_foreign
        self._from_log = table.log is not None and not table.is_eventual and not from_files and not skips
        self._tasks = tasks
        self._columns = table.spec.change_columns
        self._gate = Gate(table.index)

    def begin(
        self, mode: ScanMode, *, snapshot: int | None = None, timestamp_ms: int | None = None, tag: str | None = None
    ) -> int:
        """Return the snapshot after which a reader starts; ``BEFORE_FULL`` if it starts with all rows of a snapshot.

        Args:
            mode: where to start.
            snapshot: for ``from-snapshot``.
            timestamp_ms: for ``from-timestamp``, in milliseconds since the epoch.
            tag: for ``from-tag``.

        Raises:
            NotFoundError: the changes of that snapshot do not exist yet or have expired; or there is no such tag.
            DataLostError: some of the changes since that tag or time have expired.
        """
        newest = self._table.newest_visible()
        if mode is ScanMode.FULL:
            return BEFORE_FULL
        if mode is ScanMode.LATEST:
            return newest
        snapshots = list(self._table.files.snapshots())
        if mode is ScanMode.EARLIEST:
            return max(snapshots[-1].id - 1, 0)
        if mode is ScanMode.FROM_SNAPSHOT:
            wanted = snapshot or 0
            if not snapshots[-1].id <= wanted <= newest + 1:
                msg = (
                    f"option 'snapshot'={wanted}: table {self._table.path!r} can be streamed from snapshot "
                    f"{snapshots[-1].id} to {newest + 1} (the next)."
                )
                raise NotFoundError(msg)
            return max(wanted - 1, 0)
        if mode is ScanMode.FROM_TAG:
            tagged = self._table.files.tags.get(tag or "").snapshot.id
            if tagged + 1 < snapshots[-1].id:
                raise DataLostError(self._gone(f"tag {tag!r} (snapshot {tagged})", snapshots[-1].id))
            return tagged
        time = timestamp_ms or 0
        if time <= snapshots[-1].timestamp_ms and snapshots[-1].id:
            raise DataLostError(self._gone("that time", snapshots[-1].id))
        younger = [s.id for s in snapshots if s.timestamp_ms >= time and s.id <= newest]
        return max(min(younger) - 1, 0) if younger else newest

    def parts(self, after: int, through: int) -> Sequence[Split]:
        """Return splits of the changes of snapshots ``after + 1`` to ``through``.

        After ``BEFORE_FULL``, return splits of the rows of snapshot ``through``.

        Raises:
            DataLostError: neither the log nor the table's files still have all of the changes.
        """
        files = self._table.files
        if after == BEFORE_FULL:
            return initial_splits(files, files.snapshot(through), tasks=self._tasks)
        if self._from_log:
            found = self._log_parts(after, through)
            if found is not None:
                return found
        try:
            return change_splits(files, after, through, self._table.options.buckets, self._columns)
        except DataLostError as error:
            msg = (
                f"table {self._table.path!r}: snapshots {after + 1} to {through} are no longer in the log nor all in "
                f"the table's files ({error}). Start a new query with scan_mode='full'."
            )
            raise DataLostError(msg) from error

    def rows(self, snapshot: int) -> int:
        """Return the number of changes in a snapshot."""
        entry = None if self._table.log is None else self._table.index.get(snapshot)
        if entry is None or entry.kind in _REPLACING:
            return self._table.files.snapshot(snapshot).rows
        return entry.rows

    def _gone(self, since: str, oldest: int) -> str:
        return (
            f"table {self._table.path!r}: not all changes since {since} are there any more: snapshots before {oldest} "
            "have expired. Begin with scan_mode='earliest', the oldest changes that are there, or with 'full'."
        )

    def _log_parts(self, after: int, through: int) -> list[Split] | None:
        """Return splits that read the log; None if records or index entries are missing, or the topic is another."""
        log = self._table.log
        assert log is not None
        options = self._table.options.log
        compacted = options is not None and options.compacted
        pieces: dict[int, list[LogPiece | FilesSplit]] = {}
        topics: set[str] = set()
        try:
            for spec, first, last in self._epochs(after, through):
                under = log.under(with_kind(spec.change_columns.named))
                adapt = Adapter(spec.change_columns, self._columns, RESTART)
                entries = self._gate.entries(first - 1, last)
                topics |= {entry.topic for entry in entries}
                for run in self._runs(entries):
                    if isinstance(run, SnapshotChanges):
                        for bucket in run.files:
                            pieces.setdefault(bucket, []).append(FilesSplit((run,), bucket, self._columns))
                    else:
                        for piece in slices(run):
                            pieces.setdefault(piece.partition, []).append(LogPiece(under, piece, adapt))
        except DataLostError as error:
            logger.warning("table %s: %s Reading the table's files instead.", self._table.path, error)
            return None
        in_log = [each.piece for held in pieces.values() for each in held if isinstance(each, LogPiece)]
        if in_log and (why := self._is_gone(in_log, topics)):
            logger.warning(
                "table %s: %s snapshots %d to %d; reading the table's files instead.",
                self._table.path,
                why,
                after + 1,
                through,
            )
            return None
        return [LogSplit(tuple(held), compacted=compacted) for _, held in sorted(pieces.items())]

    def _runs(self, entries: Sequence[IndexEntry]) -> Iterator[list[IndexEntry] | SnapshotChanges]:
        """Yield runs of index entries; a snapshot with a truncate record is yielded separately, as its change files.

        The truncate record does not say which rows were deleted, but the files do. The files exist as long as the index
        entry, because both expire with their snapshot.
        """
        files, run = self._table.files, list[IndexEntry]()
        for entry in entries:
            if entry.kind in _REPLACING and files.truncates(entry.snapshot):
                yield run
                yield files.changes(entry.snapshot, self._table.options.buckets)
                run = []
            else:
                run.append(entry)
        yield run

    def _epochs(self, after: int, through: int) -> Iterator[tuple[TableSpec, int, int]]:
        """Yield the runs of snapshots between column changes: the table definition, the first and the last snapshot."""
        newest, last = self._table.files.spec_at_least(through), through
        found: list[tuple[TableSpec, int, int]] = []
        while last > after:
            spec = newest.at(last)
            first = max(after + 1, spec.since)
            found.append((spec, first, last))
            last = first - 1
        return reversed(found)

    def _is_gone(self, slices: Sequence[PartitionSlice], topics: set[str]) -> str:
        """Return why the log no longer has all of the slices; empty if it has.

        Args:
            slices: the parts of the log to read.
            topics: the topic ids in the index entries.
        """
        assert self._table.log is not None
        found = earliest_of(self._table.log.client, self._table.log.topic)
        if any(is_another(topic, found.topic_id) for topic in topics):
            return "the topic was deleted and recreated after"
        first = found.offsets
        expired = any(first[piece.partition] > piece.start and piece.records for piece in slices)
        return "the log's retention has passed" if expired else ""
