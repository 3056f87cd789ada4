"""Named consumers: streams whose progress is stored in the table, so that expiry keeps the changes they still need.

As for tags, no lock is needed: an expiry announces itself and then looks at the consumers; a new consumer is written
and then looks for expiries that are announced or committed. So at least one of them sees the other.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass

from snapshot.errors import CorruptedError, DataLostError, NotFoundError
from snapshot.storage import Storage
from snapshot.store.tags import check_name
from tablestore.context import TableContext
from tablestore.read.time_travel import Point, snapshot_at
from tablestore.streaming.change_feed import Position

CONSUMERS = "_consumers"
_SUFFIX = ".json"
_EXPIRING = ".expiring"
"""Ends the name of a file that announces an expiry."""
_TOUCH_SECONDS = 60.0


@dataclass(frozen=True)
class Consumer:
    """The progress of a named consumer.

    Attributes:
        name: the consumer's name.
        snapshot: the last snapshot that it has read.
        updated_ms: when its progress was last written, in milliseconds since the epoch.
        begun: False while its query is still reading the initial rows, which are those of ``snapshot``.
        table: the id of the table that it reads; empty in files that do not have it yet.
        commit: identifies the snapshot's commit (``Position``); empty in files that do not have it yet.
    """

    name: str
    snapshot: int
    updated_ms: int
    begun: bool = True
    table: str = ""
    commit: str = ""

    def reads(self, table: str) -> bool:
        """Return whether the consumer reads the table with this id, not an earlier table at the same path."""
        return self.table in ("", table)


class Consumers:
    """The consumers of one table, with one file each."""

    def __init__(self, table: Storage) -> None:
        """Open the consumers of the table in folder ``table``."""
        self._table = table
        self._storage = table.child(CONSUMERS)

    def put(
        self,
        name: str,
        snapshot: int,
        *,
        begun: bool = True,
        table: str = "",
        commit: str = "",
        folder: int | None = None,
    ) -> Consumer:
        """Write and return a consumer's progress.

        Args:
            name: the consumer's name.
            snapshot: the last snapshot that it has read or, if not ``begun``, the snapshot it is starting with.
            begun: see ``Consumer``.
            table: the table's id.
            commit: see ``Consumer``.
            folder: the table's folder, as for ``Storage.put``.

        Raises:
            InvalidInputError: the name is invalid.
            UnavailableError: the file system failed.
        """
        consumer = Consumer(name, snapshot, int(time.time() * 1000), begun, table, commit)
        self._table.put(f"{CONSUMERS}/{_file(name)}", json.dumps(asdict(consumer)).encode(), folder)
        return consumer

    def get(self, name: str) -> Consumer | None:
        """Return a consumer; None if there is none of this name."""
        text = self._storage.read(_file(name))
        return None if text is None else self._parse(_file(name), text)

    def all(self) -> list[Consumer]:
        """Return all consumers, those that have read least first."""
        texts = {file: self._storage.read(file) for file in self._storage.names() if file.endswith(_SUFFIX)}
        found = [self._parse(file, text) for file, text in texts.items() if text is not None]
        return sorted(found, key=lambda consumer: (consumer.snapshot, consumer.name))

    def written_ms(self) -> dict[str, int]:
        """Return when each consumer's file was written, by the file system's clock, in milliseconds since the epoch."""
        return {file.name.removesuffix(_SUFFIX): file.modified_ms for file in self._storage.files()}

    def delete(self, *names: str, folder: int | None = None) -> int:
        """Delete consumers; return how many there were. ``folder`` is the table's, as for ``Storage.delete``."""
        return self._table.delete(*(f"{CONSUMERS}/{_file(name)}" for name in names), folder=folder)

    def announce(self, oldest: int, table: str, folder: int | None) -> str:
        """Announce that snapshots before ``oldest`` expire; return the announcement's name for ``withdraw``.

        A crash leaves it; the next expiry that gets as far removes it.
        """
        name = f"{uuid.uuid4().hex}{_EXPIRING}"
        self._table.put(f"{CONSUMERS}/{name}", json.dumps({"oldest": oldest, "table": table}).encode(), folder)
        return name

    def announced(self, table: str) -> int:
        """Return up to which snapshot expiries of a table are announced; 0 if none is."""
        return max((oldest for oldest, of in self._announcements().values() if of == table), default=0)

    def withdraw(self, announcement: str, oldest: int, table: str) -> None:
        """Remove the announcement of an expiry that has ended, and of those that can no longer change anything.

        ``oldest`` is the oldest snapshot of the table that has not expired. A table that was created at the same path
        meanwhile keeps its announcements.
        """
        found = self._announcements().items()
        self._storage.delete(announcement, *(name for name, (below, of) in found if of == table and below <= oldest))

    def _announcements(self) -> dict[str, tuple[int, str]]:
        """Return, by name, the oldest snapshot that each announced expiry leaves, and its table."""
        texts = {file: self._storage.read(file) for file in self._storage.names() if file.endswith(_EXPIRING)}
        found = {file: json.loads(text) for file, text in texts.items() if text is not None}
        return {file: (int(each["oldest"]), str(each["table"])) for file, each in found.items()}

    def _parse(self, file: str, text: bytes) -> Consumer:
        try:
            raw = json.loads(text)
            progress = int(raw["snapshot"]), int(raw["updated_ms"]), bool(raw["begun"])
            return Consumer(str(raw["name"]), *progress, str(raw.get("table", "")), str(raw.get("commit", "")))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{self._storage.path(file)}: not a consumer ({error}). Delete the file, or reset the consumer."
            raise CorruptedError(msg) from error


