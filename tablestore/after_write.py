"""Maintenance after a finished write; its failures are only logged, because callers repeat a write that raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

logger = logging.getLogger("tablestore")
T = TypeVar("T")
_FAILURES: ContextVar[list[Exception] | None] = ContextVar("failures", default=None)


def after_write(target: str, what: str, work: Callable[[], T]) -> T | None:
    """Run maintenance after a finished write; log a failure as a warning, except within ``failures``; never raise it.

    Args:
        target: what was written, for the message, such as ``table '/data/orders'``.
        what: name of the maintenance, such as ``compacting``.
        work: runs the maintenance, or decides that none is due.

    Returns:
        The result of ``work``; None if it failed.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller would repeat a write that has landed
        failed = _FAILURES.get()
        if failed is None:
            text = "%s: the write is done; %s after it failed: %s: %s"
            logger.warning(text, target, what, type(error).__name__, error)
        else:
            failed.append(error)
        return None


@contextmanager
def failures() -> Iterator[list[Exception]]:
    """Collect the failures of maintenance instead of logging them, for a caller that has written nothing."""
    found: list[Exception] = []
    token = _FAILURES.set(found)
    try:
        yield found
    finally:
        _FAILURES.reset(token)
