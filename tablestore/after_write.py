"""Maintenance after a finished write; its failures are only logged, because callers repeat a write that raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("tablestore")
T = TypeVar("T")


def after_write(target: str, what: str, work: Callable[[], T]) -> T | None:
    """Run maintenance after a finished write; log a failure as a warning and never raise it.

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
        logger.warning("%s: the write is done; %s after it failed: %s: %s", target, what, type(error).__name__, error)
        return None