class ConsumerProgress:
    """Writes one stream's progress when it advances, and at intervals so that the consumer does not count as stale."""

    def __init__(self, table: TableContext, name: str) -> None:
        """Track the progress of consumer ``name``."""
        self._table = table
        self._consumers = Consumers(table.files.storage)
        expiration = table.options.consumer_expiration_ms
        self._touch_seconds = _TOUCH_SECONDS if expiration is None else min(_TOUCH_SECONDS, expiration / 4_000)
        self._name = name
        self._told: tuple[Position, float] | None = None

    def begun(self) -> Position | None:
        """Return how far the consumer has read; None if it has read nothing."""
        found = self._consumers.get(self._name)
        if found is None or not found.begun or not found.reads(self._table.spec.table_id):
            return None
        return Position(found.snapshot, found.commit)

    def begin(self, reached: Position) -> None:
        """Record the snapshot whose initial rows are about to be read; a query that fails before the end starts over.

        Raises:
            DataLostError: the consumer is new, and the snapshot has already expired.
            TableReplacedError: the table was dropped and created again.
        """
        self._put(reached, reached.snapshot, begun=False)

    def read(self, reached: Position) -> None:
        """Record how far the consumer has read.

        Raises:
            DataLostError: the consumer is new, and changes after the snapshot have already expired.
            TableReplacedError: the table was dropped and created again.
        """
        now = time.monotonic()
        if self._told is not None and self._told[0] == reached and now - self._told[1] < self._touch_seconds:
            return
        self._put(reached, reached.snapshot + 1, begun=True)
        self._told = (reached, now)

    def _put(self, reached: Position, first: int, *, begun: bool) -> None:
        """Write the progress, but not into a table that replaced this one.

        A consumer that is new is removed again if the changes that it needs, from snapshot ``first`` on, have expired.
        """
        table_id = self._table.spec.table_id
        with self._table.files.storage.opened() as folder:
            held = self._consumers.get(self._name)
            if held is None or held.table != table_id:
                # Either the consumer is new, or the table was dropped.
                self._table.check_same()
            written = self._consumers.put(
                self._name, reached.snapshot, begun=begun, table=table_id, commit=reached.commit, folder=folder
            )
        is_new = held is None or not held.reads(table_id)
        if not is_new or (begun and self._told is not None):
            return
        try:
            _check_kept(self._table, self._name, first)
        except DataLostError:
            if self._consumers.get(self._name) == written:
                self._consumers.delete(self._name)
            raise


def _check_kept(table: TableContext, name: str, first: int) -> None:
    """Check that no expiry has missed a consumer that is written already and needs the changes from ``first`` on.

    Raises:
        DataLostError: they have expired, or are about to.
    """
    # An announcement goes after its expiry is committed, so look for it first.
    oldest = max(Consumers(table.files.storage).announced(table.spec.table_id), table.files.oldest())
    if first < oldest:
        msg = (
            f"consumer {name!r}: table {table.path!r} has the changes from snapshot {oldest} on; those from {first} on "
            "have expired. Reset the consumer, or start it with scan_mode='full'."
        )
        raise DataLostError(msg)


def reset_consumer(table: TableContext, name: str, point: Point | None) -> None:
    """Set a consumer's progress to a point in the table's history, or delete the consumer if ``point`` is None.

    Raises:
        DataLostError: the changes after the snapshot expired meanwhile; the consumer stays where it was.
        NotFoundError: there is no such consumer or snapshot.
        TableReplacedError: the table was dropped and created again.
    """
    consumers = Consumers(table.files.storage)
    with table.own_folder() as folder:
        oldest, before = table.files.oldest(), consumers.get(name)
        if before is None:
            names = [consumer.name for consumer in consumers.all()]
            msg = f"consumer {name!r}: table {table.path!r} has {', '.join(names) or 'no consumers'}."
            raise NotFoundError(msg)
        if point is None:
            consumers.delete(name, folder=folder)
            return
        found = snapshot_at(table.files, point)
        consumers.put(name, found.id, table=table.spec.table_id, commit=found.fingerprint, folder=folder)
        # The changes after a tag may have expired before, and only the log may have them.
        if found.id + 1 < oldest:
            return
        try:
            _check_kept(table, name, found.id + 1)
        except DataLostError:
            consumers.put(
                name, before.snapshot, begun=before.begun, table=before.table, commit=before.commit, folder=folder
            )
            raise


def _file(name: str) -> str:
    check_name(name, "consumer")
    return f"{name}{_SUFFIX}"
