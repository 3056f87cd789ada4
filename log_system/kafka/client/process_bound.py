"""Clients that a forked process leaves alone.

The threads of a client are not in a process forked from its own. There, librdkafka aborts the process when a consumer
is destroyed, waits forever when one is closed, and a second for each other client. A program that forks after it has
used a table, as pre-fork servers and multiprocessing do, does not use the table in its children, but these do end.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer


class ProcessBound:
    """A client that lives only in the process that has created it."""

    _process: int | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        """Create a client with the arguments of confluent-kafka's class."""
        super().__init__(*args, **options)
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is the copy in a process that was forked."""
        return self._process != os.getpid()

    # Defaults, since the globals of a module may be gone when Python ends.
    def __del__(
        self,
        process: Callable[[], int] = os.getpid,
        keep: Callable[[Any], None] = ctypes.pythonapi.Py_IncRef,
        this: Callable[[Any], Any] = ctypes.py_object,
    ) -> None:
        """Never destroy the copy in a process that was forked."""
        if self._process not in (None, process()):
            keep(this(self))


class BoundProducer(ProcessBound, Producer):
    """A producer of one process."""


class BoundConsumer(ProcessBound, Consumer):
    """A consumer of one process."""

    def close(self) -> None:
        """Leave the group and close the connections; nothing in a process that was forked."""
        if not self.is_elsewhere:
            super().close()
