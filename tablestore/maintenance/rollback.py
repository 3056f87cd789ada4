"""Rollback: restores an earlier state of a table as one new snapshot and publishes the changes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from snapshot.merge.merge_reader import ChangeFile
from snapshot.merge.merge_rules import LAST_ROW
from snapshot.records import Snapshot
from snapshot.schema.system_columns import BUCKET
from snapshot.staging.bucket_difference import BucketDifference, State
from snapshot.staging.stage import StagedFile, Stager
from snapshot.staging.task_results import accept_staged, staged_to_arrow
from snapshot.storage import Storage
from snapshot.store.lookup import base_file
from snapshot.store.snapshot_files import SnapshotFiles
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.read.time_travel import Point, snapshot_at
from tablestore.write.optimistic_retry import Replaced
from tablestore.write.writer import Writer


@dataclass(frozen=True)
class RollbackTask:
    """The rollback of one bucket. Picklable."""

    stager: Stager
    bucket: int
    difference: BucketDifference


@dataclass(frozen=True)
class CopyTask:
    """A file to copy. Picklable."""

    storage: Storage
    source: str
    name: str


RunTasks = Callable[[Sequence[RollbackTask], Callable[[RollbackTask], str]], list[str]]
"""A function that runs work on each task at least once and returns the results in the order of the tasks."""


def rollback(table: TableContext, writer: Writer, run_tasks: RunTasks, to: Point) -> Snapshot | None:
    """Restore the state of a snapshot.

    1. Compare the two states bucket by bucket, only the keys that changed in between, and stage the differences. A
       crash leaves orphan files.
    2. Commit and publish them like any write. If another writer has committed in the meantime, compare again.

    In a table without a primary key, files are compared instead of rows: files added since the snapshot are removed,
    and copies of the files removed since are added. A concurrent append stays. If a compaction ran in between, the rows
    that it rewrote are deleted and inserted again.

    Returns:
        The new snapshot; None if nothing differs.

    Raises:
        NotFoundError: there is no such snapshot or tag, or it has expired and has no tag.
        InvalidInputError: the log's format cannot represent a delete.
        ConflictError: other writers committed first too often; nothing was written.
    """
    files = table.files
    table.check_says_deletes("rollback")
    then = snapshot_at(files, to).id
    if not table.spec.has_key:
        return writer.replace(partial(_replaced, files, run_tasks, then), kind="rollback")

    def stage(stager: Stager) -> list[StagedFile]:
        assert stager.base is not None
        # Restore the exact old row instead of merging it with the current row by the table's merge engine.
        exact = replace(stager, rule=LAST_ROW, lookup=stager.lookup if stager.changelog else None)
        results = run_tasks(_tasks(writer.table.files, exact, stager.base, then), _stage_bucket)
        return accept_staged(stager, [row for result in results for row in json.loads(result)])

    return writer.write(stage, kind="rollback")


def _replaced(files: TableFiles, run_tasks: Any, then: int, now: int) -> tuple[list[StagedFile], Replaced]:
    """Return copies of the files removed since a snapshot, and the files added since, which they replace.

    Files are copied under new names because a file name is added only once in a table's life.
    """
    has, had = files.layout(now).base, files.layout(then).base
    gone = [file for file in has if file.path not in {other.path for other in had}]
    back = [file for file in had if file.path not in {other.path for other in has}]
    copies = [(file, f"{file.path.rpartition('-')[0]}-{uuid.uuid4().hex}.parquet") for file in back]
    run_tasks([CopyTask(files.storage, file.path, name) for file, name in copies], _copy)
    return [StagedFile(replace(file, path=name), 0) for file, name in copies], Replaced(gone, (), now)


def _copy(task: CopyTask) -> str:
    """Copy a file. Runs in a Spark task."""
    task.storage.copy(task.source, task.name)
    return task.name


def _tasks(files: TableFiles, stager: Stager, now: int, then: int) -> list[RollbackTask]:
    after, before = files.layout(now), files.layout(then)
    changed = None if then < files.oldest(fresh=False) else _changed_after(files, then, now)
    tasks: list[RollbackTask] = []
    for bucket in range(stager.buckets):
        between = None if changed is None else changed.get(bucket, ())
        if between != ():
            states = _state(files, after, bucket), _state(files, before, bucket)
            difference = BucketDifference(files.storage, files.spec, *states, between)
            tasks.append(RollbackTask(stager, bucket, difference))
    return tasks


def _changed_after(files: TableFiles, then: int, now: int) -> dict[int, tuple[ChangeFile, ...]]:
    """Return the change files of the snapshots after ``then``, by bucket, including those compacted since."""
    by_bucket: dict[int, tuple[ChangeFile, ...]] = {}
    for snapshot in range(then + 1, now + 1):
        for file in files.log.commit_at(snapshot).added:
            bucket = int(file.partition[BUCKET] or 0)
            by_bucket[bucket] = (*by_bucket.get(bucket, ()), files.change_file(file))
    return by_bucket


def _state(files: TableFiles, layout: SnapshotFiles, bucket: int) -> State:
    return State(
        tuple(base_file(files, f) for f in layout.base if f.partition[BUCKET] == str(bucket)),
        tuple(files.change_file(f) for f in layout.changes if f.partition[BUCKET] == str(bucket)),
    )


def _stage_bucket(task: RollbackTask) -> str:
    """Stage a bucket's changes. Runs in a Spark task."""
    return json.dumps(staged_to_arrow(task.stager, task.difference.changes(), task.bucket).to_pylist())
