"""Publishing: puts each committed snapshot that the log lacks into it, exactly once and in order.

Writes and recovery publish by the same steps; there is no other way into the log.
"""

from __future__ import annotations

import logging
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
from tablestore.log_systems import SERVERS
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
"""Errors that a retry cannot fix."""


class PublishPendingError(UnavailableError):
    """A snapshot is committed but not yet in the log; the next write or ``recover()`` publishes it.

    Do not repeat the write. Every failure after the commit raises this error. Its ``__cause__`` is the failure, such as
    ``UnavailableError``, ``DataLostError`` or ``InvalidInputError``, and its message includes the failure's text.
    ``recover()`` raises the failure itself if a retry cannot fix it.

    Attributes:
        snapshot: the id of the committed snapshot.
    """

    kind = "publish-pending"

    def __init__(self, message: str, snapshot: int) -> None:
        """Store the message and the snapshot's id."""
        super().__init__(message)
        self.snapshot = snapshot

    def __reduce__(self) -> tuple[type[PublishPendingError], tuple[str, int]]:
        """Pickle by the constructor's arguments."""
        return type(self), (str(self), self.snapshot)


class LogMovedError(PublishPendingError):
    """The table's definition now names other brokers, so a publisher opened for the old ones must not publish."""


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

    1. Take the log over, unless this publisher owns it. A publisher that was fenced first waits for the new owner,
       which publishes every committed snapshot and so probably this one too.
    2. Publish snapshots one after another, up to the newest committed one. After a crash, the next publisher publishes
       the rest. Recovery also repairs an eventual log, which may hold records of attempts that never committed.
    3. After an error, the publisher no longer owns the log: go to step 1, until attempts or time run out.

    Args:
        table: the table.
        publisher: publisher of the table's log.
        index: the table's log index.
        snapshot: the snapshot that has to be in the log.
        buckets: the table's number of buckets.
        own: take the log over even if there is nothing to publish.
        turns: the publisher's backoff, which adapts to other publishers; None for a new one.

    Returns:
        The index entries of the snapshots that this call published.

    Raises:
        PublishPendingError: the log lacks ``snapshot``, and the broker failed ``ATTEMPTS_MAX`` times in a row or for
            ``log.request-timeout``, or no snapshot got into the log for ``PATIENCE_SECONDS_MAX`` after a first failure.
        LogMovedError: the table's log is now at other brokers; open a new publisher.
        UnavailableError: the broker failed as often, but the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; a retry cannot fix that.
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
            if done and done[-1].snapshot >= snapshot:
                break
        # Step 3.
        except FencedError as error:
            turns.fenced()
            if patience.is_out(newest(index)):
                raise _pending(table, snapshot, error, _FENCED_AGAIN) from error
        except (UnavailableError, OutcomeUnknownError) as error:
            _give_up_or_wait(table, error, patience, turns, seen=newest(index), snapshot=snapshot)
        except _IN_VAIN as error:
            publisher.discard()
            # If other publishers have published the snapshot, its changes may have expired since.
            if not (isinstance(error, DataLostError) and newest(index) > published):
                _raise_in_vain(table, index, error, snapshot, own=own)
    return done


def _give_up_or_wait(
    table: TableFiles, error: TableStoreError, patience: Patience, turns: TakeOverBackoff, *, seen: int, snapshot: int
) -> None:
    """Wait before the next attempt, or raise if there is to be none; ``seen`` is the newest snapshot in the index.

    Raises:
        PublishPendingError: attempts or time have run out, and the log lacks ``snapshot``.
        TableStoreError: ``error`` itself, if the log lacks nothing or a retry cannot help.
    """
    if isinstance(error, LogMovedError):
        raise error
    given_up = patience.is_out(seen, failed=True)
    logger.warning("publishing to the log failed (%d of %d tries): %s", patience.failures, ATTEMPTS_MAX, error)
    if given_up and seen >= snapshot:
        raise error
    if given_up:
        raise _pending(table, snapshot, error) from error
    turns.wait_to_retry(patience.failures)


def _raise_in_vain(table: TableFiles, index: LogIndex, error: TableStoreError, snapshot: int, *, own: bool) -> None:
    """Raise an error that a retry cannot fix; only log it if ``snapshot`` is published and ``own`` is False."""
    root = table.storage.root
    if newest(index) < snapshot:
        msg = f"table {root!r}: {_committed(snapshot)}: {error}"
        raise type(error)(msg) from error
    if own:
        raise error
    logger.warning("table %s: snapshot %d is published; a later one is not: %s", root, snapshot, error)


def publish_pending(table: TableFiles, snapshot: int, error: Exception) -> PublishPendingError:
    """Return the error for a committed snapshot that could not be published because of a lasting failure."""
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
    check_not_ahead(table, max(published, publisher.newest), through)
    if through < wanted:
        msg = (
            f"table {table.storage.root!r}: expected snapshot {wanted}, which was committed, got {through} as the "
            "newest: the table was set back meanwhile (an old copy was restored?). Bring its newest commits back."
        )
        raise CorruptedError(msg)
    _check_not_moved(table, publisher, through)
    check_history(table, [*publisher.claimed, *([(listed.snapshot, listed.commit)] if listed else [])])
    for snapshot in range(published + 1, through + 1):
        yield publisher.publish(table.published(snapshot, buckets))
    if through > published:
        turns.published()


def check_not_ahead(table: TableFiles, published: int, committed: int) -> None:
    """Check that the log holds no snapshots that the table lacks; otherwise new snapshots would seem published already.

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
    """Check that the publisher's brokers are still those of the table's definition, where readers read.

    A change of the definition makes a snapshot. That snapshot and all later ones go to the new brokers only.

    Raises:
        LogMovedError: the definition names other brokers.
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


def check_history(table: TableFiles, claimed: Sequence[tuple[int, str]]) -> None:
    """Check that the log's newest snapshot is the same commit as the table's snapshot of that number.

    The two differ if the table was restored from an older copy and other writers have committed to it since. Their
    commits would seem published already.

    Args:
        table: the table.
        claimed: snapshots that are published according to register and index, with their commit fingerprints.

    Raises:
        CorruptedError: the commits differ.
    """
    known = {(snapshot, commit) for snapshot, commit in claimed if commit}
    newest = max((snapshot for snapshot, _ in known), default=0)
    own = table.fingerprint(newest) if newest else ""
    for snapshot, commit in known:
        if snapshot == newest and own and commit != own:
            msg = (
                f"table {table.storage.root!r}: snapshot {snapshot} in its log is another commit ({commit}) than in "
                f"the table ({own}): the table was restored from an older copy and others have committed to it since, "
                "or a Delta writer that checks and then writes has replaced the commit (docs/guide/object_stores.md). "
                f"Nothing was published. Bring the table back in which snapshot {snapshot} is {commit}. {_GIVE_UP}"
            )
            raise CorruptedError(msg)


def _pending(table: TableFiles, snapshot: int, error: TableStoreError, note: str = "") -> PublishPendingError:
    msg = (
        f"table {table.storage.root!r}: {_committed(snapshot)}: {error} {note}"
        "Nothing is lost: the next write or recover() publishes it."
    )
    return PublishPendingError(msg, snapshot)
