"""A table that the service works on: opened when it is first needed, and again after it was closed."""

from __future__ import annotations

from collections.abc import Mapping

from tablestore.context import TableContext
from tablestore.local.handle import LocalHandle
from tablestore.write.metrics import Observer


class ServedTable:
    """The table at a path, and its connections. Not thread-safe.

    Attributes:
        handle: the open table; None before the first use and after ``close``.
    """

    def __init__(self, path: str, options: Mapping[str, object], observer: Observer | None) -> None:
        """Name the table, its client options and the observer of its operations; nothing is opened yet."""
        self.handle: LocalHandle | None = None
        self._path = path
        self._options = options
        self._observer = observer

    def opened(self) -> LocalHandle:
        """Return the open table.

        Raises:
            NotFoundError: there is no table at the path.
        """
        if self.handle is None:
            self.handle = LocalHandle(TableContext.open(self._path, self._options))
            self.handle.writer.meter.observer = self._observer
        return self.handle

    def close(self) -> None:
        """Close the connections to the broker."""
        if self.handle is not None:
            self.handle.writer.discard()
            self.handle = None
