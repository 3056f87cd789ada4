"""Removal of orphans: files left by failed writers and expiries that no snapshot or tag refers to."""

from __future__ import annotations

from dataclasses import dataclass

from log_system.index import INDEX
from log_system.report import Progress
from snapshot.delta.entries import LOG
from snapshot.errors import InvalidInputError
from snapshot.messages import counted
from snapshot.staging.stage import CHANGES
from snapshot.storage import PROBE, StoredFile
from snapshot.store.garbage import known_before
from snapshot.store.tags import HOLD, TAGS
from tablestore.context import TableContext
from tablestore.maintenance.expire_snapshots import Age, before_ms
from tablestore.streaming.consumers import CONSUMERS

AGE = "1 d"
AGE_MS_MIN = 3_600_000
"""A younger file may belong to a writer that has not committed yet."""


@dataclass(frozen=True)
class OrphanReport:
    """The orphans that were found and, except in a dry run, removed.

    Attributes:
        path: the table's folder.
        dry_run: whether nothing was removed.
        files: the orphans' paths within the table's folder.
        bytes: their total size.
        young: number of unreferenced files that are too young to distinguish from those of a slow writer.
    """

    path: str
    dry_run: bool
    files: tuple[str, ...]
    bytes: int
    young: int

    def __str__(self) -> str:
        """Return the report as one line."""
        what = "found" if self.dry_run else "removed"
        young = f"; {self.young:,} are too young to distinguish from those of a slow writer" if self.young else ""
        return f"{self.path}: {what} {counted(len(self.files), 'unreferenced file')} of {self.bytes:,} bytes{young}."


def remove_orphans(
    table: TableContext, older_than: Age = AGE, *, dry_run: bool = False, progress: Progress | None = None
) -> OrphanReport:
    """Remove files that no snapshot or tag refers to.

    1. List the folders.
    2. Then read which files are committed. In this order, files committed after the listing are known too.
    3. Remove files that are unknown and old enough. After a crash, the next call removes the rest.

    Args:
        table: the table.
        older_than: only older files are removed, since a younger one may belong to a writer that has not committed yet.
        dry_run: only report what would be removed.
        progress: called with the number of files removed so far and the total.

    Raises:
        InvalidInputError: the age is less than an hour.
        UnavailableError: a file system operation failed.
    """
    # The store dates the files, too.
    now_ms = table.files.storage.now_ms(dry_run=dry_run)
    before = before_ms(older_than, now_ms, "remove_orphans: older_than")
    if before > now_ms - AGE_MS_MIN:
        msg = (
            f"remove_orphans: older_than={older_than!r}: expected an hour or more: a newer file may be one that a "
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
    """Return the stored data files, and what failed calls may have left: temporary files, and holds of tags."""
    storage = table.files.storage
    files = [file for folder in ("", CHANGES) for file in storage.files(folder, _is_own)]
    files = [file for file in files if file.name.endswith(".parquet") or file.name.startswith(PROBE)]
    for folder in (INDEX, TAGS, CONSUMERS, LOG, f"{CHANGES}/{LOG}"):
        files += [file for file in storage.files(folder) if file.name.endswith((".tmp", HOLD))]
    return files


def _is_own(folder: str) -> bool:
    """Return whether a folder belongs to the store or Delta, and is not a partition such as ``_bucket=0``."""
    return folder.startswith("_") and "=" not in folder


def _known(table: TableContext) -> set[str]:
    """Return every file that is named by a tag or by any remaining version of the Delta logs."""
    files = table.files
    known = {file.path for file in known_before(files.base_table, files.base_table.version() + 1)}
    if files.spec.has_key:
        known |= {f"{CHANGES}/{file.path}" for file in known_before(files.log, files.log.version() + 1)}
    # After the logs: what has been cut from them since it was tagged is in the tags by then.
    for tag in files.tags.keeping():
        known |= {file.path for file in tag.layout.base} | {f"{CHANGES}/{file.path}" for file in tag.layout.changes}
    return known
