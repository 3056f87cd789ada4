"""Stages rows in threads of this process; the same stagers run in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from queue import Queue

import pyarrow as pa

from snapshot.schema.spec import TableSpec
from snapshot.staging.parquet_writer import split_by_bucket, split_by_values
from snapshot.staging.stage import StagedFile, Stager, StagesRows
from snapshot.staging.task_results import accept_staged, staged_to_arrow
from snapshot.threads import Threads
from tablestore.local.repeatable import Batches
from tablestore.local.threads import cores
from tablestore.write.arrow_input import prepare_batches

_FEW_ROWS, _FEW_BYTES = 100_000, 32 << 20
"""Up to this size, one thread stages all rows."""
_WAITING = 4
"""Batches that may be queued for a thread."""


class _AbandonedError(Exception):
    """The rows' source failed, so what is staged is discarded."""


def stage_rows(rows: Batches, stager: Stager) -> list[StagedFile]:
    """Prepare and stage rows with the table's columns and, in a table with a key, perhaps ``_change_type``.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    spec = stager.spec
    if spec.has_key:
        return stage_changes(prepare_batches(rows(), spec, 0, stager.rule), stager)
    threads = cores()
    if threads == 1 or (rows.num_rows <= _FEW_ROWS and rows.nbytes <= _FEW_BYTES):
        return stage_in_one(prepare_batches(rows(), spec, task=0), stager)
    if spec.partition_by:
        return _stage_in_threads(_by_partition(prepare_batches(rows(), spec, task=0), spec), stager, threads)

    def stage(number: int) -> pa.RecordBatch:
        return staged_to_arrow(stager, prepare_batches(rows.part(number, threads), spec, task=number), number)

    # Files sort by task, so the rows stay in order.
    with Threads(threads, "tablestore-stage") as pool:
        running = [pool.submit(stage, number) for number in range(threads)]
    return _accept(stager, running)


def stage_changes(changes: Iterator[pa.RecordBatch], stager: Stager) -> list[StagedFile]:
    """Stage the changes of a table with a key; many of them in several threads, each with some of the buckets.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    threads = min(cores(), stager.buckets)
    if threads == 1:
        return stage_in_one(changes, stager)
    first: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in changes:
        first.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > _FEW_ROWS or size > _FEW_BYTES:
            every = chain(first, changes)
            parts = (part for batch in every for part in split_by_bucket(batch, stager.spec, stager.buckets))
            return _stage_in_threads(parts, stager, threads)
    return stage_in_one(first, stager)


def stage_in_one(batches: Iterable[pa.RecordBatch], stager: StagesRows) -> list[StagedFile]:
    """Stage rows in this thread; errors are those of ``stage_changes``."""
    return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())


def _by_partition(batches: Iterator[pa.RecordBatch], spec: TableSpec) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of batches by partition, numbered in the order in which partitions first occur."""
    numbers: dict[tuple[str | None, ...], int] = {}
    for batch in batches:
        for values, part in split_by_values(batch, spec.partition_by):
            yield numbers.setdefault(values, len(numbers)), part


def _stage_in_threads(parts: Iterator[tuple[int, pa.RecordBatch]], stager: Stager, threads: int) -> list[StagedFile]:
    """Stage numbered parts; one thread stages all parts with one number."""
    queues: Sequence[Queue[pa.RecordBatch | _AbandonedError | None]] = [Queue(_WAITING) for _ in range(threads)]

    def work(number: int) -> pa.RecordBatch:
        waiting = _batches_of(queues[number])
        try:
            return staged_to_arrow(stager, waiting, number)
        finally:
            # A stager that rejects a row reads no more; the others go on.
            for _ in waiting:
                pass

    with Threads(threads, "tablestore-stage") as pool:
        running = [pool.submit(work, number) for number in range(threads)]
        end: _AbandonedError | None = _AbandonedError()
        try:
            for number, part in parts:
                queues[number % threads].put(part)
            end = None
        finally:
            for queue in queues:
                queue.put(end)
        return _accept(stager, running)


def _accept(stager: Stager, running: Sequence[Future[pa.RecordBatch]]) -> list[StagedFile]:
    """Wait for threads and return what they staged; if one failed, remove all files and raise its error."""
    failed = next((each.exception() for each in running if each.exception() is not None), None)
    rows = [row for each in running if each.exception() is None for row in each.result().to_pylist()]
    if failed is not None:
        stager.remove_paths([row["path"] for row in rows if row["path"] is not None])
        raise failed
    return accept_staged(stager, rows)


def _batches_of(queue: Queue[pa.RecordBatch | _AbandonedError | None]) -> Iterator[pa.RecordBatch]:
    while (batch := queue.get()) is not None:
        if isinstance(batch, _AbandonedError):
            raise batch
        yield batch
