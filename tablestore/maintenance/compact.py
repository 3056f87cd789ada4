"""Compaction: merges changes into the base table, bucket by bucket. It publishes nothing.

In a table without a primary key, compaction rewrites small files of a partition into larger ones.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from log_system.base import TaskRunner
from snapshot.delta.log import DataFile
from snapshot.errors import NOT_COMMITTED, ConflictError
from snapshot.merge.merge_reader import BaseFile, ChangeFile
from snapshot.records import Snapshot
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SNAPSHOT
from snapshot.staging.parquet_writer import TOMBSTONES, PartitionedFiles, removed_on_error
from snapshot.staging.tombstones import GatherTask, gather, is_gathered
from snapshot.storage import Storage
from snapshot.store.lookup import base_file, by_bucket, files_by_bucket
from snapshot.store.replace_files import replace_files
from snapshot.store.snapshot_files import SnapshotFiles, base_schema, merged_info
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.maintenance.minor_compaction import combine, fewest, runs_to_combine
from tablestore.maintenance.run_tasks import written_by
from tablestore.options.value_types import FOREVER
from tablestore.read.splits import MergedSplit

SMALL_PART = 0.75
"""Files smaller than this fraction of the target size are rewritten."""


def groups_of(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Group the small files of each partition into groups of about the target size, each of at least two files."""
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


logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class BucketTask:
    """The compaction of one bucket or, in a table without a key, of one group of files. Picklable."""

    storage: Storage
    spec: TableSpec
    bucket: int | None
    base: tuple[BaseFile, ...]
    changes: tuple[ChangeFile, ...]
    target_bytes: int


def compact(table: TableContext, run_tasks: TaskRunner) -> Snapshot | None:
    """Compact all committed changes into the base table; without a key, combine small files (``_compact_files``).

    1. Merge each bucket that has changes into new files. A crash leaves orphan files.
    2. Commit them to the base table in place of the bucket's old files, with ``merged-through``. Readers see the same
       rows before and after. A crash after this step leaves change files listed, which readers ignore.
    3. Remove the compacted changes from the newest state of the commit table; after a crash, the next compaction does
       this. The same commit replaces several tombstone files of a bucket with one.

    Returns:
        The maintenance snapshot of step 3; None if there was nothing to compact or another compaction committed first.

    Raises:
        UnavailableError: a file system operation failed; readers see the same rows as before.
    """
    files = table.files
    if not table.spec.has_key:
        return _compact_files(table, run_tasks)
    layout = files.layout(files.latest())
    # Use the columns of exactly this snapshot, even if a concurrent schema change adds or drops some: its files have no
    # values for the added columns and still have those of the dropped ones.
    spec = files.spec_of(layout.snapshot)
    if not layout.changes:
        _commit_columns(table, spec, layout)
        return None
    # Step 1.
    tasks = _tasks(table, spec, layout)
    added = written_by(run_tasks, tasks, _merge_bucket, files.storage)
    # Step 2.
    touched = {str(task.bucket) for task in tasks}
    removed = [f for f in layout.base if f.partition[BUCKET] in touched]
    info = merged_info("compact", layout.snapshot)
    try:
        _commit_base(files, spec, layout.root_version + 1, info, add=added, remove=removed)
    except ConflictError:
        logger.info("table %s: another compaction committed first; the files of this one are deleted", table.path)
        files.storage.delete(*[f.path for f in added])
        return None
    except NOT_COMMITTED:
        files.storage.delete(*[f.path for f in added])
        raise
    # Step 3.
    gathered, scattered = _gather_tombstones(table, layout, run_tasks)
    version = files.trim(add=gathered, remove=scattered)
    return None if version is None else files.snapshot(version)


def _commit_base(
    files: TableFiles,
    spec: TableSpec,
    version: int,
    info: Mapping[str, Any],
    *,
    add: Sequence[DataFile] = (),
    remove: Sequence[DataFile] = (),
) -> None:
    """Commit a version of the base table and, if it lacks the table's current schema, update its schema."""
    columns = base_schema(spec)
    if not spec.past or files.base_table.has_schema(columns):
        files.base_table.commit(version, add=add, remove=remove, info=info)
    else:
        files.base_table.alter(version, columns, configuration={}, info=info, add=add, remove=remove)


def _commit_columns(table: TableContext, spec: TableSpec, layout: SnapshotFiles) -> None:
    """Update the base table's schema after a schema change, when there are no changes to compact."""
    files = table.files
    if not spec.past or files.base_table.has_schema(base_schema(spec)):
        return
    try:
        info = merged_info("alter", layout.merged_through)
        _commit_base(files, spec, layout.root_version + 1, info)
    except ConflictError:
        logger.info(
            "table %s: another compaction committed first and has updated the columns of the base table", table.path
        )


def compact_if_due(table: TableContext, run_tasks: TaskRunner, checked: int | None = None) -> Snapshot | None:
    """Compact if the changes exceed the table's limits, or combine small change files; cheap if neither is due.

    The newest snapshot is that of the table's last look. ``checked`` was the newest one when this caller checked last;
    others may have committed several since.
    """
    if not table.options.compaction.auto:
        return None
    if table.spec.has_key:
        return _compact_changes_if_due(table, run_tasks)
    return _compact_files_if_due(table, run_tasks, checked)


