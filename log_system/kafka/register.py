"""The register of what is published: for each log partition, the last snapshot in it and how much of it.

It moves inside the Kafka transaction that publishes (``send_offsets_to_transaction`` to the table's own group, KIP-98
and KIP-447), so it is true whatever crashes. Where the broker has expired the group, the headers of the partition's
last records and the log index say the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

SNAPSHOT_HEADER = "snapshot"
POSITION_HEADER = "position"
"""``rows/total/records``: changes and records of the snapshot in this partition so far, and its changes in all."""


@dataclass(frozen=True)
class Position:
    """How far a log partition is published.

    Attributes:
        snapshot: the last snapshot with a part of it in the partition, or known to have nothing in it.
        rows: changes of that snapshot in the partition.
        records: Kafka records of that snapshot in the partition.
        done: whether these are all.
        end: offset after the last record.
    """

    snapshot: int
    rows: int
    records: int
    done: bool
    end: int

    def holds(self, snapshot: int) -> bool:
        """Tell whether the partition holds all of a snapshot's changes that belong there."""
        return self.snapshot > snapshot or (self.snapshot == snapshot and self.done)

    def part_of(self, snapshot: int) -> Position:
        """Give the position within a snapshot: itself when the snapshot is under way, else its very start."""
        if self.snapshot == snapshot:
            return self
        return Position(snapshot, 0, 0, done=False, end=self.end)

    def metadata(self) -> str:
        """Write the position as the metadata of a group offset; the offset itself is ``end``."""
        return json.dumps([self.snapshot, self.rows, self.records, int(self.done)], separators=(",", ":"))

    @classmethod
    def from_metadata(cls, end: int, metadata: str | None) -> Position | None:
        """Read a group offset; None when it holds nothing of ours (expired, or another tool's)."""
        if end < 0 or not metadata:
            return None
        try:
            snapshot, rows, records, done = json.loads(metadata)
            return cls(int(snapshot), int(rows), int(records), bool(done), end)
        except (TypeError, ValueError):
            return None

    def headers(self, total: int) -> list[tuple[str, bytes]]:
        """Write the position as headers of the last record of a transaction in the partition."""
        position = f"{self.rows}/{total}/{self.records}"
        return [(SNAPSHOT_HEADER, str(self.snapshot).encode()), (POSITION_HEADER, position.encode())]

    @classmethod
    def from_headers(cls, offset: int, headers: Sequence[tuple[str, bytes | str | None]] | None) -> Position | None:
        """Read the headers of the record at ``offset``; None when it carries no position."""
        found = dict(headers or [])
        try:
            snapshot = int(found[SNAPSHOT_HEADER] or b"")
            text = found[POSITION_HEADER] or b""
            rows, total, records = map(int, (text if isinstance(text, bytes) else text.encode()).split(b"/"))
        except (KeyError, ValueError):
            return None
        return cls(snapshot, rows, records, rows == total, offset + 1)
