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
from snapshot.errors import FencedError, OutcomeUnknownError, TableStoreError, UnavailableError
from snapshot.table import TableFiles

logger = logging.getLogger("tablestore")

ATTEMPTS_MAX = 8
PATIENCE_SECONDS = 0.1
"""How long a fenced publisher waits for the new owner to make progress before it takes the log over again."""
_LOOK_SECONDS = 0.005


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
    3. After any error the publisher is new: go to 1.

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
        PublishPendingError: the broker failed ``ATTEMPTS_MAX`` times in a row and the log lacks ``snapshot``.
        UnavailableError: the broker failed as often, and the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; trying again would not help.
    """
    done: list[IndexEntry] = []
    failures = 0
    while (published := _published(index)) < snapshot or (own and not publisher.owns_log):
        try:
            # Step 1.
            if not publisher.owns_log:
                publisher.take_over()
            # Step 2.
            newest = table.latest()
            done.extend(publisher.publish(table.changes(s, buckets)) for s in range(published + 1, newest + 1))
            if own:
                publisher.mend()
        # Step 3.
        except FencedError:
            _wait_for_owner(index, snapshot, clock, sleep)
        except (UnavailableError, OutcomeUnknownError) as error:
            failures += 1
            logger.warning("publishing to the log failed (%d of %d tries): %s", failures, ATTEMPTS_MAX, error)
            if failures >= ATTEMPTS_MAX and published >= snapshot:
                raise
            if failures >= ATTEMPTS_MAX:
                raise _pending(table, snapshot, error) from error
            sleep(random.uniform(0, min(2.0, 0.05 * 2**failures)))
    return done


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


def _pending(table: TableFiles, snapshot: int, error: TableStoreError) -> PublishPendingError:
    msg = (
        f"table {table.storage.root!r}: snapshot {snapshot} is committed but not yet in the log: {error} "
        "Nothing is lost: the next write or recover() publishes it."
    )
    return PublishPendingError(msg, snapshot)
