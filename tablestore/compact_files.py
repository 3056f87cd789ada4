"""Which small files of a table without a key are put together, and the commit that does it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from snapshot.commit import ATTEMPTS_MAX
from snapshot.delta import DataFile, DeltaLog
from snapshot.errors import ConflictError

SMALL_PART = 0.75
"""Files below this part of the target size are worth rewriting."""


def groups_of(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Put the small files of each partition into groups of about the target size, of two files at least."""
    partitions: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.size < SMALL_PART * target_bytes:
            partitions[tuple(sorted(file.partition.items()))].append(file)
    groups: list[list[DataFile]] = []
    for held in partitions.values():
        size = target_bytes
        for file in sorted(held, key=lambda each: each.size):
            if size + file.size > target_bytes:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size
    return [group for group in groups if len(group) > 1]


def replace_files(log: DeltaLog, added: Sequence[DataFile], removed: Sequence[DataFile]) -> int | None:
    """Commit files in place of others that hold the same rows; appends in between do not matter.

    The commit changes no data (``dataChange`` is false), so neither the log nor a stream sees it, and snapshots before
    it still list the old files.

    Returns:
        The version; None when somebody has taken out one of the old files.

    Raises:
        ConflictError: other writers committed first too often.
    """
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
