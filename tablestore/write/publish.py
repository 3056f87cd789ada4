"""Publishing: puts each committed snapshot that the log lacks into it, exactly once and in order.

Writes and recovery publish by the same steps; there is no other way into the log. A publisher that takes the log over
fences the previous owner, which makes the log correct. ``TakeOverBackoff`` and ``Patience`` only keep publishers from
fencing each other repeatedly, so that each of them publishes something.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from log_system.base import LogPublisher
from log_system.index import IndexEntry, LogIndex
from snapshot.disk import is_refused
from snapshot.errors import (
    CorruptedError,
    DataLostError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TableReplacedError,
    TableStoreError,
    UnavailableError,
)
from snapshot.records import ChangeSet
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.log_systems import SERVERS

logger = logging.getLogger("tablestore")

ATTEMPTS_MAX = 8
PATIENCE_SECONDS_MAX = 60.0
"""How long after a first failure a publisher retries while no snapshot gets into the log."""
_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 10.0
_DOUBLINGS_MAX = 6
_COSTS = 3
"""How many take-overs are remembered."""
_ALONE_SNAPSHOTS = 2
"""After so many snapshots that directly follow our own one before, no other writer is at work."""
_LOOK_SECONDS = 0.005
_TOGETHER_MAX = 50
_TOGETHER_ROWS_MAX = 10_000
"""Snapshots, and rows, that are published in one transaction."""

_FENCED_AGAIN = (
    "This happened repeatedly while nothing was published. If no other writer is active, publishing takes longer than "
    "option 'log.transaction-timeout' allows: raise it, or lower publish.transaction-rows-max. "
)

_GIVE_UP = (
    "Or give up what only the log holds: stop all writers, delete the topic (and create it again if create() did not "
    "create it), then call log.repair(), which publishes the snapshots of the current table; consumers start again at "
    "offset 0."
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
    table: TableContext,
    publisher: LogPublisher,
    snapshot: int,
    *,
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
        snapshot: the snapshot that has to be in the log.
        own: take the log over even if there is nothing to publish.
        turns: the publisher's backoff, which adapts to other publishers; None for a new one.

    Returns:
        The index entries of the snapshots that this call published.

    Raises:
        PublishPendingError: the log lacks ``snapshot``, and the broker failed ``ATTEMPTS_MAX`` times in a row or for
            ``log.request-timeout``, the file system is full, or no snapshot got into the log for
            ``PATIENCE_SECONDS_MAX`` after a first failure.
        LogMovedError: the table's log is now at other brokers; open a new publisher.
        UnavailableError: the broker failed as often, but the log lacks nothing.
        TableStoreError: a change file or the log's topic is wrong; a retry cannot fix that.
    """
    files, index, done = table.files, table.index, list[IndexEntry]()
    turns = turns or TakeOverBackoff()
    patience = Patience(turns.clock, publisher.wait_seconds)
    while (published := _published(index, publisher)) < snapshot or (own and not publisher.owns_log):
        try:
            # Step 1.
            if not publisher.owns_log:
                published = turns.wait(index, snapshot)
                if published >= snapshot and not own:
                    break
                _check_not_moved(files, publisher, files.latest())
                with turns.take_over():
                    publisher.take_over()
                patience.answered()
                # The previous owner went on publishing while this one took over.
                published = index.newest()
            # Step 2.
            done.extend(_publish_after(table, publisher, published, snapshot, turns))
            if own:
                publisher.mend()
            if done and done[-1].snapshot >= snapshot:
                break
        # Step 3.
        except FencedError as error:
            turns.fenced()
            # Who fenced us has aborted what earlier owners left open. What it may have left is records to mend.
            own = own and table.log.shows_uncommitted
            if patience.is_out(index.newest()):
                raise _pending(files, snapshot, error, _FENCED_AGAIN) from error
        except (UnavailableError, OutcomeUnknownError) as error:
            _give_up_or_wait(files, error, patience, turns, seen=index.newest(), snapshot=snapshot)
        except _IN_VAIN as error:
            publisher.discard()
            # If other publishers have published the snapshot, its changes may have expired since.
            if not (isinstance(error, DataLostError) and index.newest() > published):
                _raise_in_vain(files, index, error, snapshot, own=own)
    return done


