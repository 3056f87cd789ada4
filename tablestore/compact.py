"""Compaction: changes are folded into the root, bucket by bucket. It publishes nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from snapshot.delta import DataFile
from snapshot.errors import ConflictError, OutcomeUnknownError, UnavailableError
from snapshot.merge import BaseFile, ChangeFile, MergeEngine
from snapshot.parquet import removed_on_error
from snapshot.partitioned import PartitionedFiles
from snapshot.records import Snapshot
from snapshot.schema import BUCKET
from snapshot.spec import TableSpec
from snapshot.storage import Storage
from snapshot.table import MERGED_THROUGH, Layout, root_schema
from tablestore.opened import OpenedTable
from tablestore.plan import base_file

logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class BucketTask:
    """One bucket's part of a compaction. Picklable."""

    storage: Storage
    spec: TableSpec
    bucket: int
    base: tuple[BaseFile, ...]
    changes: tuple[ChangeFile, ...]
    target_bytes: int


RunTasks = Callable[[Sequence[BucketTask], Callable[[BucketTask], str]], list[str]]
"""Runs the second on each of the first, each at least once, and returns the results in order."""


def compact(table: OpenedTable, run_tasks: RunTasks) -> Snapshot | None:
    """Fold all committed changes into the root.

    1. Merge each bucket that has changes into new files. A crash leaves files that nothing points at.
    2. Commit them to the root in place of the bucket's old files, with ``merged-through``. Readers find the same rows
       before and after. A crash after it leaves changes listed that readers ignore.
    3. Drop the folded changes from the newest state of the commit table; the next compaction does it otherwise.

    Returns:
        The maintenance snapshot of step 3; None when there was nothing to fold, or another compaction was faster.

    Raises:
        UnavailableError: the file system refused; readers find the same rows as before.
    """
    table = table.refreshed()
    files = table.files
    if not table.spec.has_key:
        return None
    layout = files.layout(files.latest())
    if not layout.changes:
        _commit_columns(table, layout)
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
        if _has_columns(table):
            files.root.commit(layout.root_version + 1, add=added, remove=removed, info=info)
        else:
            columns = root_schema(table.spec)
            files.root.alter(
                layout.root_version + 1, schema=columns, configuration={}, info=info, add=added, remove=removed
            )
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


def _commit_columns(table: OpenedTable, layout: Layout) -> None:
    """Give the root the table's columns, where they were changed and nothing has to be folded."""
    if _has_columns(table):
        return
    try:
        info = {"kind": "alter", MERGED_THROUGH: layout.merged_through}
        columns = root_schema(table.spec)
        table.files.root.alter(layout.root_version + 1, schema=columns, configuration={}, info=info)
    except ConflictError:
        logger.info("table %s: another compaction was faster, and has given the root its columns", table.path)


def _has_columns(table: OpenedTable) -> bool:
    """Tell whether the root has the table's columns."""
    return not table.spec.past or table.files.root.has_schema(root_schema(table.spec))


def compact_if_due(table: OpenedTable, run_tasks: RunTasks) -> Snapshot | None:
    """Compact when the changes have grown past the table's limits; cheap when they have not.

    It follows a write that is done, so a file system that refuses is a warning here: the next write tries again.
    """
    limits = table.options.compaction
    if not table.spec.has_key or not limits.auto:
        return None
    newest = table.files.latest()
    _, merged = table.files.root_for(newest)
    # The snapshot that a compaction itself makes holds no changes.
    commits = newest - merged - (1 if merged else 0)
    due = commits >= limits.commits or (
        commits % limits.min_commits == 0 and _is_past_ratio(table, newest, limits.ratio)
    )
    try:
        return compact(table, run_tasks) if due else None
    except (UnavailableError, OutcomeUnknownError) as error:
        logger.warning("table %s: the write is done; compacting after it failed: %s", table.path, error)
        return None


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
        task.storage, task.spec, prefix=f"part-{task.bucket:05d}", target_bytes=task.target_bytes, bucket=task.bucket
    )
    with (
        removed_on_error(writer.writers, task.storage),
        MergeEngine(task.spec.arrow, task.spec.primary_key, stored=task.spec.stored, filesystem=filesystem) as engine,
    ):
        for batch in engine.merged(task.base, task.changes):
            writer.write(batch)
        return json.dumps([asdict(file) for file in writer.close()])
