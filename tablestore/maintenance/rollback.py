"""Rollback: restores an earlier state of a table as one new snapshot and publishes the changes."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from functools import partial

from log_system.base import TaskRunner
from snapshot.delta.log import DataFile
from snapshot.merge.merge_reader import BucketFiles, ChangeFile
from snapshot.merge.merge_rules import LAST_ROW
from snapshot.records import Snapshot
from snapshot.staging.bucket_difference import BucketDifference
from snapshot.staging.stage import StagedFile, Stager
from snapshot.staging.task_results import accept_staged, staged_to_arrow
from snapshot.storage import Storage
from snapshot.store.lookup import by_bucket, files_by_bucket
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.maintenance.run_tasks import written_by
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
    """A file to copy under a new name. Picklable."""

    storage: Storage
    file: DataFile
    name: str


def rollback(table: TableContext, writer: Writer, run_tasks: TaskRunner, to: Point) -> Snapshot | None:
    """Restore the state of a snapshot, and return the new one; None if nothing differs.

    1. Compare the two states bucket by bucket, only the keys that changed in between, and stage the differences. A
       crash leaves orphan files.
    2. Commit and publish them like any write. If another writer has committed in the meantime, compare again.

    In a table without a primary key, files are compared instead of rows: files added since the snapshot are removed,
    and copies of the files removed since are added. A concurrent append stays. If a compaction ran in between, the rows
    that it rewrote are deleted and inserted again.

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


def _replaced(files: TableFiles, run_tasks: TaskRunner, then: int, now: int) -> tuple[list[StagedFile], Replaced]:
    """Return copies of the files removed since a snapshot, and the files added since, which they replace.

    Files are copied under new names because a file name is added only once in a table's life.
    """
    has, had = files.layout(now).base, files.layout(then).base
    gone = [file for file in has if file.path not in {other.path for other in had}]
    back = [file for file in had if file.path not in {other.path for other in has}]
    names = [f"{file.path.rpartition('-')[0]}-{uuid.uuid4().hex}.parquet" for file in back]
    tasks = [CopyTask(files.storage, file, name) for file, name in zip(back, names, strict=True)]
    copies = written_by(run_tasks, tasks, _copy, files.storage)
    return [StagedFile(file, 0) for file in copies], Replaced(gone, (), now)


def _copy(task: CopyTask) -> list[DataFile]:
    """Copy a file. Runs in a Spark task."""
    task.storage.copy(task.file.path, task.name)
    return [replace(task.file, path=task.name)]


def _tasks(files: TableFiles, stager: Stager, now: int, then: int) -> list[RollbackTask]:
    after, before = (files_by_bucket(files, files.layout(snapshot)) for snapshot in (now, then))
    if then < files.oldest(fresh=False):
        between: dict[int, tuple[ChangeFile, ...] | None] = dict.fromkeys(after.keys() | before.keys())
    else:
        # Those that have been compacted since are among them.
        added = by_bucket(file for each in range(then + 1, now + 1) for file in files.log.commit_at(each).added)
        between = {bucket: tuple(map(files.change_file, held)) for bucket, held in added.items()}
    nothing = BucketFiles()
    return [
        RollbackTask(
            stager,
            bucket,
            BucketDifference(
                files.storage, files.spec, after.get(bucket, nothing), before.get(bucket, nothing), changes
            ),
        )
        for bucket, changes in sorted(between.items())
    ]


def _stage_bucket(task: RollbackTask) -> str:
    """Stage a bucket's changes. Runs in a Spark task."""
    return json.dumps(staged_to_arrow(task.stager, task.difference.changes(), task.bucket).to_pylist())
