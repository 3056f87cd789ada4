"""Named consumers: streams whose progress is stored in the table, so that expiry keeps the changes they still need."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from snapshot.errors import CorruptedError, DataLostError, NotFoundError
from snapshot.storage import Storage
from snapshot.store.tags import check_name
from tablestore.context import TableContext
from tablestore.read.time_travel import Point, snapshot_at
from tablestore.streaming.change_feed import Position

CONSUMERS = "_consumers"
_SUFFIX = ".json"
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
        self._storage = table.child(CONSUMERS)

    def put(self, name: str, snapshot: int, *, begun: bool = True, table: str = "", commit: str = "") -> None:
        """Write a consumer's progress.

        Args:
            name: the consumer's name.
            snapshot: the last snapshot that it has read or, if not ``begun``, the snapshot it is starting with.
            begun: see ``Consumer``.
            table: the table's id.
            commit: see ``Consumer``.

        Raises:
            InvalidInputError: the name is invalid.
            UnavailableError: the file system failed.
        """
        consumer = Consumer(name, snapshot, int(time.time() * 1000), begun, table, commit)
        self._storage.put(_file(name), json.dumps(asdict(consumer)).encode())

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

    def delete(self, name: str) -> bool:
        """Delete a consumer, and return whether there was one."""
        return bool(self._storage.delete(_file(name)))

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

    def __init__(self, table: TableContext, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Track the progress of consumer ``name``."""
        self._table = table
        self._files = table.files
        self._consumers = Consumers(self._files.storage)
        expiration = table.options.consumer_expiration_ms
        self._touch_seconds = _TOUCH_SECONDS if expiration is None else min(_TOUCH_SECONDS, expiration / 4_000)
        self._name = name
        self._clock = clock
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
            TableReplacedError: the table was dropped and created again.
        """
        self._put(reached, begun=False)

    def read(self, reached: Position) -> None:
        """Record how far the consumer has read.

        Raises:
            DataLostError: the consumer is new, and changes after the snapshot have already expired.
            TableReplacedError: the table was dropped and created again.
        """
        now = self._clock()
        if self._told is not None and self._told[0] == reached and now - self._told[1] < self._touch_seconds:
            return
        is_new = self._put(reached, begun=True) and self._told is None
        self._told = (reached, now)
        if not is_new:
            return
        # Expiry reads the consumers before it commits. So a consumer that was written too late for that sees here what
        # the expiry committed.
        oldest = self._files.oldest()
        if reached.snapshot + 1 < oldest:
            msg = (
                f"consumer {self._name!r}: table {self._files.storage.root!r} has the changes from snapshot {oldest} "
                f"on; those after {reached.snapshot} have expired. Reset the consumer, or start it with "
                "scan_mode='full'."
            )
            raise DataLostError(msg)

    def _put(self, reached: Position, *, begun: bool) -> bool:
        """Write the progress, but not into a table that replaced this one; return whether the consumer is new."""
        table_id = self._table.spec.table_id
        held = self._consumers.get(self._name)
        if held is None or held.table != table_id:
            # Either the consumer is new, or the table was dropped.
            self._table.check_same()
        self._consumers.put(self._name, reached.snapshot, begun=begun, table=table_id, commit=reached.commit)
        return held is None


def reset_consumer(table: TableContext, name: str, point: Point | None) -> None:
    """Set a consumer's progress to a point in the table's history, or delete the consumer if ``point`` is None.

    Raises:
        NotFoundError: there is no such consumer or snapshot.
    """
    consumers = Consumers(table.files.storage)
    if consumers.get(name) is None:
        names = [consumer.name for consumer in consumers.all()]
        msg = f"consumer {name!r}: table {table.path!r} has {', '.join(names) or 'no consumers'}."
        raise NotFoundError(msg)
    if point is None:
        consumers.delete(name)
    else:
        found = snapshot_at(table.files, point)
        consumers.put(name, found.id, table=table.spec.table_id, commit=found.fingerprint)


def _file(name: str) -> str:
    check_name(name, "consumer")
    return f"{name}{_SUFFIX}"
