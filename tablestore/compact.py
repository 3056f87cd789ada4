"""Compaction: changes are folded into the root, bucket by bucket. It publishes nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from snapshot.delta import DataFile
from snapshot.errors import ConflictError, OutcomeUnknownError, UnavailableError
from snapshot.layout import Layout
from snapshot.merge import BaseFile, ChangeFile, MergeEngine
from snapshot.parquet import removed_on_error
from snapshot.partitioned import PartitionedFiles
from snapshot.records import Snapshot
from snapshot.schema import BUCKET
from snapshot.spec import TableSpec
from snapshot.storage import Storage
from snapshot.table import MERGED_THROUGH
from tablestore.compact_files import groups_of, replace_files
from tablestore.opened import OpenedTable
from tablestore.plan import base_file

logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class BucketTask:
    """One bucket's part of a compaction; without a key, one group of files. Picklable."""

    storage: Storage
    spec: TableSpec
    bucket: int | None
    base: tuple[BaseFile, ...]
    changes: tuple[ChangeFile, ...]
    target_bytes: int


RunTasks = Callable[[Sequence[BucketTask], Callable[[BucketTask], str]], list[str]]
"""Runs the second on each of the first, each at least once, and returns the results in order."""


def compact(table: OpenedTable, run_tasks: RunTasks) -> Snapshot | None:
    """Fold all committed changes into the root; without a key, put small files together (``_compact_files``).

    1. Merge each bucket that has changes into new files. A crash leaves files that nothing points at.
    2. Commit them to the root in place of the bucket's old files, with ``merged-through``. Readers find the same rows
       before and after. A crash after it leaves changes listed that readers ignore.
    3. Drop the folded changes from the newest state of the commit table; the next compaction does it otherwise.

    Returns:
        The maintenance snapshot of step 3; None when there was nothing to fold, or another compaction was faster.

    Raises:
        UnavailableError: the file system refused; readers find the same rows as before.
    """
    files = table.files
    if not table.spec.has_key:
        return _compact_files(table, run_tasks)
    layout = files.layout(files.latest())
    if not layout.changes:
        return None
    # Step 1.
    tasks = _tasks(table, layout)
    results = run_tasks(tasks, _merge_bucket)
    added = [DataFile(**each) for result in results for each in json.loads(result)]
    # Step 2.
    touched = {str(task.bucket) for task in tasks}
    removed = [f for f in layout.base if f.partition[BUCKET] in touched]
    info = {"kind": "compact", MERGED_THROUGH: layout.snapshot}
    try:
        files.root.commit(layout.root_version + 1, add=added, remove=removed, info=info)
    except ConflictError:
        logger.info("table %s: another compaction was faster; this one's files are dropped", table.path)
        files.storage.delete(*[f.path for f in added])
        return None
    except UnavailableError:
        files.storage.delete(*[f.path for f in added])
        raise
    # Step 3.
    version = files.trim()
    return None if version is None else files.snapshot(version)


def compact_if_due(table: OpenedTable, run_tasks: RunTasks) -> Snapshot | None:
    """Compact when the changes have grown past the table's limits; cheap when they have not.

    It follows a write that is done, so a file system that refuses is a warning here: the next write tries again.
    """
    if not table.options.compaction.auto:
        return None
    newest = table.files.latest()
    due = _is_due(table, newest) if table.spec.has_key else newest % table.options.compaction.commits == 0
    try:
        return compact(table, run_tasks) if due else None
    except (UnavailableError, OutcomeUnknownError, ConflictError) as error:
        logger.warning("table %s: the write is done; compacting after it failed: %s", table.path, error)
        return None


def _compact_files(table: OpenedTable, run_tasks: RunTasks) -> Snapshot | None:
    """Put the rows of small files of a partition together.

    1. Write them into new files, one task a group. A crash leaves files that nothing points at.
    2. Commit the new files in place of the old ones; whoever has taken out one of those meanwhile was faster.

    Raises:
        UnavailableError: the file system refused; readers find the same rows as before.
        ConflictError: other writers committed first too often; readers find the same rows as before.
    """
    files, target_bytes = table.files, table.options.write.target_file_size_bytes
    groups = groups_of(files.root.files(), target_bytes)
    if not groups:
        return None
    # Step 1.
    tasks = [
        BucketTask(files.storage, table.spec, None, tuple(base_file(files, f) for f in group), (), target_bytes)
        for group in groups
    ]
    results = run_tasks(tasks, _merge_bucket)
    added = [DataFile(**each) for result in results for each in json.loads(result)]
    # Step 2.
    try:
        version = replace_files(files.root, added, [file for group in groups for file in group])
    except (UnavailableError, ConflictError):
        files.storage.delete(*[f.path for f in added])
        raise
    if version is None:
        logger.info("table %s: somebody has taken out files; this compaction's are dropped", table.path)
        files.storage.delete(*[f.path for f in added])
        return None
    return files.snapshot(version)


def _is_due(table: OpenedTable, newest: int) -> bool:
    limits = table.options.compaction
    _, merged = table.files.root_for(newest)
    # The snapshot that a compaction itself makes holds no changes.
    commits = newest - merged - (1 if merged else 0)
    return commits >= limits.commits or (
        commits % limits.min_commits == 0 and _is_past_ratio(table, newest, limits.ratio)
    )


def _is_past_ratio(table: OpenedTable, snapshot: int, ratio: float) -> bool:
    layout = table.files.layout(snapshot)
    return sum(f.rows for f in layout.changes) > ratio * sum(f.rows for f in layout.base)


def _tasks(table: OpenedTable, layout: Layout) -> Sequence[BucketTask]:
    buckets = sorted({int(f.partition[BUCKET] or 0) for f in layout.changes})
    return [
        BucketTask(
            storage=table.files.storage,
            spec=table.spec,
            bucket=bucket,
            base=tuple(base_file(table.files, f) for f in layout.base if f.partition[BUCKET] == str(bucket)),
            changes=tuple(table.files.change_file(f) for f in layout.changes if f.partition[BUCKET] == str(bucket)),
            target_bytes=table.options.write.target_file_size_bytes,
        )
        for bucket in buckets
    ]


def _merge_bucket(task: BucketTask) -> str:
    """Write a bucket's merged rows; runs in a Spark task."""
    filesystem = None if task.storage.is_local else task.storage.filesystem
    writer = PartitionedFiles(
        task.storage,
        task.spec,
        prefix=f"part-{task.bucket or 0:05d}",
        target_bytes=task.target_bytes,
        bucket=task.bucket,
    )
    with (
        removed_on_error(writer.writers, task.storage),
        MergeEngine(task.spec.arrow, task.spec.primary_key, filesystem=filesystem) as engine,
    ):
        for batch in engine.merged(task.base, task.changes):
            writer.write(batch)
        return json.dumps([asdict(file) for file in writer.close()])
