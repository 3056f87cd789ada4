"""``table.log``: repair of the log."""

from __future__ import annotations

from functools import partial

from log_system.report import Progress, RepairReport
from tablestore.table.handle import HasHandle, exclusive
from tablestore.write.publish import recover


class TableLog(HasHandle):
    """The log of one table."""

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
            NotFoundError: The table was dropped meanwhile; nothing of this repair stays.
            UnavailableError: The broker or the file system does not answer; repair again.
            FencedError: Another writer has taken over the log; repair again.
        """
        self._handle.renew()
        table, publisher = self._handle.refresh(), self._handle.publisher
        return table.log.repair(publisher, partial(recover, table, publisher), progress)
