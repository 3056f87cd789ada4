"""The process that dies: does one verb of the store, with a trap at one point of it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType

from log_system.kafka.publisher.partition_tasks import publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.errors import NotFoundError, TableStoreError
from snapshot.records import CommitId
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.evolution import AddColumn, RenameColumn
from snapshot.schema.system_columns import SEQ
from snapshot.staging.stage import StagedFile, Stager, change_file_schema
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.maintenance import compact as compacting
from tablestore.maintenance.compact import BucketTask, compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.rollback import rollback
from tablestore.maintenance.run_tasks import outcome_of
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.crash.kill_points import KillPoint, set_trap
from tests.crash.processes.batches import (
    ALTER,
    BROKER,
    EXPIRE,
    NOBODY,
    NORMALIZE,
    ORPHAN,
    REWRITE,
    ROLLBACK,
    ROLLBACK_FILES,
    SETTLE,
    STREAMS,
    TASK,
    VERBS,
    Job,
    changes_of,
    rewrite_row,
    verb_changes,
)
from tests.crash.processes.task_pool import TaskPool
from tests.harness.local_writes import make_table, publisher_of, rewriting, rows_of, run_here, staged

PARTITIONS = 2
KEEP_LAST = 3
"""How many snapshots an expiry leaves."""


def work(job: Job, pipe: Any) -> None:
    """Do the job; ``pipe`` tells when a point is reached at which the broker is to die."""
    nursery: TaskPool | None = None
    if job.verb in STREAMS:
        # Spark is imported where it is needed: most processes that die know nothing of it.
        from tests.crash.processes.streams import run_query  # noqa: PLC0415

        # Spark takes the function along to other processes, where a pipe is none.
        run_query(job, lambda driver: _kill(job, driver, None))
        return
    if job.verb == NORMALIZE:
        from tests.crash.processes.normalized import run_normalized  # noqa: PLC0415 - likewise

        run_normalized(job, lambda driver: _kill(job, driver, pipe))
        return
    if job.who in {TASK, ORPHAN}:
        driver = os.getpid()
        nursery = TaskPool(lambda: set_trap(KillPoint(job.point, job.hit, lambda: _kill(job, driver, pipe))))
    elif job.who != NOBODY:
        set_trap(KillPoint(job.point, job.hit, lambda: _kill(job, os.getpid(), pipe)))
    if job.verb == "create":
        create(job)
        return
    table = TableContext.open(job.path)
    if job.verb == "drop":
        create_drop.drop(table)
    elif job.verb == "compact":
        compact(table, run_here if nursery is None else (lambda tasks, _: nursery.run(_merge, tasks)))
    elif job.verb == EXPIRE:
        expire(table, rules_of(table, "0 s", KEEP_LAST))
    else:
        publisher = _publisher(table, nursery)
        if job.verb in {"recover", SETTLE}:
            recover(table, publisher)
        else:
            writer = Writer(table, publisher)
            if job.verb == ALTER:
                change_columns(writer)
            write_batches(job, writer, nursery)
        publisher.discard()


def create(job: Job) -> None:
    """Create the table unless it is there."""
    try:
        TableContext.open(job.path)
    except NotFoundError:
        options = dict(job.options)
        make_table(Path(job.path), options.pop("servers"), options.pop("topic"), key=job.key, **options)


def change_columns(writer: Writer) -> None:
    """Rename a column and add one, unless that is done."""
    writer.recover_once()
    table = writer.refresh()
    if "v" in table.spec.arrow.names:
        alter(table, [RenameColumn("v", "w"), AddColumn("n", IntegerType())], publish=writer.publish)


def write_batches(job: Job, writer: Writer, nursery: TaskPool | None, batches: Sequence[int] | None = None) -> None:
    """Write the batches that have not landed."""
    for batch in range(job.first, job.first + job.batches) if batches is None else batches:
        commit_id = CommitId("writer", batch, durable=True)
        writer.recover_once()
        if not writer.publish_landed(commit_id):
            _write_batch(job, writer, nursery, batch, commit_id)


def _write_batch(job: Job, writer: Writer, nursery: TaskPool | None, batch: int, commit_id: CommitId) -> None:
    table = writer.refresh()
    if batch > 0 and job.kind == REWRITE:
        writer.replace(rewriting(table, partial(rewrite_row, batch)), commit_id, kind="update")
    elif batch > 0 and job.kind == VERBS:

        def stage(stager: Stager) -> list[StagedFile]:
            return staged(stager, verb_changes(job, batch, rows_of(table, stager.base)))

        writer.write(stage, commit_id, kind="update" if batch == 1 else "overwrite")
    elif batch == 2 and job.kind in {ROLLBACK, ROLLBACK_FILES}:
        # It has no number: rolling back again finds nothing to do.
        rollback(table, writer, run_here, 1)
    else:
        writer.write_staged(_stage(job, writer.stager(whole_buckets=True), batch, nursery), commit_id)


def _stage(job: Job, stager: Stager, batch: int, nursery: TaskPool | None) -> Sequence[StagedFile]:
    schema = stager.spec.arrow
    rows: list[dict[str, Any]] = [dict(zip(schema.names, change, strict=False)) for change in changes_of(job, batch)]
    if job.key:
        value, schema = schema.names[1], change_file_schema(stager.spec)
        for n, row in enumerate(rows):
            row |= {KIND: int(RowKind.DELETE if row[value] is None else RowKind.UPDATE_AFTER), SEQ: n}
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    # An append table deals files out to the partitions: two files, so that both get some.
    half = made.num_rows // 2
    parts = [made] if job.key else [made.slice(0, half), made.slice(half)]
    tasks = [(stager, part, number) for number, part in enumerate(parts)]
    results = [_stage_part(t) for t in tasks] if nursery is None else nursery.run(_stage_part, tasks)
    return [file for staged in results for file in staged]


def _stage_part(task: tuple[Stager, pa.RecordBatch, int]) -> list[StagedFile]:
    stager, batch, number = task
    return stager.stage([batch], number)


def _merge(task: BucketTask) -> str:
    """Merge a bucket by way of the module, whose door may be trapped in a task process only."""
    return outcome_of(compacting._merge_bucket, task)


def _publisher(table: TableContext, nursery: TaskPool | None) -> KafkaPublisher:
    if nursery is None or table.log.shows_uncommitted:
        return publisher_of(table)
    return KafkaPublisher(table.log.settings, table.index, partial(nursery.run, publish_partition))


def _kill(job: Job, driver: int, pipe: Any) -> None:
    """Kill who is to die, and leave word that the point was reached."""
    with Path(job.path).with_name("reached").open("a"):
        pass
    if job.who == BROKER:
        pipe.send("here")
        pipe.recv()
        return
    if job.who != TASK:
        os.kill(driver, signal.SIGKILL)
    if job.who != ORPHAN:
        os.kill(os.getpid(), signal.SIGKILL)


def run(job: Job, pipe: Any = None) -> None:
    """Do the job as a process's only work; a failure that says what to do is a failure, not a crash."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    try:
        work(job, pipe)
    except TableStoreError as error:
        print(f"{job.verb} at {job.point}: {error}", flush=True)  # noqa: T201 - shown with the case
        os._exit(3)
