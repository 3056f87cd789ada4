"""The service: watches tables in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from snapshot.errors import TableStoreError
from snapshot.messages import counted
from tablestore.service.attempts import Schedule
from tablestore.service.metrics import ServiceMetrics
from tablestore.service.verifier import Throttle
from tablestore.service.watcher import TableState, TableWatcher

logger = logging.getLogger("tablestore")
_LIST_SECONDS = 5.0
"""How often the list of tables is read again."""
_UNHEALTHY_SECONDS = 30.0
"""A log that is behind for longer is unhealthy."""


@dataclass(frozen=True)
class _Watched:
    """A watcher, its threads, and the event that stops them."""

    watcher: TableWatcher
    stop: threading.Event
    threads: tuple[threading.Thread, ...]


class Service:
    """Watches the tables that a function lists, each in three threads: publish, maintain, verify. A context manager.

    Attributes:
        metrics: the metrics of the tables.
        unlisted: why some tables may not be watched; empty if all could be listed.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[str]],
        *,
        options: Mapping[str, object] | None = None,
        schedule: Schedule | None = None,
        verify_rate: float | None = None,
    ) -> None:
        """Create the service; nothing runs before the context is entered.

        Args:
            tables: yields the paths of the tables; called again every few seconds. After an error, those that it has
                yielded are watched, and those that are watched stay.
            options: Kafka client options for all tables, which are not stored with them.
            schedule: how often to look and work.
            verify_rate: most records of the logs that are read per second to compare them; None for no limit.
        """
        self._tables = tables
        self.metrics = ServiceMetrics(lambda: self.states)
        self._make = partial(
            TableWatcher,
            options=options,
            schedule=schedule,
            observer=self.metrics,
            throttle=Throttle(verify_rate),
        )
        self._stop = threading.Event()
        self._watched: dict[str, _Watched] = {}
        self.unlisted = ""
        self._lister = threading.Thread(target=self._list, name="tablestore-serve", daemon=True)

    def __enter__(self) -> Service:
        """Start watching."""
        self._lister.start()
        # With the first value that it converts, PyArrow loads pandas if it is installed, which takes up to a second. No
        # page shall wait for that.
        pa.scalar(0)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, after publishes and maintenance in progress have ended."""
        self._stop.set()
        self._lister.join()
        for each in self._watched.values():
            each.stop.set()
        for each in self._watched.values():
            for thread in each.threads:
                thread.join()

    @property
    def states(self) -> list[TableState]:
        """The states of all tables, by path."""
        return [each.watcher.state for _, each in sorted(self._watched.copy().items())]

    def watcher(self, path: str) -> TableWatcher | None:
        """Return the watcher of a table; None if there is none."""
        found = self._watched.get(path)
        return None if found is None else found.watcher

    def problems(self) -> dict[str, str]:
        """Return what is wrong with tables, by path: errors, differences, and logs that stay behind.

        The path of tables that cannot be listed is empty.
        """
        found = {"": self.unlisted} if self.unlisted else {}
        for state in self.states:
            if state.error or state.verify.error:
                found[state.path] = state.error or state.verify.error
            elif state.verify.count:
                found[state.path] = f"verify found {counted(state.verify.count, 'difference')} between log and table"
            elif state.behind.seconds > _UNHEALTHY_SECONDS:
                found[state.path] = f"the log is {counted(state.behind.snapshots, 'snapshot')} behind"
        return found

    def _list(self) -> None:
        while True:
            listed, unlisted = set[str](), ""
            try:
                for path in self._tables():
                    listed.add(path)
            except Exception as error:
                unlisted = f"not all tables can be listed: {str(error) or type(error).__name__}"
                if unlisted != self.unlisted:
                    unexpected = not isinstance(error, TableStoreError)
                    logger.warning("%s", unlisted, exc_info=unexpected)
            self._watch(listed, stop_others=not unlisted)
            self.unlisted = unlisted
            if self._stop.wait(_LIST_SECONDS):
                return

    def _watch(self, paths: set[str], *, stop_others: bool) -> None:
        for path in self._watched.keys() - paths if stop_others else ():
            self._watched.pop(path).stop.set()
        for path in sorted(paths - self._watched.keys()):
            watcher, stop = self._make(path), threading.Event()
            works = (("watch", watcher.run), ("maintain", watcher.maintainer.run), ("verify", watcher.verifier.run))
            threads = tuple(
                threading.Thread(target=work, args=(stop,), name=f"tablestore-{name}-{path}", daemon=True)
                for name, work in works
            )
            self._watched[path] = _Watched(watcher, stop, threads)
            for thread in threads:
                thread.start()
