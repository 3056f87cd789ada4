"""Doors that kill: wrap the store's doors to the outside so that a process dies, by SIGKILL, at a named point.

A point is ``<call>:before`` or ``<call>:after``. Production code has no hooks; these replace methods in a process that
exists only to be killed.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from log_system.index import LogIndex
from log_system.kafka.client import KafkaClient
from snapshot.delta import DeltaLog
from snapshot.stage import Stager

PRODUCER_CALLS = {
    "init": "init_transactions",
    "begin": "begin_transaction",
    "produce": "produce",
    "flush": "flush",
    "offsets": "send_offsets_to_transaction",
    "end": "commit_transaction",
}
CALLS = ("stage", "commit", *PRODUCER_CALLS, "index")
POINTS = tuple(f"{call}:{side}" for call in CALLS for side in ("before", "after"))


class Trap:
    """Kills this process when a point is reached for the ``hit``-th time."""

    def __init__(self, point: str, hit: int) -> None:
        """Wait for ``point``."""
        self._point = point
        self._left = hit

    def pass_by(self, point: str) -> None:
        """Say that a point is reached."""
        if point != self._point:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _Producer:
    """A real producer behind doors that kill."""

    def __init__(self, producer: Any, trap: Trap) -> None:
        self._producer = producer
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)
        for call, real in PRODUCER_CALLS.items():
            if real == name:
                return _guarded(method, call, self._trap)
        return method


def set_trap(trap: Trap) -> None:
    """Put doors that kill into this process."""
    for owner, name, call in (
        (Stager, "stage", "stage"),
        (DeltaLog, "commit", "commit"),
        (LogIndex, "put", "index"),
    ):
        setattr(owner, name, _guarded(getattr(owner, name), call, trap))
    make = KafkaClient.producer
    KafkaClient.producer = lambda *args, **kwargs: _Producer(make(*args, **kwargs), trap)  # type: ignore[method-assign,assignment,return-value]


def _guarded(method: Any, call: str, trap: Trap) -> Any:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        trap.pass_by(f"{call}:before")
        result = method(*args, **kwargs)
        trap.pass_by(f"{call}:after")
        return result

    return guarded
