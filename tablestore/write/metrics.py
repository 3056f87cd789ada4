"""A metrics hook, which is called with the result and duration of each operation on a table."""

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
    """The measurement of one operation.

    Attributes:
        what: ``write`` or the DML statement, such as ``delete`` (both measured until the rows are visible, so including
            ``publish``), ``publish``, ``compact`` or ``expire``.
        path: the table's folder.
        snapshot: the snapshot that was made or published; None if there was none.
        rows: number of changes made or published; for ``expire``, the number of expired snapshots.
        seconds: duration of the operation.
    """

    what: str
    path: str
    snapshot: int | None
    rows: int
    seconds: float


Hook = Callable[[Measured], None]


class Meter:
    """Measures operations and calls the hook, if there is one; errors of the hook are logged and otherwise ignored."""

    def __init__(self, path: str) -> None:
        """Measure operations on the table at ``path``."""
        self._path = path
        self.hook: Hook | None = None

    @contextmanager
    def measured(self, what: str) -> Iterator[Callable[[int | None, int], None]]:
        """Measure the block and call the hook, unless the block fails or reports nothing.

        Yields:
            A function with which the block reports its snapshot and number of rows.
        """
        results: list[tuple[int | None, int]] = []
        start = time.perf_counter()
        yield lambda snapshot, rows: results.append((snapshot, rows))
        if self.hook is not None and results:
            self._report(Measured(what, self._path, *results[-1], time.perf_counter() - start))

    def made(self, what: str, work: Callable[[], Snapshot | None]) -> Snapshot | None:
        """Run and measure work that may make a snapshot."""
        with self.measured(what) as report:
            snapshot = work()
            if snapshot is not None:
                report(snapshot.id, snapshot.rows)
        return snapshot

    def _report(self, measured: Measured) -> None:
        assert self.hook is not None
        try:
            self.hook(measured)
        except Exception:
            logger.exception("table %s: the metrics hook failed; the %s is done", self._path, measured.what)
