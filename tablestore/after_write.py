"""Maintenance after a finished write; its failures are only logged, because callers repeat a write that raises."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger("tablestore")


def after_write(target: str, what: str, work: Callable[[], object]) -> None:
    """Run maintenance after a finished write; log a failure as a warning, never raise it.

    Args:
        target: what was written, for the message, such as ``table '/data/orders'``.
        what: name of the maintenance, such as ``compacting``.
        work: runs the maintenance, or decides that none is due.
    """
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller would repeat a write that has landed
        text = "%s: the write is done; %s after it failed: %s: %s"
        logger.warning(text, target, what, type(error).__name__, error)
