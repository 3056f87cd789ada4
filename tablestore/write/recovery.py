"""Recovery: publishes what writers that crashed or lost their broker have committed and not published."""

from __future__ import annotations

from log_system.base import LogPublisher
from log_system.index import IndexEntry, LogIndex
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.write.publish import check_history, check_not_ahead, publish_through
from tablestore.write.take_over_backoff import TakeOverBackoff


def recover(
    table: TableFiles, publisher: LogPublisher, index: LogIndex, *, buckets: int, turns: TakeOverBackoff | None = None
) -> list[IndexEntry]:
    """Take the log over and publish all committed snapshots that it lacks.

    Raises:
        PublishPendingError: the broker does not answer, and the log lacks a snapshot.
        UnavailableError: the broker does not answer, but the log lacks nothing.
    """
    publisher.discard()
    return publish_through(table, publisher, index, table.latest(), buckets=buckets, own=True, turns=turns)


def publish_all(
    table: TableContext, publisher: LogPublisher | None, turns: TakeOverBackoff | None = None
) -> list[IndexEntry]:
    """Run ``recover`` with a publisher that may be None, which publishes nothing."""
    if publisher is None:
        return []
    return recover(table.files, publisher, table.index, buckets=table.options.buckets, turns=turns)


def check_index(table: TableFiles, index: LogIndex) -> None:
    """Check the index against the table, without the broker, for code that commits before it connects to the broker.

    Raises:
        CorruptedError: the index holds snapshots that the table lacks, or other commits than the table.
    """
    listed = index.latest()
    if listed is not None:
        check_not_ahead(table, listed.snapshot, table.latest())
        check_history(table, [(listed.snapshot, listed.commit)])
