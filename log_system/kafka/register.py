"""The register of what is published: for each log partition, its last snapshot and how much of that is published.

The register moves inside the Kafka transaction that publishes (``send_offsets_to_transaction`` to the table's own
consumer group, KIP-98 and KIP-447), so it stays correct through crashes. If the broker has expired the group's offsets,
the headers of the partition's last records and the log index hold the same information.

A snapshot id alone is ambiguous: a table restored from an older copy uses the same id for another commit. So register,
headers and log index also identify the snapshot's commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from snapshot.records import LogEnd, Snapshot

SNAPSHOT_HEADER = "snapshot"
POSITION_HEADER = "position"
"""``rows/total/records`` of the snapshot in the partition: published changes, all changes, published records."""
COMMIT_HEADER = "commit"
"""``table/commit``: a prefix of the table's id, and the fingerprint of the snapshot's commit (``Snapshot``)."""
_TABLE_DIGITS = 12


@dataclass(frozen=True)
class RegisterPosition:
    """How far a log partition is published.

    Attributes:
        snapshot: the last snapshot that is at least partly in the partition, or is known to have no changes there.
        rows: published changes of that snapshot in the partition.
        records: published Kafka records of that snapshot in the partition.
        done: whether all the snapshot's changes for the partition are published.
        end: offset after the last record.
        commit: identifies the snapshot's commit (``Snapshot.fingerprint``); empty if unknown, as for snapshots
            published by versions that did not record commits.
        epoch: the partition's leader epoch when it had reached ``end``, in eventual logs, whose records carry no
            positions; -1 if unknown.
    """

    snapshot: int
    rows: int
    records: int
    done: bool
    end: int
    commit: str = field(default="", compare=False)
    epoch: int = field(default=-1, compare=False)

    def holds(self, snapshot: int) -> bool:
        """Return whether the partition holds all of a snapshot's changes for it."""
        return self.snapshot > snapshot or (self.snapshot == snapshot and self.done)

    @property
    def log_end(self) -> LogEnd:
        """Where the partition ended then."""
        return LogEnd(self.end, self.epoch)

    def is_short_of(self, end: int) -> bool:
        """Return whether more than the marker of a transaction follows in a partition with this end.

        Then others have written, transactions were aborted, or the broker has lost the register's last moves.
        """
        return end > self.end + 1

    def part_of(self, snapshot: Snapshot) -> RegisterPosition:
        """Return the position from which to publish a snapshot: this one if within the snapshot, else its start."""
        if self.snapshot == snapshot.id:
            return self if self.commit else replace(self, commit=snapshot.fingerprint)
        return RegisterPosition(snapshot.id, 0, 0, done=False, end=self.end, commit=snapshot.fingerprint)

    def metadata(self) -> str:
        """Return the position as the metadata of a committed group offset; the offset itself is ``end``."""
        fields = [self.snapshot, self.rows, self.records, int(self.done), self.commit, self.epoch]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, end: int, metadata: str | None) -> RegisterPosition | None:
        """Parse a committed group offset; None if it holds no position (expired, or written by another tool)."""
        if end < 0 or not metadata:
            return None
        try:
            fields = json.loads(metadata)
            # Earlier versions wrote no leader epoch, and before that no commit.
            snapshot, rows, records, done, commit, epoch, *_ = fields + ["", -1][len(fields) - 4 :]
            return cls(int(snapshot), int(rows), int(records), bool(done), end, str(commit), int(epoch))
        except (TypeError, ValueError):
            return None

    def headers(self, total: int, table: str) -> list[tuple[str, bytes]]:
        """Return headers that carry the position, for the last record of a transaction in the partition.

        ``total`` counts all the snapshot's changes in the partition.
        """
        fields = {SNAPSHOT_HEADER: str(self.snapshot), POSITION_HEADER: f"{self.rows}/{total}/{self.records}"}
        if self.commit:
            fields[COMMIT_HEADER] = f"{table[:_TABLE_DIGITS]}/{self.commit}"
        return [(name, value.encode()) for name, value in fields.items()]

    @classmethod
    def from_headers(
        cls, offset: int, headers: Sequence[tuple[str, bytes | str | None]] | None, table: str
    ) -> RegisterPosition | None:
        """Parse the headers of the record at ``offset``; None if they carry no position of the table with this id."""
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
