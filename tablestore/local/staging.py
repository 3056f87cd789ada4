"""Stages rows in threads of this process; the same stagers run in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import Queue

import pyarrow as pa

from snapshot.staging.parquet_writer import split_by_bucket
from snapshot.staging.stage import StagedFile, Stager, StagesRows
from snapshot.staging.task_results import accept_staged, staged_to_arrow
from tablestore.local.threads import cores
from tablestore.write.arrow_input import prepare_batches

_FEW_ROWS, _FEW_BYTES = 100_000, 32 << 20
"""Up to this size, one thread stages all rows."""
_WAITING = 4
"""Batches that may be queued for a thread."""


class _AbandonedError(Exception):
    """The rows' source failed, so what is staged is discarded."""


def stage_rows(batches: Iterable[pa.RecordBatch], stager: Stager) -> list[StagedFile]:
    """Prepare and stage rows with the table's columns and, in a table with a key, perhaps ``_change_type``.

    Raises:
        InvalidInputError: rows were rejected; the staged files are removed.
        UnavailableError: the file system failed; the staged files are removed.
    """
    prepared = prepare_batches(iter(batches), stager.spec, task=0, preimages=stager.rule.takes_preimages)
    if not stager.spec.has_key:
        return stage_in_one(prepared, stager)
    return stage_changes(prepared, stager)


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
            return _stage_in_threads(chain(first, changes), stager, threads)
    return stage_in_one(first, stager)


def stage_in_one(batches: Iterable[pa.RecordBatch], stager: StagesRows) -> list[StagedFile]:
    """Stage rows in this thread; errors are those of ``stage_changes``."""
    return accept_staged(stager, staged_to_arrow(stager, batches, 0).to_pylist())


def _stage_in_threads(changes: Iterator[pa.RecordBatch], stager: Stager, threads: int) -> list[StagedFile]:
    queues: Sequence[Queue[pa.RecordBatch | _AbandonedError | None]] = [Queue(_WAITING) for _ in range(threads)]

    def work(number: int) -> pa.RecordBatch:
        waiting = _batches_of(queues[number])
        try:
            return staged_to_arrow(stager, waiting, number)
        finally:
            # A stager that rejects a row reads no more; the others go on.
            for _ in waiting:
                pass

    with ThreadPoolExecutor(threads, thread_name_prefix="tablestore-stage") as pool:
        running = [pool.submit(work, number) for number in range(threads)]
        end: _AbandonedError | None = _AbandonedError()
        try:
            for batch in changes:
                for bucket, part in split_by_bucket(batch, stager.spec, stager.buckets):
                    queues[bucket % threads].put(part)
            end = None
        finally:
            for queue in queues:
                queue.put(end)
        return accept_staged(stager, [row for each in running for row in each.result().to_pylist()])


def _batches_of(queue: Queue[pa.RecordBatch | _AbandonedError | None]) -> Iterator[pa.RecordBatch]:
    while (batch := queue.get()) is not None:
        if isinstance(batch, _AbandonedError):
            raise batch
        yield batch
