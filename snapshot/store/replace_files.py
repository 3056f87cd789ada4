"""Commits files that replace others of a Delta table with the same content."""

from __future__ import annotations

from collections.abc import Sequence

from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import NOT_COMMITTED, ConflictError
from snapshot.store.commit import ATTEMPTS_MAX


def replace_files(log: DeltaLog, added: Sequence[DataFile], removed: Sequence[DataFile]) -> int | None:
    """Commit files that replace others with the same rows; concurrent appends do not conflict.

    The commit has ``dataChange=false``, so neither the log nor a stream sees it. Earlier snapshots still list the old
    files. Files that are certainly not committed are deleted.

    Returns:
        The committed version; None if another writer has removed one of the old files.

    Raises:
        ConflictError: other writers committed first too often.
    """
    try:
        version = _commit(log, added, removed)
    except NOT_COMMITTED:
        log.storage.delete(*[file.path for file in added])
        raise
    if version is None:
        log.storage.delete(*[file.path for file in added])
    return version


def _commit(log: DeltaLog, added: Sequence[DataFile], removed: Sequence[DataFile]) -> int | None:
    for _ in range(ATTEMPTS_MAX):
        newest = log.version()
        active = {file.path for file in log.files()}
        if any(file.path not in active for file in removed):
            return None
        info = {"kind": "compact", "rows": 0}
        try:
            log.commit(newest + 1, add=added, remove=removed, info=info, data_change=False)
        except ConflictError:
            continue
        return newest + 1
    msg = f"{log.storage.root}: other writers committed first {ATTEMPTS_MAX} times in a row; compact again."
    raise ConflictError(msg)
