"""Handling of Ctrl-C during a DuckDB query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

_INTERRUPTED = re.compile(r"failed: .*\bKeyboardInterrupt\b", re.DOTALL)


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
