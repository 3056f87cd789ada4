"""Finds out that a commit is gone.

Another Delta writer has replaced it, which a writer does that checks and then writes; or an older copy of the table was
restored.
"""

from __future__ import annotations

from collections.abc import Callable

from snapshot.delta.entries import Commit
from snapshot.errors import DataLostError


class OwnCommit:
    """The newest commit that a process has made in a log, compared with each later look at the log."""

    def __init__(self) -> None:
        self._made: Commit | None = None
        self._replaced_by: Commit | None = None
        self._is_gone = False

    def made(self, commit: Commit) -> None:
        """Remember a commit that has landed."""
        self._made, self._is_gone = commit, False

    def compare(self, found: Commit) -> None:
        """Remember that the commit was replaced, if the log has another one under its version."""
        made = self._made
        if made is None or found.version != made.version:
            return
        if found.fingerprint != made.fingerprint:
            self._replaced_by = found
        self._is_gone = False

    def look(self, entry: Callable[[int], Commit | None], newest: int) -> None:
        """Compare the commit with its entry in the log, if that has not expired; ``newest`` is the log's version."""
        if self._made is None:
            return
        found = entry(self._made.version)
        if found is not None:
            self.compare(found)
        elif newest < self._made.version:
            self._is_gone = True

    def check(self, root: str) -> None:
        """Raise `DataLostError` if the commit is gone or, once, if it was replaced.

        While it is gone, a log may hold it, which only a handle that is opened again compares with the table.
        """
        made, found = self._made, self._replaced_by
        if made is None or (found is None and not self._is_gone):
            return
        if found is not None:
            self._made = self._replaced_by = None
        kind = str(made.info.get("kind"))
        lost = _restored(root, made, kind) if found is None else replaced(root, found, kind)
        msg = f"{lost} This write was not committed."
        raise DataLostError(msg)


def replaced(root: str, found: Commit, kind: str) -> str:
    """Return the message about a commit of the store that another one has replaced."""
    return (
        f"{root}: version {found.version}, which this process committed ({kind}), was replaced by another Delta writer "
        f"({found.operation or 'no operation given'}): what it changed is not in the table. That writer checks whether "
        "a version exists and then writes it, or an old copy of the table was restored. Stop that writer, or make it "
        "put versions only if absent (docs/guide/object_stores.md); then repeat what that version did."
    )


def _restored(root: str, made: Commit, kind: str) -> str:
    return (
        f"{root}: version {made.version}, which this process committed ({kind}), is gone, and all that may have "
        "followed it: the table was set back (an old copy was restored?). Bring the newest commits back, or open "
        "the table again and repeat what they did."
    )