def _compact_files_if_due(table: TableContext, run_tasks: TaskRunner, checked: int | None) -> Snapshot | None:
    """Compact if a multiple of ``compaction.commits`` has been reached since the last check, by default just now."""
    newest, commits = table.files.latest(fresh=False), table.options.compaction.commits
    is_due = newest // commits > (newest - 1 if checked is None else checked) // commits
    return compact(table, run_tasks) if is_due else None


def _compact_changes_if_due(table: TableContext, run_tasks: TaskRunner) -> Snapshot | None:
    limits, files = table.options.compaction, table.files
    newest, commits = files.latest(fresh=False), 0
    for fresh in (False, True):
        # Others may have compacted since the last look; only what is due by that look is worth another one.
        merged = files.base_version(newest, fresh=fresh).merged_through
        # Do not count the snapshot made by the previous compaction, which contains no changes.
        commits = newest - merged - (1 if merged else 0)
        if commits < min(limits.commits, fewest(limits.min_commits)):
            return None
    if commits >= limits.commits:
        return compact(table, run_tasks)
    layout = files.layout(newest, fresh=False)
    if commits >= limits.min_commits and sum(file.rows for file in layout.changes) > limits.ratio * sum(
        file.rows for file in layout.base
    ):
        return compact(table, run_tasks)
    small = runs_to_combine(layout, limits.min_commits)
    version = combine(table, layout, small, run_tasks) if small else None
    return None if version is None else files.snapshot(version)


def _compact_files(table: TableContext, run_tasks: TaskRunner) -> Snapshot | None:
    """Combine the small files of each partition.

    1. Write their rows into new files, one task per group. A crash leaves orphan files.
    2. Commit the new files in place of the old ones. If another writer has removed an old file in the meantime, drop
       the new files instead.

    Returns:
        The snapshot; None if there was nothing to combine or another writer removed an old file.

    Raises:
        UnavailableError: a file system operation failed; readers see the same rows as before.
        ConflictError: other writers committed first too often; readers see the same rows as before.
    """
    files, target_bytes = table.files, table.options.write.target_file_size_bytes
    newest = files.latest()
    groups = groups_of(files.base_table.files(newest), target_bytes)
    if not groups:
        return None
    # Step 1.
    spec = files.spec_of(newest).with_columns_of_others(files.base_table.schema_json()).in_files
    tasks = [
        BucketTask(files.storage, spec, None, tuple(base_file(files, f) for f in group), (), target_bytes)
        for group in groups
    ]
    added = written_by(run_tasks, tasks, _merge_bucket, files.storage)
    # Step 2.
    version = replace_files(files.base_table, added, [file for group in groups for file in group])
    if version is None:
        logger.info("table %s: another process has removed files; the files of this compaction are deleted", table.path)
        return None
    return files.snapshot(version)


def _tasks(table: TableContext, spec: TableSpec, layout: SnapshotFiles) -> Sequence[BucketTask]:
    target_bytes = table.options.write.target_file_size_bytes
    return [
        BucketTask(table.files.storage, spec, bucket, files.base, files.changes, target_bytes)
        for bucket, files in files_by_bucket(table.files, layout).items()
        if files.changes
    ]


def _gather_tombstones(
    table: TableContext, layout: SnapshotFiles, run_tasks: TaskRunner
) -> tuple[list[DataFile], list[DataFile]]:
    """Combine the tombstone files of each bucket; return the new files and the files they replace."""
    if not table.rule.buries:
        return [], []
    several = [(bucket, files) for bucket, files in sorted(by_bucket(layout.tombstones).items()) if len(files) > 1]
    kept_ms, storage = table.options.merge.delete_retention_ms, table.files.log.storage
    forgets = bool(several) and kept_ms != FOREVER
    written = {file.name: file.modified_ms for file in storage.files(TOMBSTONES)} if forgets else {}
    staged_after_ms = storage.now_ms() - kept_ms if forgets else 0
    tasks = [
        GatherTask(
            storage=storage,
            spec=table.spec,
            rule=table.rule,
            bucket=bucket,
            files=tuple(files),
            written_ms=max((written.get(file.path, 0) for file in files if not is_gathered(file)), default=0),
            staged_after_ms=staged_after_ms,
            target_bytes=table.options.write.target_file_size_bytes,
        )
        for bucket, files in several
    ]
    gathered = written_by(run_tasks, tasks, gather, storage) if tasks else []
    scattered = [file for task in tasks for file in task.files]
    newest = str(layout.snapshot)
    return [replace(file, partition={**file.partition, SNAPSHOT: newest}) for file in gathered], scattered


def _merge_bucket(task: BucketTask) -> list[DataFile]:
    """Write the merged rows of a bucket or group of files. Runs in a Spark task."""
    storage, spec = task.storage, task.spec
    merged = MergedSplit(
        storage, spec.arrow, spec.scanned, spec.primary_key, task.base, task.changes, None, None, emit_changes=True
    )
    writer = PartitionedFiles(
        storage, spec, prefix=f"part-{task.bucket or 0:05d}", target_bytes=task.target_bytes, bucket=task.bucket
    )
    with removed_on_error(writer.writers, storage):
        for batch in merged.read():
            writer.write(batch)
        return writer.close()
