"""The process that dies: does one verb of the store, with a trap at one point of it."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from log_system.kafka.publish import KafkaPublisher
from log_system.kafka.tasks import publish_partition
from snapshot.commit import CommitId
from snapshot.errors import NotFoundError, TableStoreError
from snapshot.rowkind import KIND, RowKind
from snapshot.schema import SEQ
from snapshot.stage import StagedFile, Stager, change_file_schema
from tablestore import compact as compacting
from tablestore import lifecycle
from tablestore.compact import BucketTask, compact
from tablestore.opened import OpenedTable
from tablestore.recover import recover
from tablestore.write import Writer
from tests.crash.nursery import Nursery
from tests.doors import Trap, set_trap
from tests.parts import Change, Row, make_table, publisher_of, rewriting, run_here

PARTITIONS = 2
BATCHES = 3
KEYS = 40
FOREACH_BATCH, SINK = "foreachBatch", "format"
STREAMS = (FOREACH_BATCH, SINK)
"""Verbs of the queries of ``streams.py``."""
EVENTUAL, SETTLE, NORMALIZE = "eventual", "settle", "normalize"
"""Verbs of tables with an eventual log: write, recover, and the query of ``normalized.py``."""
NOBODY, DRIVER, TASK, ORPHAN, BROKER = "nobody", "driver", "task", "driver, not its tasks", "broker"


@dataclass(frozen=True)
class Job:
    """What a process does, and where somebody dies.

    Attributes:
        path: the table.
        verb: ``write``, ``recover``, ``compact``, ``create``, ``drop``, ``foreachBatch`` or ``format``; of an eventual
            log ``eventual`` (write), ``settle`` (recover) or ``normalize``.
        kind: ``append``, ``upsert`` or ``delete``: what the batches hold; ``rewrite``: the first appends, and each
            other deletes some rows of a table without a key and updates the others.
        rows: of a batch.
        seed: of the batches.
        who: who dies.
        point: where; empty for nowhere.
        hit: at which time it is reached.
        options: for ``create``.
        first: the number of the first batch.
    """

    path: str
    verb: str
    kind: str
    rows: int
    seed: int
    who: str = NOBODY
    point: str = ""
    hit: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    first: int = 0

    @property
    def key(self) -> bool:
        """Whether the table has a primary key."""
        return self.kind not in {"append", "rewrite"}


def changes_of(job: Job, batch: int) -> list[Change]:
    """Make a batch's changes; the same for the same seed and number."""
    dice = random.Random(f"{job.seed}/{batch}")
    if job.kind == "rewrite" and batch > 0:
        old = _rewritten(job, batch - 1)
        after = {row: rewrite_row(batch, row) for row in old}
        return [*((key, f"-{value}") for key, value in old), *(row for row in after.values() if row is not None)]
    if not job.key:
        return [(batch * job.rows + n, f"{batch}.{n}") for n in range(job.rows)]
    if job.kind == "delete" and batch > 0:
        return [(key, None) for key in dice.sample(range(KEYS), min(job.rows, KEYS))]
    return [(dice.randrange(KEYS), None if dice.random() < 0.2 else f"{batch}.{n}") for n in range(job.rows)]


def rewrite_row(batch: int, row: Row) -> Row | None:
    """Say what a batch makes of a row."""
    return None if row[0] % (BATCHES + 1) == batch else (row[0], f"{batch}.{row[0]}")


def _rewritten(job: Job, batch: int) -> list[Row]:
    """Give the rows that there are after a batch."""
    if batch == 0:
        return [(key, str(value)) for key, value in changes_of(job, 0)]
    after = (rewrite_row(batch, row) for row in _rewritten(job, batch - 1))
    return [row for row in after if row is not None]


def work(job: Job, pipe: Any) -> None:
    """Do the job; ``pipe`` tells when a point is reached at which the broker is to die."""
    nursery: Nursery | None = None
    if job.verb in STREAMS:
        # Spark is imported where it is needed: most processes that die know nothing of it.
        from tests.crash.streams import run_query  # noqa: PLC0415

        run_query(job, lambda driver: _kill(job, driver, pipe))
        return
    if job.verb == NORMALIZE:
        from tests.crash.normalized import run_normalized  # noqa: PLC0415 - likewise

        run_normalized(job, lambda driver: _kill(job, driver, pipe))
        return
    if job.who in {TASK, ORPHAN}:
        driver = os.getpid()
        nursery = Nursery(lambda: set_trap(Trap(job.point, job.hit, lambda: _kill(job, driver, pipe))))
    elif job.who != NOBODY:
        set_trap(Trap(job.point, job.hit, lambda: _kill(job, os.getpid(), pipe)))
    if job.verb == "create":
        create(job)
        return
    table = OpenedTable.open(job.path)
    if job.verb == "drop":
        lifecycle.drop(table)
    elif job.verb == "compact":
        compact(table, run_here if nursery is None else (lambda tasks, _: nursery.run(_merge, tasks)))
    else:
        publisher = _publisher(table, nursery)
        if job.verb in {"recover", SETTLE}:
            recover(table.files, publisher, table.index, buckets=PARTITIONS)
        else:
            batches = range(job.first, job.first + BATCHES)
            write_batches(job, Writer(table, publisher), nursery, batches)
        publisher.discard()


def create(job: Job) -> None:
    """Create the table unless it is there."""
    try:
        OpenedTable.open(job.path)
    except NotFoundError:
        options = dict(job.options)
        make_table(Path(job.path), options.pop("servers"), options.pop("topic"), key=job.key, **options)


def write_batches(job: Job, writer: Writer, nursery: Nursery | None, batches: range = range(BATCHES)) -> None:
    """Write the batches that have not landed."""
    for batch in batches:
        commit_id = CommitId("writer", batch, durable=True)
        writer.recover_once()
        if writer.publish_landed(commit_id):
            continue
        if job.kind == "rewrite" and batch > 0:
            stage = rewriting(OpenedTable.open(job.path), partial(rewrite_row, batch))
            writer.replace_by(stage, commit_id, kind="update")
        else:
            writer.write_staged(_stage(job, writer.stager(whole_buckets=True), batch, nursery), commit_id)


def _stage(job: Job, stager: Stager, batch: int, nursery: Nursery | None) -> Sequence[StagedFile]:
    rows: list[dict[str, Any]] = [{"id": k, "v": v} for k, v in changes_of(job, batch)]
    schema = stager.spec.arrow
    if job.key:
        schema = change_file_schema(stager.spec)
        for n, row in enumerate(rows):
            row |= {KIND: int(RowKind.DELETE if row["v"] is None else RowKind.UPDATE_AFTER), SEQ: n}
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
    return compacting._merge_bucket(task)


def _publisher(table: OpenedTable, nursery: Nursery | None) -> KafkaPublisher:
    if nursery is None or table.is_eventual:
        return publisher_of(table)
    assert table.log is not None
    return KafkaPublisher(table.log, table.index, partial(nursery.run, publish_partition))


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
