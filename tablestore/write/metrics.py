"""Measures the operations on a table: for the table's hook, for observers of the process, and as spans."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from snapshot.errors import TableStoreError
from snapshot.records import Snapshot
from tablestore import tracing

T = TypeVar("T")
logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class Measured:
    """The measurement of one operation.

    Attributes:
        what: ``write`` or the DML statement, such as ``delete`` (both measured until the rows are visible, so including
            ``commit`` and ``publish``), ``commit``, ``publish``, ``compact`` or ``expire``.
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


class Observer(Protocol):
    """Counts what writers do."""

    def measured(self, measured: Measured) -> None:
        """Take note of an operation that succeeded."""
        ...

    def counted(self, path: str, what: str) -> None:
        """Take note of an event.

        Args:
            path: the table's folder.
            what: ``fence`` (another publisher took the log over), ``retry`` (a publish is tried again after an error)
                or ``conflict`` (a commit is tried again, mostly after another writer's).
        """
        ...

    def failed(self, path: str, kind: str) -> None:
        """Take note of an operation that failed with an error of a kind."""
        ...


_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call an observer for all operations of this process from now on."""
    _observers.append(observer)


def ignore(observer: Observer) -> None:
    """Stop calling an observer."""
    _observers.remove(observer)


class Meter:
    """Measures the operations of one handle; errors of hooks and observers are logged and otherwise ignored.

    Attributes:
        hook: called with each measurement; None for nothing.
        observer: told of this handle's operations, beside the observers of the process; None for nothing.
    """

    def __init__(self, path: str) -> None:
        """Measure operations on the table at ``path``."""
        self._path = path
        self._depth = 0
        self.hook: Hook | None = None
        self.observer: Observer | None = None

    def as_before(self, other: Meter) -> None:
        """Take over the hook and the observer of the meter that this one replaces."""
        self.hook, self.observer = other.hook, other.observer

    @contextmanager
    def measured(self, what: str) -> Iterator[Callable[[int | None, int], None]]:
        """Measure the block, also as a span, and report that to hook and observers, unless the block reports nothing.

        Yields:
            A function with which the block reports its snapshot and number of rows.
        """
        results: list[tuple[int | None, int]] = []
        start = time.perf_counter()
        self._depth += 1
        try:
            with tracing.span(what, self._path) as span:
                yield lambda snapshot, rows: results.append((snapshot, rows))
                if span is not None and results:
                    snapshot, rows = results[-1]
                    span.set_attributes({"tablestore.snapshot": snapshot or 0, "tablestore.rows": rows})
        except Exception as error:
            # The operation around it fails too, and is the one that counts.
            if self._depth == 1:
                kind = error.kind if isinstance(error, TableStoreError) else type(error).__name__
                self._tell(lambda each: each.failed(self._path, kind), what)
            raise
        finally:
            self._depth -= 1
        if results:
            found = Measured(what, self._path, *results[-1], time.perf_counter() - start)
            self._tell(lambda each: each.measured(found), what)
            if self.hook is not None:
                _safely(self._path, what, self.hook, found)

    def made(self, what: str, work: Callable[[], Snapshot | None]) -> Snapshot | None:
        """Run and measure work that may make a snapshot."""
        with self.measured(what) as report:
            snapshot = work()
            if snapshot is not None:
                report(snapshot.id, snapshot.rows)
        return snapshot

    def count(self, what: str) -> None:
        """Count an event; see ``Observer.counted``."""
        self._tell(lambda each: each.counted(self._path, what), what)

    def _tell(self, tell: Callable[[Observer], None], what: str) -> None:
        for each in (*_observers, *([] if self.observer is None else [self.observer])):
            _safely(self._path, what, tell, each)


def _safely(path: str, what: str, tell: Callable[[T], None], argument: T) -> None:
    try:
        tell(argument)
    except Exception:
        logger.exception("table %s: the metrics hook failed; the %s is done", path, what)
