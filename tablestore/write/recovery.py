"""Recovery: what is committed and not in the log is published, never twice.

There is no other way into the log: a write publishes by the same steps that recovery takes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence

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
from snapshot.store.table_files import TableFiles
from tablestore.context import SERVERS
from tablestore.write.take_over_backoff import ATTEMPTS_MAX, Patience, TakeOverBackoff, newest

logger = logging.getLogger("tablestore")

_FENCED_AGAIN = (
    "This happened again and again while nobody published anything: if no other writer is at work, publishing takes "
    "longer than option 'log.transaction-timeout' allows; raise it, or lower publish.transaction-rows-max. "
)

_GIVE_UP = (
    "Or give up what only the log holds: stop all writers, delete the topic (and make it again where create() did not "
    "make it), then call log.repair(): it publishes the snapshots of the table as it is now, and consumers begin again "
    "at offset 0."
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


class LogMovedError(PublishPendingError):
    """The table's definition names other brokers by now; a publisher made for those before must not publish."""


def publish_through(
    table: TableFiles,
    publisher: LogPublisher,
    index: LogIndex,
    snapshot: int,
    *,
    buckets: int,
    own: bool = False,
    turns: TakeOverBackoff | None = None,
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
        LogMovedError: the table's log is at other brokers by now; open a publisher anew.
        UnavailableError: the broker failed as often, and the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; trying again would not help.
    """
    done: list[IndexEntry] = []
    turns = turns or TakeOverBackoff()
    patience = Patience(turns.clock, publisher.wait_seconds)
    while (published := newest(index)) < snapshot or (own and not publisher.owns_log):
        try:
            # Step 1.
            if not publisher.owns_log:
                published = turns.wait(index, snapshot)
                if published >= snapshot and not own:
                    break
                _check_not_moved(table, publisher, table.latest())
                with turns.take_over():
                    publisher.take_over()
                patience.answered()
            # Step 2.
            done.extend(_publish_after(table, publisher, index, published, snapshot, buckets, turns))
            if own:
                publisher.mend()
        # Step 3.
        except FencedError as error:
            turns.fenced()
            if patience.is_out(newest(index)):
                raise _pending(table, snapshot, error, _FENCED_AGAIN) from error
        except (UnavailableError, OutcomeUnknownError) as error:
            _give_up_or_wait(table, error, patience, turns, seen=newest(index), snapshot=snapshot)
        except _IN_VAIN as error:
            publisher.discard()
            # Lost changes may have expired since others published them.
            if not (isinstance(error, DataLostError) and newest(index) > published):
                _raise_in_vain(table, index, error, snapshot, own=own)
    return done


def _give_up_or_wait(
    table: TableFiles, error: TableStoreError, patience: Patience, turns: TakeOverBackoff, *, seen: int, snapshot: int
) -> None:
    """Wait before the next try where there is to be one; ``seen`` is the newest snapshot in the index.

    Raises:
        PublishPendingError: tries or time are used up, and the log lacks ``snapshot``.
        TableStoreError: ``error``, where the log lacks nothing, or waiting would not help.
    """
    if isinstance(error, LogMovedError):
        raise error
    given_up = patience.is_out(seen, failed=True)
    logger.warning("publishing to the log failed (%d of %d tries): %s", patience.failures, ATTEMPTS_MAX, error)
    if given_up and seen >= snapshot:
        raise error
    if given_up:
        raise _pending(table, snapshot, error) from error
    turns.sleep(random.uniform(0, min(2.0, 0.05 * 2**patience.failures)))


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
    table: TableFiles,
    publisher: LogPublisher,
    index: LogIndex,
    published: int,
    wanted: int,
    buckets: int,
    turns: TakeOverBackoff,
) -> Iterator[IndexEntry]:
    """Publish every snapshot after ``published``, the newest in the index; ``wanted`` is one of them."""
    through, listed = table.latest(), index.last_seen
    _check_not_ahead(table, max(published, publisher.newest), through)
    if through < wanted:
        msg = (
            f"table {table.storage.root!r}: expected snapshot {wanted}, which was committed, got {through} as the "
            "newest: the table was set back meanwhile (an old copy was restored?). Bring its newest commits back."
        )
        raise CorruptedError(msg)
    _check_not_moved(table, publisher, through)
    _check_history(table, [*publisher.claimed, *([(listed.snapshot, listed.commit)] if listed else [])])
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
            f"snapshots {committed + 1} to {published} back. {_GIVE_UP}"
        )
        raise CorruptedError(msg)


def _check_not_moved(table: TableFiles, publisher: LogPublisher, through: int) -> None:
    """Refuse to publish to brokers that the table's definition names no more: readers look at others by now.

    Whoever changes the definition makes a snapshot, which, with all after it, goes to the new brokers only.

    Raises:
        LogMovedError: it names others.
    """
    servers = table.spec_at_least(through).properties.get(SERVERS, "")
    if publisher.servers and servers != publisher.servers:
        publisher.discard()
        msg = (
            f"table {table.storage.root!r}: snapshot {through} is committed but not yet in the log: the log is at "
            f"{servers!r} by now, and this handle was opened when it was at {publisher.servers!r}. Nothing is lost: "
            "the next write or recover() of a handle that is opened now publishes it."
        )
        raise LogMovedError(msg, through)


def _check_history(table: TableFiles, claimed: Sequence[tuple[int, str]]) -> None:
    """Refuse to publish where the log's newest snapshot is another commit than the table's of that number.

    That is so where a table was restored from an older copy and others have committed to it since: what they committed
    would pass for published.

    Args:
        table: the table.
        claimed: snapshots that register and index say are published, and what identifies their commits.

    Raises:
        CorruptedError: it is another commit.
    """
    known = {(snapshot, commit) for snapshot, commit in claimed if commit}
    newest = max((snapshot for snapshot, _ in known), default=0)
    own = table.fingerprint(newest) if newest else ""
    for snapshot, commit in known:
        if snapshot == newest and own and commit != own:
            msg = (
                f"table {table.storage.root!r}: snapshot {snapshot} in its log is another commit ({commit}) than in "
                f"the table ({own}): the table was restored from an older copy, and others have committed to it since. "
                f"Nothing was published. Bring the table back in which snapshot {snapshot} is {commit}. {_GIVE_UP}"
            )
            raise CorruptedError(msg)


def check_index(table: TableFiles, index: LogIndex) -> None:
    """Compare the index with the table, without asking a broker, where something is committed before it is asked.

    Raises:
        CorruptedError: the index holds snapshots that the table does not have, or other commits than the table.
    """
    listed = index.latest()
    if listed is not None:
        _check_not_ahead(table, listed.snapshot, table.latest())
        _check_history(table, [(listed.snapshot, listed.commit)])


def recover(
    table: TableFiles, publisher: LogPublisher, index: LogIndex, *, buckets: int, turns: TakeOverBackoff | None = None
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