def recover(
    table: TableContext, publisher: LogPublisher | None, *, turns: TakeOverBackoff | None = None
) -> list[IndexEntry]:
    """Take the log over and publish all committed snapshots that it lacks; do nothing if ``publisher`` is None.

    Raises:
        PublishPendingError: the broker does not answer, and the log lacks a snapshot.
        UnavailableError: the broker does not answer, but the log lacks nothing.
    """
    if publisher is None:
        return []
    publisher.discard()
    return publish_through(table, publisher, table.files.latest(), own=True, turns=turns)


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
    # A file system that has no room, or is read-only, is so until somebody has read the message.
    given_up = patience.is_out(seen, failed=True) or is_refused(error.__cause__)
    if given_up and seen >= snapshot:
        raise error
    if given_up:
        raise _pending(table, snapshot, error) from error
    logger.warning("publishing to the log failed (%d of %d tries): %s", patience.failures, ATTEMPTS_MAX, error)
    turns.wait_to_retry(patience.failures)


def _raise_in_vain(table: TableFiles, index: LogIndex, error: TableStoreError, snapshot: int, *, own: bool) -> None:
    """Raise an error that a retry cannot fix; only log it if ``snapshot`` is published and ``own`` is False."""
    root = table.storage.root
    if index.newest() < snapshot:
        msg = f"table {root!r}: {_committed(snapshot)}: {error}"
        raise type(error)(msg) from error
    if own:
        raise error
    logger.warning("table %s: snapshot %d is published; a later one is not: %s", root, snapshot, error)


@contextmanager
def pending_on_error(table: TableFiles, snapshot: int, on_error: Callable[[], None] | None = None) -> Iterator[None]:
    """Raise an error of publishing a committed snapshot, after ``on_error()``, as one that says that it is committed.

    Raises:
        PublishPendingError: the snapshot could not be published because of a lasting failure.
        TableReplacedError: the table was dropped and created again.
    """
    try:
        yield
    except (PublishPendingError, TableReplacedError):
        raise
    except Exception as error:
        if on_error is not None:
            on_error()
        shown = str(error) if isinstance(error, TableStoreError) else f"{type(error).__name__}: {error}"
        if _committed(snapshot) not in shown:
            shown = f"table {table.storage.root!r}: {_committed(snapshot)}: {shown}"
        advice = "Do not write the rows again: when the cause is removed, the next write or recover() publishes them."
        msg = f"{shown} {advice}"
        raise PublishPendingError(msg, snapshot) from error


def _committed(snapshot: int) -> str:
    return f"snapshot {snapshot} is committed but not yet in the log"


def _publish_after(
    table: TableContext, publisher: LogPublisher, published: int, wanted: int, turns: TakeOverBackoff
) -> Iterator[IndexEntry]:
    """Publish every snapshot after ``published``, the newest in the index; ``wanted`` is one of them."""
    files = table.files
    through, listed = files.latest(), table.index.last_seen
    check_not_ahead(files, max(published, publisher.newest), through)
    if through < wanted:
        msg = (
            f"table {table.path!r}: expected snapshot {wanted}, which was committed, got {through} as the "
            "newest: the table was set back in the meantime (an old copy was restored?). Restore its newest commits."
        )
        raise CorruptedError(msg)
    _check_not_moved(files, publisher, through)
    check_history(files, [*publisher.claimed, *([(listed.snapshot, listed.commit)] if listed else [])])
    buckets, limits = table.options.buckets, table.options.publish
    rows_max = min(_TOGETHER_ROWS_MAX, limits.driver_rows_max, limits.transaction_rows_max)
    changes = (files.published(each, buckets, fresh=False) for each in range(published + 1, through + 1))
    for together in _together(changes, rows_max):
        try:
            yield from publisher.publish(together)
        except _IN_VAIN:
            if len(together) == 1:
                raise
            # One of them cannot be published; those before it can.
            for each in together:
                yield from publisher.publish([each])
    if through > published:
        turns.published()


