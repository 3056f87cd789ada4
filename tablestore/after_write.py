"""What runs after a write that is done: its failures are warnings, because callers repeat a write that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("tablestore")
T = TypeVar("T")


def after_write(target: str, what: str, work: Callable[[], T]) -> T | None:
    """Run maintenance that follows a finished write; a failure is logged as a warning and never raised.

    Args:
        target: what was written, for the message, such as ``table '/data/orders'``.
        what: the maintenance, such as ``compacting``.
        work: does it. It may also decide that nothing is due.

    Returns:
        What ``work`` returned; None when it failed.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller would repeat a write that has landed
        logger.warning("%s: the write is done; %s after it failed: %s: %s", target, what, type(error).__name__, error)
        return None
