"""``table.consumers``: named consumers; snapshots that one has not read do not expire."""

from __future__ import annotations

import warnings

from tablestore.read.time_travel import Point
from tablestore.streaming import consumers
from tablestore.streaming.consumers import Consumer
from tablestore.table.handle import HasHandle


class TableConsumers(HasHandle):
    """The named consumers of one table; ``read_stream(consumer=...)`` adds one."""

    def __call__(self) -> list[Consumer]:
        """Return the consumers; deprecated."""
        warnings.warn("table.consumers() is deprecated; use table.consumers.all()", DeprecationWarning, stacklevel=2)
        return self.all()

    def all(self) -> list[Consumer]:
        """Return the consumers, those furthest behind first."""
        return consumers.Consumers(self._handle.table.files.storage).all()

    def reset(self, name: str, snapshot: Point | None = None) -> None:
        """Set how far a consumer has read, or forget it.

        Stop its query first: a running query records its progress again. A query continues from its checkpoint; one
        with a new checkpoint starts after this snapshot.

        Args:
            name: The consumer's name.
            snapshot: The last snapshot it has read: an id, a tag or a time. None forgets the consumer.

        Raises:
            DataLostError: The changes after the snapshot expired meanwhile; the consumer stays where it was.
            NotFoundError: There is no such consumer, or no such snapshot.
        """
        consumers.reset_consumer(self._handle.refresh(), name, snapshot)
