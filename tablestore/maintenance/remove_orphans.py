"""Orphans: files in a table's folders that nothing points at, left by writers and expiries that died."""

from __future__ import annotations

import time
from dataclasses import dataclass

from log_system.index import INDEX
from snapshot.errors import InvalidInputError
from snapshot.staging.stage import CHANGES
from snapshot.storage import StoredFile
from snapshot.store.garbage import LOG, known_before
from snapshot.store.tags import TAGS
from tablestore.audit.log_inspection import Progress
from tablestore.context import TableContext
from tablestore.maintenance.expire_snapshots import Age, before_ms
from tablestore.streaming.consumers import CONSUMERS

AGE = "1 d"
AGE_MS_MIN = 3_600_000
"""Younger files may be those of a writer that is about to commit."""


@dataclass(frozen=True)
class OrphanReport:
    """What was found and, unless it was a dry run, removed.

    Attributes:
        path: the table's folder.
        dry_run: whether nothing was removed.
        files: the orphans, by their paths in the table's folder.
        bytes: their size.
        young: files that nothing points at and that are too young to be told from those of a slow writer.
    """

    path: str
    dry_run: bool
    files: tuple[str, ...]
    bytes: int
    young: int

    def __str__(self) -> str:
        """Show it in a line."""
        what = "found" if self.dry_run else "removed"
        young = f"; {self.young:,} are too young to be told from a slow writer's" if self.young else ""
        return f"{self.path}: {what} {len(self.files):,} files of {self.bytes:,} bytes that nothing points at{young}."


def remove_orphans(
    table: TableContext, older_than: Age = AGE, *, dry_run: bool = False, progress: Progress | None = None
) -> OrphanReport:
    """Remove files that nothing points at.

    1. List the folders.
    2. Only then read what is committed: what a writer commits in between is seen here.
    3. Remove what nobody knows and what is old enough. A crash leaves the rest to the next call.

    Args:
        table: the table.
        older_than: a file that was written later may be one that a slow writer is about to commit.
        dry_run: look only.
        progress: told how many files have been removed, of how many.

    Raises:
        InvalidInputError: the age is less than an hour.
        UnavailableError: the file system refused.
    """
    now_ms = int(time.time() * 1000)
    before = before_ms(older_than, now_ms, "remove_orphans: older_than")
    if before > now_ms - AGE_MS_MIN:
        msg = (
            f"remove_orphans: older_than={older_than!r}: expected an hour or more: a younger file may be one that a "
            "writer is about to commit."
        )
        raise InvalidInputError(msg)
    # Step 1.
    stored = _stored(table)
    # Step 2.
    known = _known(table)
    # Step 3.
    unknown = [file for file in stored if file.name not in known]
    orphans = [file for file in unknown if file.modified_ms < before]
    for number, file in enumerate(() if dry_run else orphans, start=1):
        table.files.storage.delete(file.name)
        if progress is not None:
            progress(number, len(orphans))
    return OrphanReport(
        table.path,
        dry_run,
        tuple(sorted(file.name for file in orphans)),
        sum(file.size for file in orphans),
        len(unknown) - len(orphans),
    )


def _stored(table: TableContext) -> list[StoredFile]:
    """List data files, and drafts of small files whose writers died."""
    storage = table.files.storage
    found = [file for folder in ("", CHANGES) for file in storage.files(folder, _is_own) if _is_data(file)]
    for folder in (INDEX, TAGS, CONSUMERS, LOG, f"{CHANGES}/{LOG}"):
        found += [file for file in storage.files(folder) if file.name.endswith(".tmp")]
    return found


def _is_own(folder: str) -> bool:
    """Tell folders of the store and of Delta from those of partitions, such as ``_bucket=0``."""
    return folder.startswith("_") and "=" not in folder


def _is_data(file: StoredFile) -> bool:
    return file.name.endswith(".parquet")


def _known(table: TableContext) -> set[str]:
    """Give every file that a version of Delta's log, as far back as it goes, or a tag names."""
    files = table.files
    tags = files.tags.all()
    known = {file.path for file in known_before(files.base_table, files.base_table.version() + 1)}
    known |= {file.path for tag in tags for file in tag.layout.base}
    if files.spec.has_key:
        changes = {file.path for file in known_before(files.log, files.log.version() + 1)}
        changes |= {file.path for tag in tags for file in tag.layout.changes}
        known |= {f"{CHANGES}/{path}" for path in changes}
    return known
