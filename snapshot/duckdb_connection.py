"""DuckDB as the store uses it: one thread for each connection, no downloads, and Ctrl-C ends a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

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
