"""Expiry of snapshots: records it, finds the data files that nothing needs any more, and where to cut Delta logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from snapshot.delta.entries import LOG
from snapshot.delta.log import Commit, DataFile, DeltaLog
from snapshot.errors import ConflictError, DataLostError
from snapshot.records import CHECKED, FOREIGN, OLDEST
from snapshot.side_by_side import side_by_side
from snapshot.store.changes import listed_changes
from snapshot.store.commit import ATTEMPTS_MAX
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import Tag

_PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"
"""Property of a table after a feature was dropped: its log must not be cut below this version."""
_READ_AT_ONCE = 1_000
"""Number of Delta log entries that are held at the same time."""
_ENTRY = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")


@dataclass(frozen=True)
class Garbage:
    """Data files that no snapshot or tag needs.

    Attributes:
        base: files of the base table.
        changes: change files of a key table.
    """

    base: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.base) + len(self.changes)


def commit_expiry(files: TableFiles, oldest: int) -> int | None:
    """Commit that every snapshot below ``oldest`` has expired. Their files still exist.

    ``oldest`` is recorded in a ``txn`` action of the commit table, so concurrent expiries see it, and it never
    decreases.

    Returns:
        The snapshot of this commit; None if they had expired already.

    Raises:
        ConflictError: other writers committed first too often; nothing has expired.
    """
    foreign, checked = (0, oldest) if files.spec.has_key else _checked(files, oldest)
    for _ in range(ATTEMPTS_MAX):
        newest = files.latest()
        if files.oldest(fresh=False) >= oldest:
            return None
        info = {"kind": "expire", "rows": 0, "oldest": oldest}
        transactions = [(OLDEST, oldest)]
        if not files.spec.has_key:
            try:
                foreign, checked = max(foreign, _last_foreign(files, checked + 1, newest)), newest
                transactions += [(FOREIGN, foreign), (CHECKED, checked)]
            except DataLostError:
                # Another expiry, or another writer, has removed entries; a later expiry checks again.
                pass
        try:
            files.log.commit(newest + 1, add=[], info=info, transactions=transactions, data_change=False)
        except ConflictError:
            continue
        return newest + 1
    msg = f"{files.storage.root}: other writers committed first {ATTEMPTS_MAX} times in a row; expire again."
    raise ConflictError(msg)


def unneeded(files: TableFiles, oldest: int) -> Garbage:
    """Return the data files that only snapshots below ``oldest`` need, and no tag, not even one that is being created.

    A snapshot needs the files of its layout, and for its changes the files that its own version added. This program
    adds a file once and removes it once, so a file that was added before ``oldest`` and is not in its layout is in no
    later one, unless another Delta writer has added it to an append table again.

    Raises:
        NotFoundError: ``oldest`` has expired in the meantime.
        DataLostError: another expiry has removed log entries that this one reads.
    """
    tags = files.tags.keeping()
    layout = files.layout(oldest)
    tagged = {file.path for tag in tags for file in tag.layout.base}
    if not files.spec.has_key:
        kept = tagged | _paths(layout.base) | _paths(listed_changes(files.log.commit_at(oldest)))
        return Garbage(_not_added_again(files, _others(known_before(files.base_table, oldest), kept), oldest), ())
    base = _others(known_before(files.base_table, layout.root_version), tagged | _paths(layout.base))
    kept = {file.path for tag in tags for file in tag.layout.changes} | _paths(layout.changes)
    kept |= _paths(layout.tombstones)
    return Garbage(base, _others(known_before(files.log, oldest), kept))


def unneeded_of(files: TableFiles, tag: Tag) -> Garbage:
    """Return the files of an expired snapshot that only a tag kept. The tag itself is deleted already."""
    oldest = files.oldest()
    others = [other.layout for other in files.tags.keeping()] + [files.layout(oldest)]
    base = _others(tag.layout.base, {file.path for layout in others for file in layout.base})
    if not files.spec.has_key:
        base = _not_added_again(files, base, oldest)
    changes = {file.path for layout in others for file in layout.changes}
    return Garbage(base, _others(tag.layout.changes, changes))


def _not_added_again(files: TableFiles, found: tuple[DataFile, ...], oldest: int) -> tuple[DataFile, ...]:
    """Leave out files that versions after ``oldest`` added to an append table again, as Delta's ``RESTORE`` does.

    A file may have been removed once more since, so the versions are read, if any file was found at all: those that no
    expiry has checked, or all if another Delta writer is known to have added files after ``oldest``.
    """
    newest = files.base_table.version() if found else oldest
    foreign, checked = _checked(files, oldest)
    again: set[str] = set()
    for commit in _commits(files, (oldest if foreign > oldest else checked) + 1, newest):
        again |= _paths((*commit.added, *commit.copied))
    return _others(found, again)


def _checked(files: TableFiles, oldest: int) -> tuple[int, int]:
    """Return what expiries have recorded of an append table: its last foreign version up to another, and that one.

    Foreign is a version by which another Delta writer added files. Versions up to ``oldest`` count as checked.
    """
    checked = files.base_table.transaction_version(CHECKED)
    foreign = files.base_table.transaction_version(FOREIGN, fresh=False)
    return (0, oldest) if checked is None or foreign is None else (foreign, max(oldest, checked))


def _last_foreign(files: TableFiles, first: int, last: int) -> int:
    """Return the last version from ``first`` to ``last`` by which another Delta writer added files; 0 if none did."""
    commits = _commits(files, first, last)
    return max((c.version for c in commits if "kind" not in c.info and (c.added or c.copied)), default=0)


def _commits(files: TableFiles, first: int, last: int) -> Iterator[Commit]:
    """Yield commits of an append table, from an object store several at once."""
    for start in range(first, last + 1, _READ_AT_ONCE):
        versions = range(start, min(start + _READ_AT_ONCE, last + 1))
        yield from side_by_side(files.storage, *(partial(files.base_table.commit_at, each) for each in versions))


def cut_points(files: TableFiles, oldest: int) -> list[tuple[DeltaLog, int]]:
    """Return each Delta log of a table with the first version that ``oldest`` and later snapshots need."""
    if not files.spec.has_key:
        return [(files.base_table, oldest)]
    return [(files.log, oldest), (files.base_table, files.base_version(oldest).compaction)]


def entries_below(log: DeltaLog, version: int) -> list[str]:
    """Return the entries of a Delta log that are not needed to read any version from ``version`` on, oldest first.

    A version is read from the last checkpoint at or before it, so the log is truncated there.
    """
    names = {name: int(match[1]) for name in log.storage.names(LOG) if (match := _ENTRY.fullmatch(name))}
    first = max((v for name, v in names.items() if name.endswith(".parquet") and v <= version), default=0)
    if first < int(log.configuration().get(_PROTECTED, 0)):
        return []
    old = [(v, not name.endswith(".json"), name) for name, v in names.items() if v < first]
    # Remove the entry of a version before its checkpoint, so that the rest of the log is always readable.
    return [f"{LOG}/{name}" for _, _, name in sorted(old)]


def known_before(log: DeltaLog, version: int) -> Iterable[DataFile]:
    """Yield every data file that versions below ``version`` list, as far back as the log goes."""
    names = set(log.storage.names(LOG))
    first = 0
    if f"{0:020d}.json" not in names:
        versions = {int(entry[1]) for name in names if (entry := _ENTRY.fullmatch(name))}
        whole = [v for v in versions if {f"{v:020d}.json", f"{v:020d}.checkpoint.parquet"} <= names]
        first = min(whole, default=0)
    if first >= version:
        return
    yield from log.files(first)
    for each in range(first + 1, version):
        commit = log.commit_at(each)
        yield from commit.added
        yield from commit.copied
        yield from listed_changes(commit)


def _paths(files: Iterable[DataFile]) -> set[str]:
    return {file.path for file in files}


def _others(files: Iterable[DataFile], kept: set[str]) -> tuple[DataFile, ...]:
    return tuple({file.path: file for file in files if file.path not in kept}.values())
