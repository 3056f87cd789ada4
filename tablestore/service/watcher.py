"""Watches one table: publishes what crashed writers left, and measures its state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from log_system.kafka.client.secrets import wrap
from snapshot.errors import NotFoundError, TableReplacedError
from snapshot.store.changes import MAINTENANCE
from snapshot.store.table_files import TableFiles
from tablestore.context import TableContext
from tablestore.service.attempts import Attempts, Schedule
from tablestore.service.maintainer import TableMaintainer
from tablestore.service.served_table import ServedTable
from tablestore.service.verifier import TableVerifier, Throttle, VerifyState
from tablestore.streaming.consumers import Consumers
from tablestore.write.metrics import Observer
from tablestore.write.publish import pending_on_error

_SAMPLES_MAX = 2_000
_DOUBLINGS_MAX = 2
_ALIVE_SECONDS = 2.0
"""A writer that publishes so soon after the watcher has published in its place was alive: none starts so fast."""
_LOOK_SECONDS = 5.0
"""How often to read what is merged and the consumers, and to check that the table is still the one that was opened."""


@dataclass(frozen=True)
class Behind:
    """How far a log or a reader is behind its table.

    Attributes:
        snapshots: the number of missing snapshots.
        seconds: the age of the oldest one; 0 if none is missing.
    """

    snapshots: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Sample:
    """A measurement of a watcher at one time.

    Attributes:
        at_ms: the time, in milliseconds since the epoch.
        newest: the newest committed snapshot.
        published: the newest published snapshot.
    """

    at_ms: float
    newest: int
    published: int


@dataclass(frozen=True)
class TableState:
    """The state of a table as its watcher has last seen it.

    Attributes:
        path: the table's folder.
        has_log: whether it has a log beside its files.
        newest: the newest snapshot.
        published: the newest snapshot up to which the log has all changes; ``newest`` without a log.
        behind: what the log lacks.
        consumers: what each named consumer has not read, by its name.
        merged: the newest snapshot whose changes are all in the base table, where any Delta reader sees them.
        merged_age: the age of the oldest snapshot with changes that are not; 0 if there is none.
        error: why the last attempt to publish or maintain failed; empty after a success.
        errors: how many attempts failed, by kind of error.
        verify: how the comparison of log and table stands.
        curve: when the newest committed and the newest published snapshot changed while the service watched.
    """

    path: str
    has_log: bool = True
    newest: int = 0
    published: int = 0
    behind: Behind = Behind()
    consumers: Mapping[str, Behind] = field(default_factory=dict)
    merged: int = 0
    merged_age: float = 0.0
    error: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)
    verify: VerifyState = field(default_factory=VerifyState)
    curve: tuple[Sample, ...] = ()


class TableWatcher:
    """Watches one table in one thread. Any number of watchers, in any processes, may watch a table.

    Attributes:
        maintainer: compacts and expires the table, in a thread of its own.
        verifier: compares log and table, in a thread of its own.
    """

    def __init__(
        self,
        path: str,
        *,
        options: Mapping[str, object] | None = None,
        schedule: Schedule | None = None,
        observer: Observer | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        """Watch the table at ``path``; nothing is opened yet.

        Args:
            path: the table's folder.
            options: Kafka client options that are not stored with the table.
            schedule: how often to look and work; None for the defaults.
            observer: told of each publish, compaction and expiry.
            throttle: limits the records that ``verifier`` reads; None for no limit.
        """
        self._state = TableState(path)
        self._attempts = Attempts()
        given = wrap(options or {})
        self._schedule = schedule or Schedule()
        self.maintainer = TableMaintainer(path, given, self._schedule, observer)
        self.verifier = TableVerifier(path, given, self._schedule, throttle)
        self._table = ServedTable(path, given, observer)
        self._seen, self._behind_since = -1, 0.0
        self._marks: Sequence[int] = ()
        self._doublings = 0
        self._caught_up = 0.0
        self._others_published: float | None = None
        self._curve: deque[Sample] = deque(maxlen=_SAMPLES_MAX)
        self._looked = -_LOOK_SECONDS

    @property
    def state(self) -> TableState:
        """The state of the table as this watcher, its maintainer and its verifier have last seen it."""
        done = self._attempts.beside(self.maintainer.attempts)
        return replace(
            self._state,
            error=done.error,
            errors=done.errors,
            verify=self.verifier.state,
            curve=tuple(self._curve),
        )

    @property
    def table(self) -> TableContext | None:
        """The table as of the last look; None while it cannot be opened."""
        handle = self._table.handle
        return None if handle is None else handle.table

    def run(self, stop: Event) -> None:
        """Watch until ``stop`` is set. Errors are logged, kept in the state, and tried again."""
        while not stop.is_set():
            waits = self._schedule.poll if self.attempt() else self._schedule.retry
            stop.wait(waits)
        self.close()

    def attempt(self) -> bool:
        """Look at the table once and do what is due; return whether that succeeded."""
        try:
            self.step()
        except (NotFoundError, TableReplacedError) as error:
            # It was dropped, and perhaps created again: look for the one that is there now.
            self.close()
            self._curve.clear()
            self._attempts = self._attempts.failed(error, f"table {self._state.path}")
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the other tables go on, and this one is tried again
            self._attempts = self._attempts.failed(error, f"table {self._state.path}")
            return False
        # While it waits for the next attempt at what could not be published, a look at the table is no success.
        if not self._state.behind.snapshots:
            self._attempts = self._attempts.succeeded()
        return True

    def step(self) -> None:
        """Publish if nobody else does, and measure.

        Raises:
            TableStoreError: the table cannot be read, or not be published.
        """
        handle = self._table.opened()
        table = handle.refresh()
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            table.check_same()
            self._look_around(table)
        self._measure(table)
        if self._is_stuck(table):
            # Another one has taken the log over since. It was alive unless it first published long afterwards; one
            # that did not was too slow for this watcher.
            returned = self._others_published
            was_alive = handle.catch_up() and (returned is None or returned - self._caught_up < _ALIVE_SECONDS)
            self._doublings = min(self._doublings + 1, _DOUBLINGS_MAX) if was_alive else 0
            self._measure(handle.refresh())
            self._caught_up, self._others_published = time.monotonic(), None

    def close(self) -> None:
        """Close the connections to the broker."""
        self._table.close()
        self._seen = -1

    def _measure(self, table: TableContext) -> None:
        """Bring the state up to date from the table's last look and the log's index; the broker is not asked."""
        files, newest = table.files, table.files.latest(fresh=False)
        before_oldest = files.oldest(fresh=False) - 1
        published = table.index.newest() if table.log.publishes else newest
        # A writer leaves snapshots without changes to the next publish.
        published = with_maintenance(files, max(published, before_oldest), newest)
        lag, now = behind(files, published, newest), time.monotonic()
        if published > self._seen and self._others_published is None:
            self._others_published = now
        if published != self._seen or published >= newest:
            self._seen, self._behind_since = published, now
        if lag.snapshots:
            # The clock that dated the snapshot may be ahead.
            lag = replace(lag, seconds=max(lag.seconds, now - self._behind_since))
        self._state = replace(
            self._state,
            has_log=table.log.publishes,
            newest=newest,
            published=published,
            behind=lag,
        )
        if not self._curve or (self._curve[-1].newest, self._curve[-1].published) != (newest, published):
            self._curve.append(Sample(time.time() * 1000, newest, published))

    def _look_around(self, table: TableContext) -> None:
        files, newest = table.files, table.files.latest(fresh=False)
        before_oldest = files.oldest(fresh=False) - 1
        merged = files.base_version(newest).merged_through if table.spec.has_key else newest
        merged = with_maintenance(files, max(merged, before_oldest), newest)
        self._state = replace(
            self._state,
            merged=merged,
            merged_age=behind(files, merged, newest).seconds,
            consumers={
                each.name: behind(files, max(each.snapshot, before_oldest), newest)
                for each in Consumers(files.storage).all()
                if each.reads(table.spec.table_id)
            },
        )

    def _is_stuck(self, table: TableContext) -> bool:
        """Return whether the log is behind and nobody has published anything for the time of grace."""
        if self._state.published >= self._state.newest:
            return False
        # A large snapshot takes longer than the time of grace, and its records show that somebody publishes it.
        before = self._marks
        with pending_on_error(table.files, self._state.newest):
            self._marks = table.log.publishing_marks()
        now, grace = time.monotonic(), self._schedule.grace * (1 << self._doublings)
        if self._marks != before:
            self._behind_since = now
        return now - self._behind_since >= grace


def behind(files: TableFiles, after: int, newest: int) -> Behind:
    """Return how far a reader at snapshot ``after`` is behind; reads one commit, however many are missing."""
    if after >= newest:
        return Behind()
    age_ms = time.time() * 1000 - files.log.commit_at(after + 1).timestamp_ms
    return Behind(newest - after, max(0.0, age_ms / 1000))


def with_maintenance(files: TableFiles, after: int, newest: int) -> int:
    """Return ``newest`` if no snapshot after ``after`` has changes, otherwise ``after``."""
    kinds = (files.log.commit_at(snapshot).info.get("kind") for snapshot in range(after + 1, newest + 1))
    return newest if all(kind in MAINTENANCE for kind in kinds) else after
