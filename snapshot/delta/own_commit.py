"""Finds out that another Delta writer has replaced a commit, which a writer does that checks and then writes."""

from __future__ import annotations

from collections.abc import Callable

from snapshot.delta.entries import Commit
from snapshot.errors import DataLostError


class OwnCommit:
    """The newest commit that a process has made in a log, compared with each later look at the log."""

    def __init__(self) -> None:
        self._made: Commit | None = None
        self._replaced_by: Commit | None = None

    def made(self, commit: Commit) -> None:
        """Remember a commit that has landed."""
        self._made = commit

    def compare(self, found: Commit) -> None:
        """Remember that the commit was replaced, if the log has another one under its version."""
        made = self._made
        if made is not None and found.version == made.version and found.fingerprint != made.fingerprint:
            self._replaced_by = found

    def look(self, entry: Callable[[int], Commit | None]) -> None:
        """Compare the commit with its entry in the log, if that has not expired."""
        found = None if self._made is None else entry(self._made.version)
        if found is not None:
            self.compare(found)

    def check(self, root: str) -> None:
        """Raise `DataLostError`, once, if the commit was replaced."""
        made, found = self._made, self._replaced_by
        if made is not None and found is not None:
            self._made = self._replaced_by = None
            msg = f"{replaced(root, found, str(made.info.get('kind')))} This write was not committed."
            raise DataLostError(msg)


def replaced(root: str, found: Commit, kind: str) -> str:
    """Return the message about a commit of the store that another one has replaced."""
    return (
        f"{root}: version {found.version}, which this process committed ({kind}), was replaced by another Delta writer "
        f"({found.operation or 'no operation given'}): what it changed is not in the table. That writer checks whether "
        "a version exists and then writes it, or an old copy of the table was restored. Stop that writer, or make it "
        "put versions only if absent (docs/guide/object_stores.md); then repeat what that version did."
    )
