"""The log system interface: a table publishes its snapshots to a log in order, and readers follow the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from log_system.index import IndexEntry
from snapshot.records import ChangeSet, SentRange


class LogPublisher(Protocol):
    """Publishes one table's snapshots. One publisher owns the log at a time; a new owner fences the previous one."""

    @property
    def owns_log(self) -> bool:
        """Whether this publisher has taken over the log and has not noticed a later owner."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long the broker may be unreachable before publishing fails, in seconds."""
        ...

    @property
    def servers(self) -> str:
        """The bootstrap servers in the table's definition when this publisher was created."""
        ...

    @property
    def newest(self) -> int:
        """The newest snapshot with at least one change in the log; valid after ``take_over``."""
        ...

    @property
    def claimed(self) -> Sequence[tuple[int, str]]:
        """The last snapshots in the log with their commit fingerprints (empty: unknown); valid after ``take_over``."""
        ...

    def take_over(self) -> None:
        """Become the owner: abort the previous owner's open transactions and read what is already published."""
        ...

    def publish(self, changes: ChangeSet) -> IndexEntry:
        """Write a snapshot to the log and the index unless it is already there; called in snapshot order."""
        ...

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Record, by partition, which changes of a snapshot are already in the log (eventual logs only)."""
        ...

    def mend(self) -> None:
        """Repair records left in the log by attempts that never committed (eventual logs only)."""
        ...

    def discard(self) -> None:
        """Release ownership and close connections; ``take_over`` starts again."""
        ...
