"""What a log system is to the table: a place that publishes snapshots in order and lets readers follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from log_system.index import IndexEntry
from snapshot.records import ChangeSet, SentRange


class LogPublisher(Protocol):
    """Publishes one table's snapshots. One publisher owns the log at a time; a later owner fences the one before."""

    @property
    def owns_log(self) -> bool:
        """Whether this publisher has taken the log over and knows of nobody who has done so since."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long the log's broker may fail to answer before publishing is given up."""
        ...

    @property
    def servers(self) -> str:
        """The brokers that the table's definition named when this publisher was made."""
        ...

    @property
    def newest(self) -> int:
        """The newest snapshot of which the log holds any change; known from ``take_over`` on."""
        ...

    @property
    def claimed(self) -> Sequence[tuple[int, str]]:
        """The last snapshots in the log, each with what identifies its commit (empty: not known); as ``newest``."""
        ...

    def take_over(self) -> None:
        """Become the owner: end what the owner before has open, and learn what is published."""
        ...

    def publish(self, changes: ChangeSet) -> IndexEntry:
        """Put a snapshot into the log and the index unless it is there; called in snapshot order."""
        ...

    def expect(self, snapshot: int, sent: Mapping[int, SentRange]) -> None:
        """Hear where the changes of a snapshot are already, by partition (an eventual log)."""
        ...

    def mend(self) -> None:
        """Repair what attempts that never committed have left in the log (an eventual log)."""
        ...

    def discard(self) -> None:
        """Give up ownership and connections; ``take_over`` begins anew."""
        ...
