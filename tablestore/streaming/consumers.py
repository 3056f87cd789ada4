"""Named consumers: streams whose progress stands in the table, so that expiry leaves them what they have not read."""

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

CONSUMERS = "_consumers"
_TOUCH_SECONDS = 60.0


@dataclass(frozen=True)
class Consumer:
    """How far a named consumer has read.

    Attributes:
        name: its name.
        snapshot: the last snapshot it has read.
        updated_ms: when it last said so, milliseconds since the epoch.
        begun: False while a query is reading the rows of ``snapshot``, with which it begins.
        table: the id of the table that it reads; empty where that was not kept yet.
    """

    name: str
    snapshot: int
    updated_ms: int
    begun: bool = True
    table: str = ""

    def reads(self, table: str) -> bool:
        """Return whether it reads the table of this id, not one that was at the path before."""
        return self.table in ("", table)


class Consumers:
    """The consumers of one table, a file each."""

    def __init__(self, table: Storage) -> None:
        """Use the consumers of the table in folder ``table``."""
        self._storage = table.child(CONSUMERS)

    def put(self, name: str, snapshot: int, *, begun: bool = True, table: str = "") -> None:
        """Say how far a consumer has read, or with which snapshot it is beginning.

        Args:
            name: its name.
            snapshot: the last snapshot it has read.
            begun: see ``Consumer``.
            table: the table's id.

        Raises:
            InvalidInputError: the name is not one.
            UnavailableError: the file system refused.
        """
        consumer = Consumer(name, snapshot, int(time.time() * 1000), begun, table)
        self._storage.put(_file(name), json.dumps(asdict(consumer)).encode())

    def get(self, name: str) -> Consumer | None:
        """Read a consumer; None when there is none of this name."""
        text = self._storage.read(_file(name))
        return None if text is None else self._parse(_file(name), text)

    def all(self) -> list[Consumer]:
        """List the consumers, those that have read least first."""
        texts = {file: self._storage.read(file) for file in self._storage.names() if file.endswith(".json")}
        found = [self._parse(file, text) for file, text in texts.items() if text is not None]
        return sorted(found, key=lambda consumer: (consumer.snapshot, consumer.name))

    def delete(self, name: str) -> bool:
        """Forget a consumer; tells whether there was one."""
        return bool(self._storage.delete(_file(name)))

    def _parse(self, file: str, text: bytes) -> Consumer:
        try:
            raw = json.loads(text)
            told = int(raw["snapshot"]), int(raw["updated_ms"]), bool(raw["begun"])
            return Consumer(str(raw["name"]), *told, str(raw.get("table", "")))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{self._storage.path(file)}: not a consumer ({error}). Delete the file, or reset the consumer."
            raise CorruptedError(msg) from error


class ConsumerProgress:
    """One stream's own progress, written when it has moved and, so that it does not pass for stale, now and then."""

    def __init__(self, table: TableContext, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep the progress of consumer ``name``."""
        self._table = table
        self._files = table.files
        self._consumers = Consumers(self._files.storage)
        expiration = table.options.consumer_expiration_ms
        self._touch_seconds = _TOUCH_SECONDS if expiration is None else min(_TOUCH_SECONDS, expiration / 4_000)
        self._name = name
        self._clock = clock
        self._told: tuple[int, float] | None = None

    def begun(self) -> int | None:
        """Give the last snapshot that the consumer has read before; None for one that has read nothing."""
        found = self._consumers.get(self._name)
        is_ours = found is not None and found.reads(self._table.spec.table_id)
        return found.snapshot if found is not None and found.begun and is_ours else None

    def begin(self, snapshot: int) -> None:
        """Keep a snapshot whose rows are about to be read; a query that dies on the way begins anew.

        Raises:
            TableReplacedError: the table was dropped and created again.
        """
        self._put(snapshot, begun=False)

    def read(self, snapshot: int) -> None:
        """Say that the consumer has read up to a snapshot.

        Raises:
            DataLostError: it is new, and what follows the snapshot has expired meanwhile.
            TableReplacedError: the table was dropped and created again.
        """
        now = self._clock()
        if self._told is not None and self._told[0] == snapshot and now - self._told[1] < self._touch_seconds:
            return
        is_new = self._put(snapshot, begun=True) and self._told is None
        self._told = (snapshot, now)
        if not is_new:
            return
        # Expiry looks at the consumers before it commits, and this looks at what it has committed.
        oldest = self._files.oldest()
        if snapshot + 1 < oldest:
            msg = (
                f"consumer {self._name!r}: table {self._files.storage.root!r} has the changes from snapshot {oldest} "
                f"on; those after {snapshot} have expired. Reset the consumer, or start it with scan_mode='full'."
            )
            raise DataLostError(msg)

    def _put(self, snapshot: int, *, begun: bool) -> bool:
        """Write the progress into the table that is read, and into no other; return whether there was none."""
        table_id = self._table.spec.table_id
        held = self._consumers.get(self._name)
        if held is None or held.table != table_id:
            # It is new, or has gone with the table.
            self._table.check_same()
        self._consumers.put(self._name, snapshot, begun=begun, table=table_id)
        return held is None


def reset_consumer(table: TableContext, name: str, point: Point | None) -> None:
    """Forget a consumer, or set it to have read up to a snapshot.

    Raises:
        NotFoundError: there is no such consumer, or no such snapshot.
    """
    consumers = Consumers(table.files.storage)
    if consumers.get(name) is None:
        names = [consumer.name for consumer in consumers.all()]
        msg = f"consumer {name!r}: table {table.path!r} has {', '.join(names) or 'no consumers'}."
        raise NotFoundError(msg)
    if point is None:
        consumers.delete(name)
    else:
        consumers.put(name, snapshot_at(table.files, point).id, table=table.spec.table_id)


def _file(name: str) -> str:
    check_name(name, "consumer")
    return f"{name}.json"
