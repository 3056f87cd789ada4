"""Compaction: changes are folded into the root, bucket by bucket. It publishes nothing.

Which small files of a table without a key are put together, and the commit that does it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

from snapshot.delta.log import DataFile, DeltaLog
from snapshot.errors import ConflictError, TableReplacedError, UnavailableError
from snapshot.merge.merge_reader import BaseFile, ChangeFile, MergeReader
from snapshot.records import Snapshot
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import BUCKET, SNAPSHOT
from snapshot.staging.parquet_writer import removed_on_error
from snapshot.staging.partition_writer import PartitionedFiles
from snapshot.staging.tombstones import GatherTask, gather
from snapshot.storage import Storage
from snapshot.store.commit import ATTEMPTS_MAX
from snapshot.store.snapshot_files import SnapshotFiles
from snapshot.store.table_files import MERGED_THROUGH, TableFiles, root_schema
from tablestore.after_write import after_write
from tablestore.context import TableContext
from tablestore.options.value_types import FOREVER
from tablestore.read.split_planner import base_file

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


logger = logging.getLogger("tablestore")
T = TypeVar("T")


@dataclass(frozen=True)
class BucketTask:
    """One bucket's part of a compaction; without a key, one group of files. Picklable."""

    storage: Storage
    spec: TableSpec
    bucket: int | None
    base: tuple[BaseFile, ...]
    changes: tuple[ChangeFile, ...]
    target_bytes: int


class RunTasks(Protocol):
    """Runs the second on each of the first, each at least once, and returns the results in order."""

    def __call__(self, tasks: Sequence[T], work: Callable[[T], str], /) -> list[str]:
        """Run them."""
        ...


def compact(table: TableContext, run_tasks: RunTasks) -> Snapshot | None:
    """Fold all committed changes into the root; without a key, put small files together (``_compact_files``).

    1. Merge each bucket that has changes into new files. A crash leaves files that nothing points at.
    2. Commit them to the root in place of the bucket's old files, with ``merged-through``. Readers find the same rows
       before and after. A crash after it leaves changes listed that readers ignore.
    3. Drop the folded changes from the newest state of the commit table; the next compaction does it otherwise. In the
       same commit one file of tombstones a bucket takes the place of several.

    Returns:
        The maintenance snapshot of step 3; None when there was nothing to fold, or another compaction was faster.

    Raises:
        UnavailableError: the file system refused; readers find the same rows as before.
    """
    files = table.files
    if not table.spec.has_key:
        return _compact_files(table, run_tasks)
    layout = files.layout(files.latest())
    # The columns of that very snapshot: those that come meanwhile have no rows in it, those that go still have theirs.
    spec = files.spec_of(layout.snapshot)
    if not layout.changes:
        _commit_columns(table, spec, layout)
        return None
    # Step 1.
    tasks = _tasks(table, spec, layout)
    results = run_tasks(tasks, _merge_bucket)
    added = [DataFile(**each) for result in results for each in json.loads(result)]
    # Step 2.
    touched = {str(task.bucket) for task in tasks}
    removed = [f for f in layout.base if f.partition[BUCKET] in touched]
    info = {"kind": "compact", MERGED_THROUGH: layout.snapshot}
    try:
        _commit_root(files, spec, layout.root_version + 1, info, add=added, remove=removed)
    except ConflictError:
        logger.info("table %s: another compaction was faster; this one's files are dropped", table.path)
        files.storage.delete(*[f.path for f in added])
        return None
    except (UnavailableError, TableReplacedError):
        files.storage.delete(*[f.path for f in added])
        raise
    # Step 3.
    gathered, scattered = _gather_tombstones(table, layout, run_tasks)
    version = files.trim(add=gathered, remove=scattered)
    return None if version is None else files.snapshot(version)


def _commit_root(
    files: TableFiles,
    spec: TableSpec,
    version: int,
    info: Mapping[str, Any],
    *,
    add: Sequence[DataFile] = (),
    remove: Sequence[DataFile] = (),
) -> None:
    """Make a version of the root, with the table's columns."""
    columns = root_schema(spec)
    if not spec.past or files.base_table.has_schema(columns):
        files.base_table.commit(version, add=add, remove=remove, info=info)
    else:
        files.base_table.alter(version, schema=columns, configuration={}, info=info, add=add, remove=remove)


def _commit_columns(table: TableContext, spec: TableSpec, layout: SnapshotFiles) -> None:
    """Give the root the table's columns, where they were changed and nothing has to be folded."""
    files = table.files
    if not spec.past or files.base_table.has_schema(root_schema(spec)):
        return
    try:
        info = {"kind": "alter", MERGED_THROUGH: layout.merged_through}
        _commit_root(files, spec, layout.root_version + 1, info)
    except ConflictError:
        logger.info("table %s: another compaction was faster, and has given the root its columns", table.path)


