"""Optimistic concurrency for writes that depend on the table's contents: conflict checks before a commit, and retry."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import ConflictError
from snapshot.records import Snapshot
from snapshot.staging.stage import Role, StagedFile
from snapshot.store.changes import MAINTENANCE, listed
from snapshot.store.commit import Replacement
from snapshot.store.table_files import TableFiles

_WAIT_SECONDS = 0.05
RETRIES_MAX = 50
"""How many times a write is staged, if commits of other writers keep invalidating it."""


class StaleError(ConflictError):
    """Another writer committed after the snapshot that a write was computed from, or changed the table's columns."""


@dataclass(frozen=True)
class Replaced:
    """Files of an append table that a DML statement removes.

    Attributes:
        deleted: files without remaining rows.
        rewritten: files whose remaining rows are in staged files.
        base: the snapshot in which the files were found.
    """

    deleted: Sequence[DataFile]
    rewritten: Sequence[DataFile]
    base: int

    @property
    def files(self) -> list[DataFile]:
        """All removed files."""
        return [*self.deleted, *self.rewritten]

    def replacement(self, staged: Sequence[StagedFile]) -> Replacement:
        """Return what a commit that adds the ``staged`` files has to remove and to record as changes."""
        by_role: dict[Role, list[DataFile]] = {role: [] for role in Role}
        for each in sorted(staged, key=lambda s: s.file.path.rpartition("/")[2]):
            by_role[each.role].append(each.file)
        listing = listed(deleted=self.deleted, changed=by_role[Role.CHANGES], inserted=by_role[Role.NEW])
        return Replacement(self.files, listing)


def check_columns_of(files: TableFiles, since: int, then: Callable[[int], None] | None, newest: int) -> None:
    """Raise `StaleError` unless a table still has the columns that rows were staged for.

    They are those since snapshot ``since``. ``then`` is a further check, called with ``newest``.
    """
    now = files.spec_of(newest).since
    if now != since:
        msg = (
            f"table {files.storage.root!r}: its columns were changed, by snapshot {now}, while rows were staged; "
            "nothing was written. Write again."
        )
        raise StaleError(msg)
    if then is not None:
        then(newest)


def check_rows(log: DeltaLog, base: int, newest: int) -> None:
    """Raise `StaleError` if a commit since snapshot ``base`` has changed rows."""
    if any(log.commit_at(v).info.get("kind") not in MAINTENANCE for v in range(base + 1, newest + 1)):
        raise StaleError


def check_files(log: DeltaLog, base: int, newest: int) -> None:
    """Raise `StaleError` if a commit since ``base`` has removed files of an append table, even to rewrite them."""
    between = map(log.commit_at, range(base + 1, newest + 1))
    if any(found.removed or found.rewritten for found in between):
        raise StaleError


def check_same(log: DeltaLog, base: int, newest: int) -> None:
    """Raise `StaleError` unless an append table has the same rows in the same files as in snapshot ``base``."""
    check_rows(log, base, newest)
    check_files(log, base, newest)


def until_fresh(path: str, attempt: Callable[[], Snapshot | None]) -> Snapshot | None:
    """Retry a write until no conflicting commit precedes it, and return its snapshot.

    Args:
        path: the table's folder, for the message.
        attempt: stages and commits; removes what it has staged if it raises ``StaleError``.

    Raises:
        ConflictError: every attempt met a conflicting commit; nothing was committed.
    """
    for number in range(RETRIES_MAX):
        try:
            return attempt()
        except StaleError:
            time.sleep(random.uniform(0, _WAIT_SECONDS * number))
    msg = (
        f"table {path!r}: other writers committed {RETRIES_MAX} times while the replaced rows were looked up; nothing "
        "was written. Try again when fewer writers are active. If many upsert at once, use a table without "
        "changelog-producer='lookup'."
    )
    raise ConflictError(msg)
