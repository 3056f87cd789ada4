"""A table's changes, snapshot by snapshot: where a reader starts, and whether it reads the log or the table's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from log_system.files.log import FilesLog
from log_system.outages import Outages
from snapshot.errors import CorruptedError, DataLostError, NotFoundError, TableStoreError
from snapshot.records import Split
from tablestore.context import TableContext
from tablestore.options.read_options import ReadOptions, ScanMode
from tablestore.read.split_planner import initial_splits

BEFORE_FULL = -1
"""Offset of a stream that has read nothing and starts with a full snapshot."""


@dataclass(frozen=True)
class Position:
    """How far a reader has read a table's changes.

    Attributes:
        snapshot: the last snapshot that it has read, or ``BEFORE_FULL``.
        commit: the fingerprint of that snapshot's commit (``Snapshot.fingerprint``), because another commit gets the
            id if the table is restored from an older copy. Empty if unknown; any commit of that id is accepted then.
    """

    snapshot: int
    commit: str = ""


class Feed:
    """Plans reads of a table's changes, from its log or, where the log does not have them, from the table's files.

    Changes have the columns of ``table`` as opened, whatever columns the table had in their snapshots or has now.

    Attributes:
        table: the table.
    """

    def __init__(self, table: TableContext, *, tasks: int = 2, from_files: bool = False) -> None:
        """Plan reads of ``table``.

        A full read has about ``tasks`` splits of initial rows. With ``from_files``, read committed changes from the
        files.
        """
        self.table = table
        self._files = FilesLog(table.files, table.options.buckets)
        self._log = self._files if from_files else table.log
        self._tasks = tasks
        self._columns = table.spec.change_columns
        self._outages = Outages()

    def begin(self, options: ReadOptions) -> int:
        """Return the snapshot after which a reader starts; ``BEFORE_FULL`` if it starts with all rows of a snapshot.

        Raises:
            NotFoundError: the changes of that snapshot do not exist yet or have expired; or there is no such tag.
            DataLostError: some of the changes since that tag or time have expired.
        """
        newest, mode = self.table.newest_visible(), options.scan_mode
        if mode is ScanMode.FULL:
            return BEFORE_FULL
        if mode is ScanMode.LATEST:
            return newest
        files = self.table.files
        oldest = files.log.oldest_entry(files.oldest())
        if mode is ScanMode.EARLIEST:
            return max(oldest - 1, 0)
        if mode in (ScanMode.FROM_SNAPSHOT, ScanMode.FROM_SNAPSHOT_FULL):
            wanted, with_rows = options.snapshot or 0, mode is ScanMode.FROM_SNAPSHOT_FULL
            last = self.newest_rows() if with_rows else files.latest() + 1
            if not oldest <= wanted <= last:
                msg = (
                    f"option 'snapshot'={wanted}: table {self.table.path!r} can be streamed from snapshot "
                    f"{oldest} to {last}{'' if with_rows else ' (the next)'}."
                )
                raise NotFoundError(msg)
            return BEFORE_FULL if with_rows else max(wanted - 1, 0)
        if mode is ScanMode.FROM_TAG:
            tagged = files.tags.get(options.tag or "").snapshot.id
            if tagged + 1 < oldest:
                raise DataLostError(self._gone(f"tag {options.tag!r} (snapshot {tagged})", oldest))
            return tagged
        time, snapshots = options.timestamp_ms or 0, list(files.snapshots())
        if time <= snapshots[-1].timestamp_ms and snapshots[-1].id:
            raise DataLostError(self._gone("that time", snapshots[-1].id))
        younger = [s.id for s in snapshots if s.timestamp_ms >= time and s.id <= newest]
        return max(min(younger) - 1, 0) if younger else newest

    def newest_rows(self) -> int:
        """Return the newest snapshot whose rows readers of the log may see; it may be a compaction not in the log."""
        snapshot, newest = self.table.newest_visible(), self.table.files.latest()
        while snapshot < newest and not self.rows(snapshot + 1):
            snapshot += 1
        return snapshot

    def position(self, snapshot: int) -> Position:
        """Return the position of a reader that has read up to a snapshot."""
        return Position(snapshot, "" if snapshot == BEFORE_FULL else self._log.commit_of(snapshot))

    def check(self, reached: Position, consumer: str | None = None) -> None:
        """Check that a table still has what a reader, or its consumer, has read; costs no read for the newest snapshot.

        Raises:
            CorruptedError: the table was set back to an older copy, and other commits may have taken the same ids.
        """
        if reached.snapshot == BEFORE_FULL:
            return
        own = self._log.commit_of(reached.snapshot)
        if own:
            if reached.commit in ("", own):
                return
            found = f"the table now has another commit of that number ({own}, not {reached.commit})"
            lost = "the commits that it had"
        else:
            newest = self.table.files.latest()
            # An older snapshot has expired, or the log's index was lost and is yet to be rebuilt.
            if reached.snapshot <= newest:
                return
            found = f"the table ends with {newest}"
            lost = f"snapshots {newest + 1} to {reached.snapshot}"
        reset = "" if consumer is None else f" and consumer {consumer!r} reset"
        msg = (
            f"table {self.table.path!r}: this reader has read up to snapshot {reached.snapshot}, but {found}: it was "
            f"set back (an old copy was restored?). Bring {lost} back, or start again with scan_mode='full'; a "
            f"streaming query needs a new checkpoint{reset}."
        )
        raise CorruptedError(msg)

    def parts(self, after: int, through: int) -> Sequence[Split]:
        """Return splits of the changes of snapshots ``after + 1`` to ``through``.

        After ``BEFORE_FULL``, return splits of the rows of snapshot ``through``.

        Raises:
            DataLostError: neither the log nor the table's files still have all of the changes.
        """
        files = self.table.files
        if after == BEFORE_FULL:
            return initial_splits(files, files.snapshot(through), tasks=self._tasks)
        try:
            splits = self._outages.outlast(lambda: self._log.plan(after, through, self._columns))
            return self._files.plan(after, through, self._columns) if splits is None else splits
        except DataLostError as error:
            raise self._lost(after + 1, through, error) from error

    def rows(self, snapshot: int) -> int:
        """Return the number of changes in a snapshot.

        Raises:
            DataLostError: the snapshot has expired.
        """
        try:
            return self.table.log.rows(snapshot)
        except NotFoundError as error:
            if snapshot >= self.table.files.oldest():
                raise
            raise self._lost(snapshot, snapshot, error) from error

    def _lost(self, first: int, last: int, why: TableStoreError) -> DataLostError:
        which = f"snapshots {first} to {last} are" if first < last else f"snapshot {first} is"
        return DataLostError(
            f"table {self.table.path!r}: {which} no longer in the log, nor completely in the table's files ({why}). "
            "Start a new query with scan_mode='full'."
        )

    def _gone(self, since: str, oldest: int) -> str:
        return (
            f"table {self.table.path!r}: some changes since {since} are no longer available: snapshots before "
            f"{oldest} have expired. Start with scan_mode='earliest', the oldest available changes, or with 'full'."
        )
