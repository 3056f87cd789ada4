"""``table.log``: repair of the log, and the state of streams that normalize it."""

from __future__ import annotations

import os
from functools import partial

from log_system.report import Progress, RepairReport
from tablestore.streaming import saved_state
from tablestore.streaming.saved_state import SavedState
from tablestore.table.handle import TableHandle, exclusive
from tablestore.write.recovery import publish_all


class TableLog:
    """The log of one table."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle

    @property
    def shows_uncommitted(self) -> bool:
        """Whether readers see changes before they are committed (``log.consistency=eventual``)."""
        return self._handle.table.log.shows_uncommitted

    @exclusive
    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Repair the log index, the register and the end of the log; no plain consumer sees a change twice.

        Takes over the log, so that no other writer publishes in the meantime.

        Args:
            progress: Called with the offsets read so far and in all.

        Returns:
            What was done, how log and table compare now, and what to do about the rest.

        Raises:
            UnavailableError: The broker or the file system does not answer; repair again.
            FencedError: Another writer has taken over the log; repair again.
        """
        self._handle.renew()
        table, publisher = self._handle.refresh(), self._handle.publisher
        return table.log.repair(publisher, partial(publish_all, table, publisher), progress)

    def save_state(
        self, checkpoint: str | os.PathLike[str], into: str | os.PathLike[str], *, ttl: str | None = None
    ) -> SavedState:
        """Save the state of a stopped query over the normalized stream, without deleted keys.

        A new query with a new checkpoint continues from it: ``read_stream(state=into)``. Spark's state never forgets a
        key; this makes a state smaller, and lets the new query have another ``spark.sql.shuffle.partitions``.

        Args:
            checkpoint: The query's checkpoint, which stays as it is. Its last micro-batch must be complete.
            into: The folder to create.
            ttl: Forget keys that have not changed for this long, as in ``'30 d'``; by default none. A forgotten key
                starts with an insert when it changes again, and its delete is not emitted.

        Returns:
            How many keys were saved, and how many left out.

        Raises:
            InvalidInputError: The checkpoint belongs to another query, or its last micro-batch is not complete;
                ``into`` already holds a saved state; ``ttl`` is not a duration.
            UnavailableError: The file system refused.
        """
        handle = self._handle
        return saved_state.save_state(handle.spark, handle.refresh(), os.fspath(checkpoint), os.fspath(into), ttl)