def compact_if_due(table: TableContext, run_tasks: RunTasks) -> Snapshot | None:
    """Compact when the changes have grown past the table's limits; cheap when they have not.

    It follows a write that is done, so a failure is a warning; the next write tries again.
    """
    if not table.options.compaction.auto:
        return None

    def work() -> Snapshot | None:
        newest = table.files.latest()
        due = _is_due(table, newest) if table.spec.has_key else newest % table.options.compaction.commits == 0
        return compact(table, run_tasks) if due else None

    return after_write(f"table {table.path}", "compacting", work)


def _compact_files(table: TableContext, run_tasks: RunTasks) -> Snapshot | None:
    """Put the rows of small files of a partition together.

    1. Write them into new files, one task a group. A crash leaves files that nothing points at.
    2. Commit the new files in place of the old ones; whoever has taken out one of those meanwhile was faster.

    Raises:
        UnavailableError: the file system refused; readers find the same rows as before.
        ConflictError: other writers committed first too often; readers find the same rows as before.
    """
    files, target_bytes = table.files, table.options.write.target_file_size_bytes
    newest = files.latest()
    spec, groups = files.spec_of(newest), groups_of(files.base_table.files(newest), target_bytes)
    if not groups:
        return None
    # Step 1.
    tasks = [
        BucketTask(files.storage, spec, None, tuple(base_file(files, f) for f in group), (), target_bytes)
        for group in groups
    ]
    results = run_tasks(tasks, _merge_bucket)
    added = [DataFile(**each) for result in results for each in json.loads(result)]
    # Step 2.
    try:
        version = replace_files(files.base_table, added, [file for group in groups for file in group])
    except (UnavailableError, ConflictError, TableReplacedError):
        files.storage.delete(*[f.path for f in added])
        raise
    if version is None:
        logger.info("table %s: somebody has taken out files; this compaction's are dropped", table.path)
        files.storage.delete(*[f.path for f in added])
        return None
    return files.snapshot(version)


def _is_due(table: TableContext, newest: int) -> bool:
    limits = table.options.compaction
    _, merged = table.files.root_for(newest)
    # The snapshot that a compaction itself makes holds no changes.
    commits = newest - merged - (1 if merged else 0)
    return commits >= limits.commits or (
        commits % limits.min_commits == 0 and _is_past_ratio(table, newest, limits.ratio)
    )


def _is_past_ratio(table: TableContext, snapshot: int, ratio: float) -> bool:
    layout = table.files.layout(snapshot)
    return sum(f.rows for f in layout.changes) > ratio * sum(f.rows for f in layout.base)


def _tasks(table: TableContext, spec: TableSpec, layout: SnapshotFiles) -> Sequence[BucketTask]:
    buckets = sorted({int(f.partition[BUCKET] or 0) for f in layout.changes})
    return [
        BucketTask(
            storage=table.files.storage,
            spec=spec,
            bucket=bucket,
            base=tuple(base_file(table.files, f) for f in layout.base if f.partition[BUCKET] == str(bucket)),
            changes=tuple(table.files.change_file(f) for f in layout.changes if f.partition[BUCKET] == str(bucket)),
            target_bytes=table.options.write.target_file_size_bytes,
        )
        for bucket in buckets
    ]


def _gather_tombstones(
    table: TableContext, layout: SnapshotFiles, run_tasks: RunTasks
) -> tuple[list[DataFile], list[DataFile]]:
    """Make one file of tombstones of several of a bucket; gives the new files, and those whose place they take."""
    if not table.rule.buries:
        return [], []
    kept_ms = table.options.merge.delete_retention_ms
    by_bucket: dict[int, list[DataFile]] = {}
    for file in layout.tombstones:
        by_bucket.setdefault(int(file.partition[BUCKET] or 0), []).append(file)
    tasks = [
        GatherTask(
            storage=table.files.log.storage,
            spec=table.spec,
            rule=table.rule,
            bucket=bucket,
            files=tuple(held),
            staged_after_ms=0 if kept_ms == FOREVER else time.time_ns() // 1_000_000 - kept_ms,
            target_bytes=table.options.write.target_file_size_bytes,
        )
        for bucket, held in sorted(by_bucket.items())
        if len(held) > 1
    ]
    results = run_tasks(tasks, _gather) if tasks else []
    scattered = [file for task in tasks for file in task.files]
    newest = str(layout.snapshot)
    made = [DataFile(**each) for result in results for each in json.loads(result)]
    return [replace(file, partition={**file.partition, SNAPSHOT: newest}) for file in made], scattered


def _gather(task: GatherTask) -> str:
    """Gather a bucket's tombstones; runs in a Spark task."""
    return json.dumps([asdict(file) for file in gather(task)])


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
        MergeReader(task.spec.arrow, task.spec.primary_key, stored=task.spec.physical, filesystem=filesystem) as engine,
    ):
        for batch in engine.merged(task.base, task.changes):
            writer.write(batch)
        return json.dumps([asdict(file) for file in writer.close()])
