"""The log index: for each published snapshot, the offset range in each log partition."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from snapshot.errors import CorruptedError, UnavailableError
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
    """

    snapshot: int
    timestamp_ms: int
    kind: str
    partitions: tuple[OffsetRange, ...]

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
            entry = cls(int(raw["snapshot"]), int(raw["timestamp_ms"]), str(raw["kind"]), ranges)
            if entry.snapshot != snapshot:
                msg = f"it is that of snapshot {entry.snapshot}"
                raise ValueError(msg)
            return entry
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: not an entry of the log index ({error}); repair() rebuilds it."
            raise CorruptedError(msg) from error


class LogIndex:
    """The index of one table's log: a file a snapshot, without gaps above the oldest.

    Every snapshot has an entry, also those that publish nothing, so the newest is found by trying the next name.
    """

    def __init__(self, table: Storage, oldest: Callable[[], int] = lambda: 0) -> None:
        """Use the index of the table in folder ``table``; nothing is read yet.

        Args:
            table: the table's folder.
            oldest: tells which snapshot is the oldest. Entries of older ones tell nothing of what is published: expiry
                may be about to remove them, or a publisher that was asleep has written one again.
        """
        self._storage = table.child(INDEX)
        self._oldest = oldest
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
        """Read a snapshot's entry; None when it is not published or has been expired."""
        text = self._storage.read(_name(snapshot))
        return None if text is None else IndexEntry.from_json(text, self._storage.path(_name(snapshot)), snapshot)

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
            found = latest is not None and self._storage.exists(_name(latest.snapshot))
            self._latest = latest if found else None
            if found:
                return latest
        msg = f"{self._storage.root}: entries of the log index go while they are read; try again."
        raise UnavailableError(msg)

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
