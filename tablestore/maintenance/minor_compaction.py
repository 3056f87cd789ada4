"""Minor compaction: combines the change files of several snapshots into one with the last change of each key.

It leaves the base table alone, so it costs what the combined changes cost, not what the table does, and it keeps reads
fast between two compactions. A snapshot is read from the files that its own version of the commit table lists, so the
earlier snapshots keep theirs, and publishing reads the files that a snapshot's own commit added.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from log_system.base import TaskRunner
from snapshot.delta.log import DataFile
from snapshot.merge.merge_reader import ChangeFile, MergeReader
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SNAPSHOT, relabelled
from snapshot.staging.parquet_writer import ParquetFiles, removed_on_error
from snapshot.staging.stage import CHANGES, stored_change_schema
from snapshot.storage import Storage
from snapshot.store.lookup import by_bucket
from snapshot.store.replace_files import replace_files
from snapshot.store.snapshot_files import SnapshotFiles, combined_prefix, snapshots_of
from tablestore.context import TableContext
from tablestore.maintenance.run_tasks import written_by

logger = logging.getLogger("tablestore")
_ROWS_MAX = 1_000_000
"""Maximum number of changes that one minor compaction reads; larger ones are left to the compaction by ratio."""
_SMALL_ROWS = 5_000
"""Runs of fewer rows take longer to combine than to write, so that more of them are combined at once."""
_GROWTH = 2
"""An older run is combined too if it has at most this many times the rows of the newer ones, so a change is written
again only about as often as the logarithm of the number of runs."""


@dataclass(frozen=True)
class MinorTask:
    """The minor compaction of one bucket. Picklable.

    Attributes:
        storage: the table's root folder.
        spec: the table, with the columns of the newest combined snapshot.
        bucket: the bucket.
        first: the first snapshot whose changes are combined.
        changes: the bucket's change files.
        target_bytes: size at which a file is finished.
    """

    storage: Storage
    spec: TableSpec
    bucket: int
    first: int
    changes: tuple[ChangeFile, ...]
    target_bytes: int


def runs_to_combine(layout: SnapshotFiles, runs_min: int) -> list[DataFile]:
    """Return the change files to combine: the newest runs, from one snapshot on; empty if there are too few.

    A run is the files of one snapshot, or of one minor compaction.

    Args:
        layout: the files of the newest snapshot.
        runs_min: the number of runs from which on they are combined, half of it where they are not small; at least 2.
    """
    runs: dict[int, list[DataFile]] = {}
    for file in layout.changes:
        if file.rows < 0:
            return []
        runs.setdefault(int(file.partition[SNAPSHOT] or 0), []).append(file)
    newest = [(sum(file.rows for file in run), run) for _, run in sorted(runs.items(), reverse=True)]
    are_small = any(more < _SMALL_ROWS for more, _ in newest[: fewest(runs_min)])
    if len(runs) < max(2, runs_min if are_small else fewest(runs_min)):
        return []
    chosen: list[list[DataFile]] = []
    rows = 0
    for more, run in newest:
        is_newer = len(chosen) < max(2, len(runs) // 2)
        if rows + more > _ROWS_MAX or not (is_newer or more <= _GROWTH * rows):
            break
        chosen.append(run)
        rows += more
    return [file for run in chosen for file in run] if len(chosen) >= max(2, len(runs) // 2) else []


def fewest(runs_min: int) -> int:
    """Return the number of runs below which none are combined, whatever their size."""
    return (runs_min + 1) // 2


def combine(table: TableContext, layout: SnapshotFiles, files: Sequence[DataFile], run_tasks: TaskRunner) -> int | None:
    """Replace change files in the newest state of the commit table by one with the last change of each key per bucket.

    1. Write the new files, a task for each bucket. A crash leaves orphan files.
    2. Commit them in place of the old ones, as a snapshot without changes. If another process has removed an old file
       in the meantime (a compaction), remove the new files instead.

    ``files`` are all change files from one snapshot on, as ``runs_to_combine`` returns them.

    Returns:
        The snapshot; None if the old files were gone.

    Raises:
        UnavailableError: a file system operation failed; readers see the same rows as before.
        ConflictError: other writers committed first too often; readers see the same rows as before.
    """
    store = table.files
    covered = [snapshots_of(file) for file in files]
    first, last = min(each.start for each in covered), max(each.stop for each in covered) - 1
    # Step 1.
    tasks = [
        MinorTask(
            storage=store.storage,
            spec=store.spec_of(layout.snapshot),
            bucket=bucket,
            first=first,
            changes=tuple(map(store.change_file, held)),
            target_bytes=table.options.write.target_file_size_bytes,
        )
        for bucket, held in sorted(by_bucket(files).items())
    ]
    written = written_by(run_tasks, tasks, _combine_bucket, store.log.storage)
    added = [replace(file, partition={**file.partition, SNAPSHOT: str(last)}) for file in written]
    # Step 2.
    version = replace_files(store.log, added, files)
    if version is None:
        logger.info("table %s: another compaction has removed change files; those of this one are deleted", table.path)
    return version


def _combine_bucket(task: MinorTask) -> list[DataFile]:
    """Write the last change of each key of a bucket. Runs in a task."""
    schema = stored_change_schema(task.spec)
    writer = ParquetFiles(
        task.storage.child(CHANGES),
        schema,
        prefix=combined_prefix(task.bucket, task.first),
        partition={BUCKET: str(task.bucket)},
        target_bytes=task.target_bytes,
        sought=task.spec.primary_key,
        differences=True,
    )
    spec, files = task.spec, task.storage.filesystem
    engine = MergeReader(spec.arrow, spec.primary_key, stored=spec.scanned, filesystem=files)
    with removed_on_error({0: writer}, task.storage), engine:
        for batch in engine.last_changes(task.changes):
            writer.write(relabelled(batch, schema))
        return writer.close()