def _together(changes: Iterable[ChangeSet], rows_max: int) -> Iterator[list[ChangeSet]]:
    """Yield snapshots that are published at once, in one transaction: a large one alone, several small ones."""
    group, rows = list[ChangeSet](), 0
    for each in changes:
        more = sum(map(each.rows, each.buckets))
        if group and (rows + more > rows_max or len(group) == _TOGETHER_MAX):
            yield group
            group, rows = [], 0
        group.append(each)
        rows += more
    if group:
        yield group


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
    """Raise `LogMovedError` unless the publisher's brokers are those of the table's definition, where readers read.

    A change of the definition makes a snapshot. That snapshot and all later ones go to the new brokers only.
    """
    servers = table.spec_at_least(through).properties.get(SERVERS, "")
    if publisher.servers and servers != publisher.servers:
        publisher.discard()
        msg = (
            f"table {table.storage.root!r}: snapshot {through} is committed but not yet in the log: the log has moved "
            f"to {servers!r} since this handle was opened, when it was at {publisher.servers!r}. Nothing is lost: the "
            "next write or recover() of a newly opened handle publishes it."
        )
        raise LogMovedError(msg, through)


def check_history(table: TableFiles, claimed: Sequence[tuple[int, str]]) -> None:
    """Raise `CorruptedError` unless the log's newest snapshot is the same commit as the table's of that number.

    The two differ if the table was restored from an older copy and other writers have committed to it since. Their
    commits would seem published already. ``claimed`` are the snapshots that are published by register and index, with
    their commits' fingerprints.
    """
    known = {(snapshot, commit) for snapshot, commit in claimed if commit}
    newest = max((snapshot for snapshot, _ in known), default=0)
    own = table.fingerprint(newest, fresh=False) if newest else ""
    for snapshot, commit in known:
        if snapshot == newest and own and commit != own:
            msg = (
                f"table {table.storage.root!r}: snapshot {snapshot} in its log is another commit ({commit}) than in "
                f"the table ({own}): the table was restored from an older copy and others have committed to it since, "
                "or a Delta writer that checks and then writes has replaced the commit (docs/guide/object_stores.md). "
                f"Nothing was published. Bring the table back in which snapshot {snapshot} is {commit}. {_GIVE_UP}"
            )
            raise CorruptedError(msg)


def check_index(table: TableFiles, index: LogIndex) -> None:
    """Check the index against the table, without the broker, for code that commits before it connects to the broker.

    Raises:
        CorruptedError: the index holds snapshots that the table lacks, or other commits than the table.
    """
    listed = index.latest()
    if listed is not None:
        check_not_ahead(table, listed.snapshot, table.latest())
        check_history(table, [(listed.snapshot, listed.commit)])


def _pending(table: TableFiles, snapshot: int, error: TableStoreError, note: str = "") -> PublishPendingError:
    msg = (
        f"table {table.storage.root!r}: {_committed(snapshot)}: {error} {note}"
        "Nothing is lost: the next write or recover() publishes it."
    )
    return PublishPendingError(msg, snapshot)


