"""DuckDB as the store uses it: one thread for each connection, no downloads, and Ctrl-C ends a query."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

IDLE_MAX = 8
"""Idle databases of a kind; as many tasks of one process rarely run at the same time."""
_INTERRUPTED = re.compile(r"failed: .*\bKeyboardInterrupt\b", re.DOTALL)


def connect(**settings: Any) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that runs queries on the calling thread only and never downloads an extension.

    Args:
        settings: Further settings of DuckDB, such as ``memory_limit="256MB"``.
    """
    config = {
        "threads": 1,
        # By default DuckDB starts eight more threads for each database, which a query on one thread does not need.
        "async_threads": 0,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    return duckdb.connect(":memory:", config=config | settings)


_idle: dict[tuple[int, Hashable], list[Any]] = {}
"""For each process and kind, the databases that nobody uses, the last used one at the end.

There is no lock: databases are given back by ``__del__`` too, in the midst of any code. Each step on a list is atomic.
"""


def take(kind: Hashable, prefer: Callable[[Any], bool] = lambda database: False) -> Any:
    """Remove and return an idle database, the last used one that ``prefer`` accepts, else the last used one.

    Opening and closing DuckDB takes 20 ms, as long as a small task. A process that was forked opens its own databases.

    Args:
        kind: what exchangeable databases have in common.
        prefer: whether a database is the best choice.

    Returns:
        What ``give_back`` got for the kind; None if there is none.
    """
    idle = _idle.get((os.getpid(), kind), [])
    choices = sorted(idle, key=prefer)
    while choices:
        database = choices.pop()
        # Another thread may have taken it since.
        with suppress(ValueError):
            idle.remove(database)
            return database
    return None


def give_back(kind: Hashable, database: Any) -> None:
    """Leave a database to ``take``; close the one that is idle for longest if there are too many."""
    idle = _idle.setdefault((os.getpid(), kind), [])
    idle.append(database)
    while len(idle) > IDLE_MAX:
        with suppress(IndexError):
            idle.pop(0).close()


@atexit.register
def _close_idle() -> None:
    """Close idle databases, but not those of the process that forked this one."""
    for (process, _), idle in _idle.items():
        while process == os.getpid() and idle:
            idle.pop().close()


_CLASSES = {
    "Conversion Error": duckdb.ConversionException,
    "Invalid Input Error": duckdb.InvalidInputException,
    "Out of Range Error": duckdb.OutOfRangeException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "IO Error": duckdb.IOException,
    "INTERRUPT Error": duckdb.InterruptException,
}


def batches_of(result: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a query's result; errors have DuckDB's classes.

    Arrow makes an ``OSError`` of an error in any batch but the first, which would pass for one of the file system.
    """
    try:
        yield from result
    except OSError as error:
        text = str(error)
        raise _CLASSES.get(text.partition(":")[0], duckdb.Error)(text) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` when Ctrl-C ends a query.

    DuckDB itself raises ``RuntimeError`` when a signal ends a query, and ``InvalidInputException`` when the signal
    arrives while Python passes it a batch.
    """
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def is_interrupt(error: Exception) -> bool:
    """Return whether DuckDB raised an error because a signal ended the query."""
    if isinstance(error, duckdb.InvalidInputException):
        return _INTERRUPTED.search(str(error)) is not None
    return isinstance(error, duckdb.InterruptException) or (
        type(error) is RuntimeError and str(error) == "Query interrupted"
    )
