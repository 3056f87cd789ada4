"""The log index: for each published snapshot, the offset range in each log partition."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from snapshot.errors import CorruptedError, TableReplacedError, UnavailableError
from snapshot.storage import Storage

INDEX = "_log"
_LISTINGS_MAX = 10


@dataclass(frozen=True)
class OffsetRange:
    """Where one snapshot's changes are in one log partition.

    Attributes:
        start: offset at which the snapshot before ended.
        end: offset after its last record. Offsets in between may hold transaction markers.
        records: Kafka records in the range.
        rows: changes in them.
    """

    start: int
    end: int
    records: int
    rows: int


@dataclass(frozen=True)
class IndexEntry:
    """One published snapshot.

    Attributes:
        snapshot: its id.
        timestamp_ms: when it was committed, milliseconds since the epoch.
        kind: its kind.
        partitions: one range for each log partition.
        table: the table's id; empty, as the next two, in an entry from before these were kept.
        commit: identifies the snapshot's commit (``Snapshot.fingerprint``).
        topic: Kafka's own id of the topic that the offsets are of.
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
        """Changes of the snapshot in all partitions."""
        return sum(p.rows for p in self.partitions)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the snapshot ends in each partition."""
        return tuple(p.end for p in self.partitions)

    def to_json(self) -> bytes:
        """Give the text that ``from_json`` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes, path: str, snapshot: int) -> IndexEntry:
        """Read an entry.

        Raises:
            CorruptedError: the text is not an entry.
        """
        try:
            raw = json.loads(text)
            ranges = tuple(OffsetRange(**p) for p in raw["partitions"])
            told = [str(raw.get(name, "")) for name in ("table", "commit", "topic")]
            entry = cls(int(raw["snapshot"]), int(raw["timestamp_ms"]), str(raw["kind"]), ranges, *told)
            if entry.snapshot != snapshot:
                msg = f"it is that of snapshot {entry.snapshot}"
                raise ValueError(msg)
            return entry
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: not an entry of the log index ({error}); log.repair() rebuilds it."
            raise CorruptedError(msg) from error


class LogIndex:
    """The index of one table's log: a file a snapshot, without gaps above the oldest.

    Every snapshot has an entry, also those that publish nothing, so the newest is found by trying the next name.
    """

    def __init__(self, table: Storage, oldest: Callable[[], int] = lambda: 0, table_id: str = "") -> None:
        """Use the index of the table in folder ``table``; nothing is read yet.

        Args:
            table: the table's folder.
            oldest: tells which snapshot is the oldest. Entries of older ones tell nothing of what is published: expiry
                may be about to remove them, or a publisher that was asleep has written one again.
            table_id: the table's id; empty accepts the entries of any table.
        """
        self._storage = table.child(INDEX)
        self._oldest = oldest
        self._table_id = table_id
        self._latest: IndexEntry | None = None

    def put(self, entry: IndexEntry) -> None:
        """Write an entry, replacing the one that is there; from here on readers may see the snapshot.

        Raises:
            UnavailableError: the file system refused.
        """
        self._storage.put(_name(entry.snapshot), entry.to_json())
        # Several threads of a handle share this: each step takes what is known only once.
        latest = self._latest
        if latest is not None and entry.snapshot in (latest.snapshot, latest.snapshot + 1):
            self._latest = entry

    def get(self, snapshot: int) -> IndexEntry | None:
        """Read a snapshot's entry; None when it is not published or has been expired.

        Raises:
            TableReplacedError: it is an entry of another table.
            CorruptedError: it is damaged.
        """
        text = self._storage.read(_name(snapshot))
        if text is None:
            return None
        entry = IndexEntry.from_json(text, self._storage.path(_name(snapshot)), snapshot)
        if self._table_id and entry.table not in ("", self._table_id):
            msg = (
                f"{self._storage.path(_name(snapshot))}: expected an entry of table {self._table_id}, got one of table "
                f"{entry.table}: the table was dropped and created again since it was opened. Open the table again."
            )
            raise TableReplacedError(msg)
        return entry

    def latest(self) -> IndexEntry | None:
        """Read the newest entry; None when there is none at all.

        Entries expire oldest first. So what follows an entry is not there yet only if the entry itself still is: one
        that was seen long ago may be gone with all that followed it at that time, and then the folder is listed anew.

        Raises:
            UnavailableError: whatever is listed is gone a moment later, again and again.
        """
        for _ in range(_LISTINGS_MAX):
            latest = self._latest
            if latest is None:
                # The one before the oldest may be all that there is, where the others are lost.
                least = self._oldest() - 1
                snapshots = [snapshot for snapshot in self.snapshots() if snapshot >= least]
                if not snapshots:
                    return None
                latest = self.get(_last_without_gap(snapshots))
            while latest is not None and (following := self.get(latest.snapshot + 1)) is not None:
                latest = following
            # It is read again, not only looked for: by now it may be an entry of another table.
            self._latest = None if latest is None else self.get(latest.snapshot)
            if self._latest is not None:
                return self._latest
        msg = f"{self._storage.root}: entries of the log index go while they are read; try again."
        raise UnavailableError(msg)

    @property
    def last_seen(self) -> IndexEntry | None:
        """The newest entry as ``latest`` found it last; None where it found none."""
        return self._latest

    def has_expired(self, snapshot: int) -> bool:
        """Return whether a snapshot has expired, so that it needs no entry."""
        return snapshot < self._oldest()

    def snapshots(self) -> list[int]:
        """List the ids of all entries, oldest first."""
        return [int(name[:-5]) for name in self._storage.names() if name.endswith(".json") and name[:-5].isdigit()]

    def delete(self, snapshots: list[int]) -> None:
        """Remove entries that no reader needs any more, or that are wrong."""
        self._latest = None
        self._storage.delete(*map(_name, snapshots))


def _last_without_gap(snapshots: list[int]) -> int:
    """Give the end of the first unbroken run: what lies behind a lost entry waits for recovery."""
    for before, after in itertools.pairwise(snapshots):
        if after != before + 1:
            return before
    return snapshots[-1]


def _name(snapshot: int) -> str:
    return f"{snapshot:020d}.json"
