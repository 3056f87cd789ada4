"""Recovery: what is committed and not in the log is published, never twice.

There is no other way into the log: a write publishes by the same steps that recovery takes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

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

logger = logging.getLogger("tablestore")

ATTEMPTS_MAX = 8
PATIENCE_SECONDS_MAX = 60.0
"""For how long after a first failure it is tried again while nobody gets a snapshot into the log."""
PATIENCE_SECONDS = 0.1
"""How long a fenced publisher waits for the new owner to make progress before it takes the log over again."""
_LOOK_SECONDS = 0.005
_FENCED_AGAIN = (
    "This happened again and again while nobody published anything: if no other writer is at work, publishing takes "
    "longer than option 'log.transaction-timeout' allows; raise it, or lower publish.transaction-rows-max. "
)


class PublishPendingError(UnavailableError):
    """A snapshot is committed and not yet in the log; the next write or ``recover()`` publishes it.

    Attributes:
        snapshot: the id of the committed snapshot.
    """

    kind = "publish-pending"

    def __init__(self, message: str, snapshot: int) -> None:
        """Keep the snapshot's id beside the message."""
        super().__init__(message)
        self.snapshot = snapshot


def publish_through(
    table: TableFiles,
    publisher: LogPublisher,
    index: LogIndex,
    snapshot: int,
    *,
    buckets: int,
    own: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[IndexEntry]:
    """Publish committed snapshots, in order, until ``snapshot`` is in the log.

    1. Take the log over, unless this publisher owns it. After being fenced, first give the new owner time: it publishes
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
        clock: gives seconds.
        sleep: waits a number of seconds.

    Returns:
        The entries this call has published.

    Raises:
        PublishPendingError: the broker failed ``ATTEMPTS_MAX`` times in a row, or nothing got into the log for
            ``PATIENCE_SECONDS_MAX`` after a first failure, and the log lacks ``snapshot``.
        UnavailableError: the broker failed as often, and the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; trying again would not help.
    """
    done: list[IndexEntry] = []
    patience = _Patience(clock)
    while (published := _published(index)) < snapshot or (own and not publisher.owns_log):
        try:
            # Step 1.
            if not publisher.owns_log:
                publisher.take_over()
            # Step 2.
            newest = table.latest()
            _check_not_ahead(table, max(published, publisher.newest), newest)
            done.extend(publisher.publish(table.changes(s, buckets)) for s in range(published + 1, newest + 1))
            if own:
                publisher.mend()
        # Step 3.
        except FencedError as error:
            _wait_for_owner(index, snapshot, clock, sleep)
            if patience.is_out(_published(index)):
                raise _pending(table, snapshot, error, _FENCED_AGAIN) from error
        except (UnavailableError, OutcomeUnknownError) as error:
            given_up = patience.is_out(_published(index), failed=True)
            logger.warning("publishing to the log failed (%d of %d tries): %s", patience.failures, ATTEMPTS_MAX, error)
            if given_up and published >= snapshot:
                raise
            if given_up:
                raise _pending(table, snapshot, error) from error
            sleep(random.uniform(0, min(2.0, 0.05 * 2**patience.failures)))
        except (CorruptedError, DataLostError, InvalidInputError, NotFoundError) as error:
            if _published(index) >= snapshot:
                raise
            msg = f"table {table.storage.root!r}: snapshot {snapshot} is committed but not yet in the log: {error}"
            raise type(error)(msg) from error
    return done


class _Patience:
    """Says when to stop trying: too many failures in a row, or too long without a snapshot getting into the log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen = -1
        self._since: float | None = None
        self.failures = 0

    def is_out(self, published: int, *, failed: bool = False) -> bool:
        """Count a try that did not succeed; ``failed`` where the broker did, not another publisher was faster."""
        # A try may take long before it fails, so time counts from the first failure on.
        if published != self._seen or self._since is None:
            self._seen, self._since, self.failures = published, self._clock(), 0
        self.failures += failed
        return self.failures >= ATTEMPTS_MAX or self._clock() - self._since > PATIENCE_SECONDS_MAX


def _check_not_ahead(table: TableFiles, published: int, newest: int) -> None:
    """Refuse to publish into a log that holds snapshots the table does not have: the next would pass for published.

    Raises:
        CorruptedError: the log is ahead of the table.
    """
    if published > newest:
        msg = (
            f"table {table.storage.root!r}: its log holds snapshots up to {published}, the table's files only up to "
            f"{newest}. The table was set back (an old copy was restored?), or its newest commits are lost. Bring "
            f"snapshots {newest + 1} to {published} back, or make a new table, with a new topic, of these rows."
        )
        raise CorruptedError(msg)


def recover(table: TableFiles, publisher: LogPublisher, index: LogIndex, *, buckets: int) -> list[IndexEntry]:
    """Take the log over and publish everything committed that it lacks.

    Raises:
        PublishPendingError: the broker does not answer, and the log lacks a snapshot.
        UnavailableError: the broker does not answer, and the log lacks nothing.
    """
    publisher.discard()
    return publish_through(table, publisher, index, table.latest(), buckets=buckets, own=True)


def _published(index: LogIndex) -> int:
    latest = index.latest()
    return 0 if latest is None else latest.snapshot


def _wait_for_owner(index: LogIndex, snapshot: int, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Wait while the log moves towards ``snapshot`` without us."""
    seen, since = _published(index), clock()
    patience = PATIENCE_SECONDS * random.uniform(1, 2)
    while seen < snapshot and clock() - since < patience:
        sleep(_LOOK_SECONDS)
        now = _published(index)
        if now != seen:
            seen, since = now, clock()


def _pending(table: TableFiles, snapshot: int, error: TableStoreError, note: str = "") -> PublishPendingError:
    msg = (
        f"table {table.storage.root!r}: snapshot {snapshot} is committed but not yet in the log: {error} {note}"
        "Nothing is lost: the next write or recover() publishes it."
    )
    return PublishPendingError(msg, snapshot)