class TakeOverBackoff:
    """Makes a publisher wait before it takes the log over, as long as the log's owner makes progress.

    The owner publishes every committed snapshot together with its own next one, so it usually publishes ours too; a
    take-over would slow both down. The waiting time adapts: it is about the duration of a take-over, doubled each time
    we are fenced and halved each time we publish. A fixed time would not do: on a busy machine, a take-over and a
    publish together may take longer, and publishers that wait less than that would fence each other forever.

    An owner that writes nothing, such as the publisher service, publishes ours only after a while. So we do not wait
    once our own snapshots have followed each other with nobody else's in between.

    Attributes:
        fences: how often we were fenced.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        count: Callable[[str], None] = lambda event: None,
    ) -> None:
        """Start without any known competitor; ``count`` gets each ``fence`` and ``retry``."""
        self.clock = clock
        self.sleep = sleep
        self.fences = 0
        self._count = count
        self._fenced = 0
        self._wanted, self._alone = -1, 0
        # The shortest of several: one that began while a broker died takes long without any other publisher.
        self._costs: deque[float] = deque(maxlen=_COSTS)

    @contextmanager
    def take_over(self) -> Iterator[None]:
        """Measure the duration of a take-over."""
        began = self.clock()
        yield
        self._costs.append(max(_WAIT_SECONDS_MIN, self.clock() - began))

    def fenced(self) -> None:
        """Double the waiting time, because another publisher took the log over from us."""
        self.fences += 1
        self._count("fence")
        self._fenced = min(self._fenced + 1, _DOUBLINGS_MAX)

    def wait_to_retry(self, failures: int) -> None:
        """Wait after an error of the broker, the longer the more there were in a row."""
        self._count("retry")
        self.sleep(random.uniform(0, min(2.0, 0.05 * 2**failures)))

    def published(self) -> None:
        """Halve the waiting time, because we published without being fenced."""
        self._fenced = max(self._fenced - 1, 0)

    def wait(self, index: LogIndex, snapshot: int) -> int:
        """Wait while another publisher moves the log towards ``snapshot``; return at once if we were never fenced.

        Returns:
            The newest snapshot in the index.
        """
        if snapshot != self._wanted:
            self._alone = self._alone + 1 if snapshot == self._wanted + 1 else 0
            self._wanted = snapshot
            if self._alone >= _ALONE_SNAPSHOTS:
                self._fenced = 0
        seen, since = index.newest(), self.clock()
        cost = min(self._costs, default=_WAIT_SECONDS_MIN)
        patience = cost * 2**self._fenced * random.uniform(0.5, 1.5) if self._fenced else 0.0
        patience = min(patience, _WAIT_SECONDS_MAX)
        while seen < snapshot and self.clock() - since < patience:
            self.sleep(_LOOK_SECONDS)
            now = index.newest()
            if now != seen:
                seen, since = now, self.clock()
        return seen


class Patience:
    """Decides when to stop retrying: after too many failures in a row, or too long without a published snapshot."""

    def __init__(self, clock: Callable[[], float], wait_seconds: float) -> None:
        """Start counting now.

        Args:
            clock: returns the time in seconds.
            wait_seconds: how long a broker may fail to answer, over all attempts.
        """
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._seen = -1
        self._since: float | None = None
        self._answered = clock()
        self.failures = 0

    def answered(self) -> None:
        """Restart the time limit for an answer, because the broker has answered."""
        self._answered = self._clock()

    def is_out(self, published: int, *, failed: bool = False) -> bool:
        """Count an unsuccessful attempt and return whether to give up.

        Args:
            published: the newest snapshot in the index.
            failed: the broker failed; False if another publisher fenced this one.
        """
        # Other publishers may be busy for long, so time counts from the first unsuccessful attempt. A broker that does
        # not answer has used up time before that, which counts too.
        now = self._clock()
        if published != self._seen or self._since is None:
            self._seen, self._since, self.failures = published, now, 0
        self.failures += failed
        silent = failed and now - self._answered > self._wait_seconds
        return silent or self.failures >= ATTEMPTS_MAX or now - self._since > PATIENCE_SECONDS_MAX


def _published(index: LogIndex, publisher: LogPublisher) -> int:
    """Return the newest published snapshot: the log's owner knows it, and is fenced if somebody else has published."""
    known = index.last_seen if publisher.owns_log else None
    return index.newest() if known is None else known.snapshot
