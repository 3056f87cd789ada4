"""The register of what is published: for each log partition, the last snapshot in it and how much of it.

It moves inside the Kafka transaction that publishes (``send_offsets_to_transaction`` to the table's own group, KIP-98
and KIP-447), so it is true whatever crashes. Where the broker has expired the group, the headers of the partition's
last records and the log index say the same.

A number alone does not say which snapshot: a table that is restored from an older copy gives it to another commit. So
all three also name the snapshot's commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from snapshot.records import Snapshot

SNAPSHOT_HEADER = "snapshot"
POSITION_HEADER = "position"
"""``rows/total/records``: changes and records of the snapshot in this partition so far, and its changes in all."""
COMMIT_HEADER = "commit"
"""``table/commit``: the beginning of the table's id, and what identifies the snapshot's commit (``Snapshot``)."""
_TABLE_DIGITS = 12


@dataclass(frozen=True)
class RegisterPosition:
    """How far a log partition is published.

    Attributes:
        snapshot: the last snapshot with a part of it in the partition, or known to have nothing in it.
        rows: changes of that snapshot in the partition.
        records: Kafka records of that snapshot in the partition.
        done: whether these are all.
        end: offset after the last record.
        commit: identifies the snapshot's commit (``Snapshot.fingerprint``); empty where it is not known, as in what
            was published before commits were named.
    """

    snapshot: int
    rows: int
    records: int
    done: bool
    end: int
    commit: str = field(default="", compare=False)

    def holds(self, snapshot: int) -> bool:
        """Tell whether the partition holds all of a snapshot's changes that belong there."""
        return self.snapshot > snapshot or (self.snapshot == snapshot and self.done)

    def part_of(self, snapshot: Snapshot) -> RegisterPosition:
        """Return the position within a snapshot: itself when the snapshot is under way, else its very start."""
        if self.snapshot == snapshot.id:
            return self if self.commit else replace(self, commit=snapshot.fingerprint)
        return RegisterPosition(snapshot.id, 0, 0, done=False, end=self.end, commit=snapshot.fingerprint)

    def metadata(self) -> str:
        """Write the position as the metadata of a group offset; the offset itself is ``end``."""
        told: list[int | str] = [self.snapshot, self.rows, self.records, int(self.done)]
        return json.dumps([*told, self.commit] if self.commit else told, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, end: int, metadata: str | None) -> RegisterPosition | None:
        """Read a group offset; None when it holds nothing of ours (expired, or another tool's)."""
        if end < 0 or not metadata:
            return None
        try:
            snapshot, rows, records, done, *more = json.loads(metadata)
            return cls(int(snapshot), int(rows), int(records), bool(done), end, str(more[0]) if more else "")
        except (TypeError, ValueError):
            return None

    def headers(self, total: int, table: str) -> list[tuple[str, bytes]]:
        """Return the headers of the last record of a transaction in the partition, which tell the position.

        Args:
            total: changes of the snapshot in the partition.
            table: the table's id.
        """
        told = {SNAPSHOT_HEADER: str(self.snapshot), POSITION_HEADER: f"{self.rows}/{total}/{self.records}"}
        if self.commit:
            told[COMMIT_HEADER] = f"{table[:_TABLE_DIGITS]}/{self.commit}"
        return [(name, value.encode()) for name, value in told.items()]

    @classmethod
    def from_headers(
        cls, offset: int, headers: Sequence[tuple[str, bytes | str | None]] | None, table: str
    ) -> RegisterPosition | None:
        """Read the headers of the record at ``offset``; None when it carries no position of the table of this id."""
        found = dict(headers or [])
        try:
            snapshot = int(found[SNAPSHOT_HEADER] or b"")
            rows, total, records = map(int, _text(found[POSITION_HEADER]).split("/"))
            named, _, commit = _text(found.get(COMMIT_HEADER)).partition("/")
        except (KeyError, ValueError):
            return None
        if named != table[:_TABLE_DIGITS] and commit:
            return None
        return cls(snapshot, rows, records, rows == total, offset + 1, commit)


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
