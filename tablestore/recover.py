"""Recovery: what is committed and not in the log is published, never twice.

There is no other way into the log: a write publishes by the same steps that recovery takes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

from log_system.base import LogPublisher
from log_system.index import IndexEntry, LogIndex
from snapshot.errors import (
    CorruptedError,
    DataLostError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TableStoreError,
    UnavailableError,
)
from snapshot.table import TableFiles
from tablestore.turns import ATTEMPTS_MAX, Patience, Turns, newest

logger = logging.getLogger("tablestore")

_FENCED_AGAIN = (
    "This happened again and again while nobody published anything: if no other writer is at work, publishing takes "
    "longer than option 'log.transaction-timeout' allows; raise it, or lower publish.transaction-rows-max. "
)


_IN_VAIN = (CorruptedError, DataLostError, InvalidInputError, NotFoundError)
"""What trying again does not help."""


class PublishPendingError(UnavailableError):
    """A snapshot is committed and not yet in the log; the next write or ``recover()`` publishes it.

    Do not repeat the write. Every failure after the commit is this error, whatever its reason: ``__cause__`` is the
    failure, such as ``UnavailableError``, ``DataLostError`` or ``InvalidInputError``, and the message holds its text.
    ``recover()`` raises the failure itself where trying again would not help.

    Attributes:
        snapshot: the id of the committed snapshot.
    """

    kind = "publish-pending"

    def __init__(self, message: str, snapshot: int) -> None:
        """Keep the snapshot's id beside the message."""
        super().__init__(message)
        self.snapshot = snapshot

    def __reduce__(self) -> tuple[type[PublishPendingError], tuple[str, int]]:
        """Pickle by what it was made from."""
        return type(self), (str(self), self.snapshot)


def publish_through(
    table: TableFiles,
    publisher: LogPublisher,
    index: LogIndex,
    snapshot: int,
    *,
    buckets: int,
    own: bool = False,
    turns: Turns | None = None,
) -> list[IndexEntry]:
    """Publish committed snapshots, in order, until ``snapshot`` is in the log.

    1. Take the log over, unless this publisher owns it. Once it was fenced, first give the new owner time: it publishes
       every committed snapshot, so it may well publish ours.
    2. Publish one snapshot after another, up to the newest there is. A crash leaves the rest to the next publisher.
       Recovery also mends an eventual log, which may hold records of attempts that never committed.
    3. After any error the publisher is new: go to 1, until tries or time are used up.

    Args:
        table: the table.
        publisher: publishes its snapshots.
        index: the table's log index.
        snapshot: the snapshot that has to be in the log.
        buckets: the table's number of buckets.
        own: take the log over even if there is nothing to publish.
        turns: what the publisher has learnt of others; None for nothing.

    Returns:
        The entries this call has published.

    Raises:
        PublishPendingError: the broker failed ``ATTEMPTS_MAX`` times in a row or for ``log.request-timeout``, or
            nothing got into the log for ``PATIENCE_SECONDS_MAX`` after a first failure, and the log lacks ``snapshot``.
        UnavailableError: the broker failed as often, and the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; trying again would not help.
    """
    done: list[IndexEntry] = []
    turns = turns or Turns()
    patience = Patience(turns.clock, publisher.wait_seconds)
    while (published := newest(index)) < snapshot or (own and not publisher.owns_log):
        try:
            # Step 1.
            if not publisher.owns_log:
                published = turns.wait(index, snapshot)
                if published >= snapshot and not own:
                    break
                with turns.take_over():
                    publisher.take_over()
                patience.answered()
            # Step 2.
            done.extend(_publish_after(table, publisher, published, buckets, turns))
            if own:
                publisher.mend()
        # Step 3.
        except FencedError as error:
            turns.fenced()
            if patience.is_out(newest(index)):
                raise _pending(table, snapshot, error, _FENCED_AGAIN) from error
        except (UnavailableError, OutcomeUnknownError) as error:
            given_up = patience.is_out(newest(index), failed=True)
            logger.warning("publishing to the log failed (%d of %d tries): %s", patience.failures, ATTEMPTS_MAX, error)
            if given_up and published >= snapshot:
                raise
            if given_up:
                raise _pending(table, snapshot, error) from error
            turns.sleep(random.uniform(0, min(2.0, 0.05 * 2**patience.failures)))
        except _IN_VAIN as error:
            publisher.discard()
            # Lost changes may have expired since others published them.
            if not (isinstance(error, DataLostError) and newest(index) > published):
                _raise_in_vain(table, index, error, snapshot, own=own)
    return done


def _raise_in_vain(table: TableFiles, index: LogIndex, error: TableStoreError, snapshot: int, *, own: bool) -> None:
    """Raise an error that trying again would not help, unless it is about a later snapshot than the caller's own."""
    root = table.storage.root
    if newest(index) < snapshot:
        msg = f"table {root!r}: {_committed(snapshot)}: {error}"
        raise type(error)(msg) from error
    if own:
        raise error
    logger.warning("table %s: snapshot %d is published; a later one is not: %s", root, snapshot, error)


def publish_pending(table: TableFiles, snapshot: int, error: Exception) -> PublishPendingError:
    """Make the error for a committed snapshot whose publishing failed for a reason that does not pass by itself."""
    shown = str(error) if isinstance(error, TableStoreError) else f"{type(error).__name__}: {error}"
    if _committed(snapshot) not in shown:
        shown = f"table {table.storage.root!r}: {_committed(snapshot)}: {shown}"
    msg = f"{shown} Do not write the rows again: when the cause is removed, the next write or recover() publishes them."
    return PublishPendingError(msg, snapshot)


def _committed(snapshot: int) -> str:
    return f"snapshot {snapshot} is committed but not yet in the log"


def _publish_after(
    table: TableFiles, publisher: LogPublisher, published: int, buckets: int, turns: Turns
) -> Iterator[IndexEntry]:
    """Publish every snapshot after ``published``."""
    through = table.latest()
    _check_not_ahead(table, max(published, publisher.newest), through)
    for snapshot in range(published + 1, through + 1):
        yield publisher.publish(table.published(snapshot, buckets))
    if through > published:
        turns.published()


def _check_not_ahead(table: TableFiles, published: int, committed: int) -> None:
    """Refuse to publish into a log that holds snapshots the table does not have: the next would pass for published.

    Raises:
        CorruptedError: the log is ahead of the table.
    """
    if published > committed:
        msg = (
            f"table {table.storage.root!r}: its log holds snapshots up to {published}, the table's files only up to "
            f"{committed}. The table was set back (an old copy was restored?), or its newest commits are lost. Bring "
            f"snapshots {committed + 1} to {published} back, or make a new table, with a new topic, of these rows."
        )
        raise CorruptedError(msg)


def recover(
    table: TableFiles, publisher: LogPublisher, index: LogIndex, *, buckets: int, turns: Turns | None = None
) -> list[IndexEntry]:
    """Take the log over and publish everything committed that it lacks.

    Raises:
        PublishPendingError: the broker does not answer, and the log lacks a snapshot.
        UnavailableError: the broker does not answer, and the log lacks nothing.
    """
    publisher.discard()
    return publish_through(table, publisher, index, table.latest(), buckets=buckets, own=True, turns=turns)


def _pending(table: TableFiles, snapshot: int, error: TableStoreError, note: str = "") -> PublishPendingError:
    msg = (
        f"table {table.storage.root!r}: {_committed(snapshot)}: {error} {note}"
        "Nothing is lost: the next write or recover() publishes it."
    )
    return PublishPendingError(msg, snapshot)
