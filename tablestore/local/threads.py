"""Runs tasks and reads splits in threads of this process; DuckDB and Arrow release Python's global lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from queue import Empty, Full, Queue
from threading import Event, Lock, current_thread, main_thread
from typing import TypeVar

import pyarrow as pa

from snapshot.delta.forked import check_process
from snapshot.errors import UnavailableError
from snapshot.records import Split
from snapshot.threads import Threads

Task = TypeVar("Task")
Result = TypeVar("Result")
_WAITING_PER_THREAD = 2
"""Batches that may be queued for the reader, per thread."""
_LOOK_SECONDS = 0.1
"""How long a thread waits before it checks whether the reader has stopped."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_threads(tasks: Sequence[Task], work: Callable[[Task], Result]) -> list[Result]:
    """Run tasks in one thread per core; once all have ended, raise the error of the first task that failed."""
    with Threads(cores(), "tablestore") as threads:
        return threads.map(work, tasks)


def read_splits(parts: Sequence[Split], threads: int) -> Generator[pa.RecordBatch]:
    """Yield the rows of all splits in no particular order; threads read a few batches ahead.

    Args:
        parts: the splits; each is read by one thread.
        threads: how many splits to read concurrently.

    Raises:
        InvalidInputError: this process was forked after the first batch was read; it lacks the threads.
        TableStoreError: the error of the first split that failed; the others are abandoned.
        UnavailableError: the main thread and the thread that read so far have ended.
    """
    if threads <= 1 or len(parts) <= 1:
        for part in parts:
            for batch in part.read():
                yield batch
                check_process()
        return
    count = min(threads, len(parts))
    work = _Work(parts, count)
    with Threads(count, "tablestore-read") as pool:
        try:
            running = [pool.submit(work.run) for _ in range(count)]
            while (batch := work.next()) is not None:
                yield batch
                check_process()
            for each in running:
                each.result()
        finally:
            work.stop()


class ReadAnew:
    """An Arrow stream source that reads the rows again each time a stream is requested."""

    def __init__(self, schema: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """Create a source whose streams have ``schema`` and the batches that ``read`` returns."""
        self._schema = schema
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._read())
        return reader.__arrow_c_stream__(requested_schema)


class _Work:
    """The splits still to be read and the batches queued for the reader, shared by the threads."""

    def __init__(self, parts: Sequence[Split], threads: int) -> None:
        self._left = iter(parts)
        self._running = threads
        self._lock = Lock()
        self._stopped = Event()
        self._reader = current_thread()
        self._ready: Queue[pa.RecordBatch | None] = Queue(threads * _WAITING_PER_THREAD)

    def run(self) -> None:
        """Read splits until none is left, one fails, or the reader stops."""
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
                ended = not self._running
            if ended:
                # A reader that waits for a batch ends now; one that does not wait sees the number of threads.
                with suppress(Full):
                    self._ready.put_nowait(None)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None when all threads have ended."""
        self._reader = current_thread()
        while True:
            with self._lock:
                ended = not self._running
            try:
                return self._ready.get(timeout=0 if ended else _LOOK_SECONDS)
            except Empty:
                if ended:
                    return None

    def stop(self) -> None:
        """Ask the threads to stop."""
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
                if self._program_has_ended():
                    msg = "the rows cannot be read to their end: the program has ended"
                    raise UnavailableError(msg) from None
        return False

    def _program_has_ended(self) -> bool:
        """Return whether Python waits only for threads that read ahead, as for those of a reader that stopped early."""
        reader = self._reader
        return not main_thread().is_alive() and (reader.daemon or not reader.is_alive())


def _as_generator(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    yield from batches
