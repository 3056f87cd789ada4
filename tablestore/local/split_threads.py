"""Reads parts in threads of this process, where there is no Spark: DuckDB and Arrow work without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import Empty, Full, Queue
from threading import Event, Lock

import pyarrow as pa

from tablestore.read.splits import Split

_WAITING_PER_THREAD = 2
"""Batches that may wait for the reader, for each thread."""
_LOOK_SECONDS = 0.1
"""How long a thread may wait before it looks whether the reader has gone."""


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_splits(parts: Sequence[Split], threads: int) -> Generator[pa.RecordBatch]:
    """Yield the rows of all parts, in no particular order, while a few threads read ahead by a few batches.

    Args:
        parts: what is read; each by one thread from its beginning to its end.
        threads: how many are read at a time.

    Raises:
        TableStoreError: what the first part that failed has raised; the others are given up.
    """
    if threads <= 1 or len(parts) <= 1:
        for part in parts:
            yield from part.read()
        return
    count = min(threads, len(parts))
    work = _Work(parts, count)
    with ThreadPoolExecutor(count, thread_name_prefix="tablestore-read") as pool:
        try:
            running = [pool.submit(work.run) for _ in range(count)]
            while (batch := work.next()) is not None:
                yield batch
            for each in running:
                each.result()
        finally:
            work.stop()


class ReadAnew:
    """Rows as an Arrow stream, read anew each time one is asked for."""

    def __init__(self, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """Give what ``read`` gives, of ``schema``."""
        self._schema = schema
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._read())
        return reader.__arrow_c_stream__(requested_schema)


class _Work:
    """Parts that are left, and batches that wait for the reader."""

    def __init__(self, parts: Sequence[Split], threads: int) -> None:
        self._left = iter(parts)
        self._running = threads
        self._lock = Lock()
        self._stopped = Event()
        self._ready: Queue[pa.RecordBatch] = Queue(threads * _WAITING_PER_THREAD)

    def run(self) -> None:
        """Read parts until none is left, one fails, or nobody wants them."""
        try:
            while (part := self._part()) is not None:
                with closing(_as_generator(part.read())) as batches:
                    for batch in batches:
                        if not self._put(batch):
                            return
        except BaseException:
            self.stop()
            raise
        finally:
            with self._lock:
                self._running -= 1

    def next(self) -> pa.RecordBatch | None:
        """Give the next batch; None when all threads have ended."""
        while True:
            with self._lock:
                ended = not self._running
            try:
                return self._ready.get(timeout=0 if ended else _LOOK_SECONDS)
            except Empty:
                if ended:
                    return None

    def stop(self) -> None:
        """Let the threads end soon."""
        self._stopped.set()

    def _part(self) -> Split | None:
        with self._lock:
            return None if self._stopped.is_set() else next(self._left, None)

    def _put(self, batch: pa.RecordBatch) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(batch, timeout=_LOOK_SECONDS)
                return True
            except Full:
                continue
        return False


def _as_generator(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    yield from batches
