"""A hook that is told what the verbs of a table did and how long they took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from snapshot.records import Snapshot

logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class Measured:
    """One thing that was done.

    Attributes:
        what: ``write`` or the verb, such as ``delete`` (until it is visible, so with ``publish``), ``publish``,
            ``compact`` or ``expire``.
        path: the table's folder.
        snapshot: the snapshot that was made or published; None where there was none.
        rows: changes in it, or that were published; of ``expire`` the snapshots that went.
        seconds: how long it took.
    """

    what: str
    path: str
    snapshot: int | None
    rows: int
    seconds: float


Hook = Callable[[Measured], None]


class Meter:
    """Tells a hook, if there is one; the hook's own errors are logged and stop nothing."""

    def __init__(self, path: str) -> None:
        """Measure a table."""
        self._path = path
        self.hook: Hook | None = None

    @contextmanager
    def measured(self, what: str) -> Iterator[Callable[[int | None, int], None]]:
        """Time what is done inside; it says which snapshot and how many rows. Nothing is told of what fails."""
        told: list[tuple[int | None, int]] = []
        start = time.perf_counter()
        yield lambda snapshot, rows: told.append((snapshot, rows))
        if self.hook is not None and told:
            self._tell(Measured(what, self._path, *told[-1], time.perf_counter() - start))

    def made(self, what: str, work: Callable[[], Snapshot | None]) -> Snapshot | None:
        """Do and time what may make a snapshot."""
        with self.measured(what) as tell:
            snapshot = work()
            if snapshot is not None:
                tell(snapshot.id, snapshot.rows)
        return snapshot

    def _tell(self, measured: Measured) -> None:
        assert self.hook is not None
        try:
            self.hook(measured)
        except Exception:
            logger.exception("table %s: the metrics hook failed; the %s is done", self._path, measured.what)
