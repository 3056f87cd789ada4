"""Writes that depend on what the table holds: whether a commit in between makes them wrong, and beginning again."""

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


class StaleError(ConflictError):
    """Somebody committed after the snapshot that a write was made from, or changed the table's columns."""


@dataclass(frozen=True)
class Replaced:
    """Files of an append table that a verb takes out.

    Attributes:
        deleted: those of which no row is left.
        rewritten: those whose other rows are in staged files.
        base: the snapshot in which they were found.
    """

    deleted: Sequence[DataFile]
    rewritten: Sequence[DataFile]
    base: int

    @property
    def files(self) -> list[DataFile]:
        """All of them."""
        return [*self.deleted, *self.rewritten]

    def replacement(self, staged: Sequence[StagedFile]) -> Replacement:
        """Say in the commit which files hold its changes; ``staged`` are those that come in."""
        by_role: dict[Role, list[DataFile]] = {role: [] for role in Role}
        for each in sorted(staged, key=lambda s: s.file.path.rpartition("/")[2]):
            by_role[each.role].append(each.file)
        told = listed(deleted=self.deleted, changed=by_role[Role.CHANGES], inserted=by_role[Role.NEW])
        return Replacement(self.files, told)


def check_columns_of(files: TableFiles, since: int, then: Callable[[int], None] | None, newest: int) -> None:
    """See that a table has the columns that rows were staged for.

    Args:
        files: the table.
        since: the snapshot that brought those columns.
        then: what else is to be seen.
        newest: the newest snapshot.

    Raises:
        StaleError: it has others.
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
    """See that nobody has changed rows of a key table since a snapshot.

    Raises:
        StaleError: somebody has.
    """
    if any(log.commit_at(v).info.get("kind") not in MAINTENANCE for v in range(base + 1, newest + 1)):
        raise StaleError


def check_files(log: DeltaLog, base: int, newest: int) -> None:
    """See that nobody has taken files out of an append table since a snapshot, were it only to rewrite them.

    Raises:
        StaleError: somebody has.
    """
    between = map(log.commit_at, range(base + 1, newest + 1))
    if any(found.removed or found.rewritten for found in between):
        raise StaleError


def check_same(log: DeltaLog, base: int, newest: int) -> None:
    """See that an append table holds the very rows that it held in a snapshot, in the very files.

    Raises:
        StaleError: somebody has added rows, or taken files out.
    """
    check_rows(log, base, newest)
    check_files(log, base, newest)


def until_fresh(path: str, attempt: Callable[[], Snapshot | None], *, tries_max: int) -> Snapshot | None:
    """Try a write until nobody commits in between.

    Args:
        path: the table's folder, for the message.
        attempt: stages and commits; removes what it has staged where it raises ``StaleError``.
        tries_max: how often.

    Raises:
        ConflictError: somebody did each time; nothing was committed.
    """
    for number in range(tries_max):
        try:
            return attempt()
        except StaleError:
            time.sleep(random.uniform(0, _WAIT_SECONDS * number))
    msg = (
        f"table {path!r}: other writers committed {tries_max} times while the replaced rows were looked up; nothing "
        "was written. Try again when fewer write; where many upsert at once, do without changelog-producer='lookup'."
    )
    raise ConflictError(msg)
