"""Settle the eventual log of a table without a key: every committed change is in it at least once.

Without a key, nothing in the log can be taken back or corrected: rows of attempts that never committed, and rows that
an attempt repeats, stay. What is left to decide is whether a snapshot's changes are in the log after the end of the
snapshot before, where readers that begin with that snapshot begin to read. If that is not certain, they are sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from log_system.kafka.publisher.eager_producer import RecordStream
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.transactional_publisher import SentSnapshots
from log_system.kafka.register import RegisterPosition
from snapshot.records import ChangeSet, LogEnd, Snapshot


class AtLeastOncePublisher(EventualPublisher):
    """Settles snapshots whose rows were sent to the log before their commit. Not thread-safe."""

    def mend(self) -> None:
        """Do nothing: rows that were never committed cannot be taken back."""

    def _send(self, snapshots: Sequence[ChangeSet]) -> SentSnapshots:
        """Settle snapshots and all later committed snapshots, unless already done.

        A partition ends after the rows that this writer sent for its own snapshot, so that rows which others have sent
        after them, and will commit later, are in the range of a later snapshot.
        """
        unsettled = self._unsettled(snapshots)
        if not unsettled:
            return {}
        ends, dirty = [], {}
        for partition, (held, end) in enumerate(zip(self._register, self._log_ends(), strict=True)):
            filled = [each.snapshot.id for each in unsettled if each.rows(partition)]
            sent = self._expected[1].get(partition) if filled == [self._expected[0]] else None
            # A leader that has changed may have lost what this writer sent.
            is_kept = not held.log_end.may_be_lost(end)
            if sent is not None and held.end <= sent.first and sent.end <= end.offset and is_kept:
                ends.append(LogEnd(sent.end, end.epoch))
                continue
            ends.append(LogEnd(held.end, end.epoch))
            if filled:
                dirty[partition] = held.end
        self._repair(dirty, ends, unsettled, unsettled[-1].snapshot)
        return {}

    def _has_lost(self, partition: int, start: int, first: int) -> bool:
        """Return False: what retention has removed was there for readers."""
        return False

    def _moved(
        self, partition: int, end: int, stream: RecordStream | None, settled: Snapshot | None
    ) -> RegisterPosition:
        """Return the position after what was sent again, whatever others have sent in between."""
        assert settled is not None, "without a snapshot nothing is sent"
        end = end if stream is None else stream.sent().end
        return RegisterPosition(settled.id, 0, 0, done=True, end=end, commit=settled.fingerprint)
