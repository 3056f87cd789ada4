"""The log index: the offset range of each published snapshot in each log partition."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from snapshot.errors import CorruptedError, DataLostError, UnavailableError
from snapshot.storage import Storage

INDEX = "_log"
_LISTINGS_MAX = 10
_NEW_MS = 5_000
"""How old a snapshot is at most that others are not expected to have expired, in milliseconds."""


@dataclass(frozen=True)
class OffsetRange:
    """The offset range of one snapshot's changes in one log partition.

    Attributes:
        start: offset at which the previous snapshot ended.
        end: offset after the snapshot's last record. Offsets in between may hold transaction markers.
        records: number of Kafka records in the range.
        rows: number of changes in those records.
    """

    start: int
    end: int
    records: int
    rows: int


@dataclass(frozen=True)
class IndexEntry:
    """One published snapshot.

    Attributes:
        snapshot: the snapshot's id.
        timestamp_ms: when it was committed, milliseconds since the epoch.
        kind: the snapshot's kind.
        partitions: one range for each log partition.
        table: the table's id. ``table``, ``commit`` and ``topic`` are empty in entries written by versions that did
            not store them.
        commit: identifies the snapshot's commit (``Snapshot.fingerprint``).
        topic: Kafka's id of the topic to which the offsets refer.
    """

    snapshot: int
    timestamp_ms: int
    kind: str
    partitions: tuple[OffsetRange, ...]
    table: str = ""
    commit: str = ""
    topic: str = ""

    @property
    def rows(self) -> int:
        """Number of the snapshot's changes in all partitions."""
        return sum(p.rows for p in self.partitions)

    @property
    def ends(self) -> tuple[int, ...]:
        """The snapshot's end offset in each partition."""
        return tuple(p.end for p in self.partitions)

    def to_json(self) -> bytes:
        """Return the entry as JSON that ``from_json`` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes, path: str, snapshot: int) -> IndexEntry:
        """Parse an entry.

        Raises:
            CorruptedError: the text is not an entry, or is the entry of another snapshot.
        """
        try:
            raw = json.loads(text)
            ranges = tuple(OffsetRange(**p) for p in raw["partitions"])
            ids = [str(raw.get(name, "")) for name in ("table", "commit", "topic")]
            entry = cls(int(raw["snapshot"]), int(raw["timestamp_ms"]), str(raw["kind"]), ranges, *ids)
            if entry.snapshot != snapshot:
                msg = f"it is that of snapshot {entry.snapshot}"
                raise ValueError(msg)
            return entry
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: not an entry of the log index ({error}); log.repair() rebuilds it."
            raise CorruptedError(msg) from error


class LogIndex:
    """The index of one table's log: one file per snapshot, without gaps above the oldest.

    Every snapshot has an entry, even one that publishes nothing, so the newest is found by probing the next file name.
    """

    def __init__(self, table: Storage, oldest: Callable[[], int] = lambda: 0, table_id: str = "") -> None:
        """Create the index of the table in folder ``table``, without reading it.

        Args:
            table: the table's folder.
            oldest: returns the oldest snapshot's id. Entries of older snapshots say nothing about what is published:
                expiry may be about to delete them, or a publisher that was suspended may have rewritten one.
            table_id: the table's id; empty accepts the entries of any table.
        """
        self._table = table
        self._storage = table.child(INDEX)
        self._oldest = oldest
        self._table_id = table_id
        self._latest: IndexEntry | None = None

    def put(self, entry: IndexEntry, *, replaces: bool = True) -> IndexEntry:
        """Write and return a snapshot's entry, which makes the snapshot visible to readers, unless it has expired.

        Without ``replaces``, an entry of the same commit and topic that is there stays.

        Raises:
            TableReplacedError: the table was dropped and created again.
            TableStoreError: the file system failed to write it, or the entry that is there cannot be read.
        """
        name = f"{INDEX}/{_name(entry.snapshot)}"
        with self._own_folder() as folder:
            if replaces:
                self._table.put(name, entry.to_json(), folder)
            is_put = replaces or self._table.put_new(name, entry.to_json(), folder)
        if not is_put:
            listed = self.get(entry.snapshot)
            if listed is None or (listed.commit, listed.topic) != (entry.commit, entry.topic):
                return self.put(entry)
            entry = listed
        if self._has_expired_since(entry):
            # Readers that know the entry would take it for the newest.
            self.delete([entry.snapshot])
            return entry
        # Threads of a table handle share this object, so read the attribute once.
        latest = self._latest
        if latest is not None and entry.snapshot in (latest.snapshot, latest.snapshot + 1):
            self._latest = entry
        return entry

    def _has_expired_since(self, entry: IndexEntry) -> bool:
        """Return whether a snapshot expired while its publisher was suspended.

        An object store, where a look takes two requests, is not asked just after the commit.
        """
        age_ms = time.time() * 1000 - entry.timestamp_ms
        return (self._table.is_local or age_ms > _NEW_MS) and entry.snapshot < self._oldest() - 1

    def get(self, snapshot: int) -> IndexEntry | None:
        """Return a snapshot's entry; None if the snapshot is not published or has expired.

        An entry of an earlier table at the path counts as none: in an object store, one that a publisher put late can
        outlast its table.

        Raises:
            TableReplacedError: the table was dropped and created again.
            CorruptedError: the entry is damaged.
        """
        text = self._storage.read(_name(snapshot))
        if text is None:
            return None
        entry = IndexEntry.from_json(text, self._storage.path(_name(snapshot)), snapshot)
        if self._table_id and entry.table not in ("", self._table_id):
            # It says whether the table at the path is another one by now.
            self._oldest()
            return None
        return entry

    def entries(self, after: int, through: int) -> list[IndexEntry]:
        """Return the entries of snapshots ``after + 1`` to ``through``.

        Raises:
            DataLostError: there is no entry for one of them.
        """
        return [self._entry(snapshot) for snapshot in range(after + 1, through + 1)]

    def _entry(self, snapshot: int) -> IndexEntry:
        entry = self.get(snapshot)
        if entry is None:
            msg = f"snapshot {snapshot} has no entry in the log index; it was expired, or recover() has to rebuild it."
            raise DataLostError(msg)
        return entry

    def latest(self) -> IndexEntry | None:
        """Return the newest entry; None if the index is empty.

        Entries expire oldest first. A missing next entry therefore means "not published yet" only while the entry
        before it still exists. A cached entry may have expired together with all that followed it; then the folder is
        listed again.

        Raises:
            UnavailableError: entries kept disappearing between being listed and being read.
        """
        for _ in range(_LISTINGS_MAX):
            latest = self._latest
            if latest is None:
                # If later entries are lost, the entry just before the oldest snapshot may be the only one left.
                least = self._oldest() - 1
                snapshots = [snapshot for snapshot in self.snapshots() if snapshot >= least]
                if not snapshots:
                    return None
                latest = next(filter(None, map(self.get, _newest_without_gap(snapshots))), None)
            while latest is not None and (following := self.get(latest.snapshot + 1)) is not None:
                latest = following
            # Read it again instead of only checking that it exists: it may now belong to another table.
            self._latest = None if latest is None else self.get(latest.snapshot)
            if self._latest is not None:
                return self._latest
        msg = f"{self._storage.root}: entries of the log index were removed while they were read; try again."
        raise UnavailableError(msg)

    def newest(self) -> int:
        """Return the newest published snapshot; 0, the empty table, while nothing is published."""
        latest = self.latest()
        return 0 if latest is None else latest.snapshot

    @property
    def last_seen(self) -> IndexEntry | None:
        """The newest entry that this object knows of, without reading the index; None if it knows of none."""
        return self._latest

    def has_expired(self, snapshot: int) -> bool:
        """Return whether a snapshot has expired and therefore needs no entry."""
        return snapshot < self._oldest()

    def snapshots(self) -> list[int]:
        """Return the snapshot ids of all entries, oldest first."""
        return [int(name[:-5]) for name in self._storage.names() if name.endswith(".json") and name[:-5].isdigit()]

    def delete(self, snapshots: list[int]) -> None:
        """Delete entries that no reader needs or that are wrong.

        Raises:
            TableReplacedError: the table was dropped and created again.
            UnavailableError: the file system failed.
        """
        self._latest = None
        if snapshots:
            with self._own_folder() as folder:
                self._table.delete(*(f"{INDEX}/{_name(snapshot)}" for snapshot in snapshots), folder=folder)

    @contextmanager
    def _own_folder(self) -> Iterator[int | None]:
        """Open the folder of the table for ``Storage.put`` and the like; it is no other table's.

        Entries have the same names in a table that is created again at the path.
        """
        with self._table.opened() as folder:
            if folder is not None:
                # This looks at the table that is at the path now, after the folder was opened.
                self._oldest()
            yield folder


def _newest_without_gap(snapshots: list[int]) -> Iterator[int]:
    """Yield the snapshots before the first gap, newest first; entries after a lost entry wait for recovery."""
    last = next((before for before, after in itertools.pairwise(snapshots) if after != before + 1), snapshots[-1])
    return reversed(range(snapshots[0], last + 1))


def _name(snapshot: int) -> str:
    return f"{snapshot:020d}.json"
