"""What verify and repair say: differences with their place, and a table of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

DIFFERENCES_MAX = 1_000
"""Differences that are named; more are counted."""

RESTORED = "The table has another one: it was restored from an older copy, and others have committed to it since."
_TEXT_MAX = 80


class DifferenceKind(StrEnum):
    """What is wrong.

    The first six are about the records of the log, the others about what tells where they are.
    """

    MISSING = "missing"
    """Committed changes, said to be published, are not in the log."""
    EXTRA = "extra"
    """The log holds a record that is no change of the table there: a stranger's, or a repeated one."""
    CHANGED = "changed"
    """A record holds other values than the table's change."""
    UNREADABLE = "unreadable"
    """A record cannot be decoded."""
    EARLY = "early"
    """A record names a snapshot that is not committed."""
    HISTORY = "history"
    """The log holds a snapshot that is another commit than the table's: the table was restored from an older copy."""
    INDEX = "index"
    """The log index lacks an entry, or one is damaged or says what is not so."""
    REGISTER = "register"
    """The register is lost, or says what is not so."""
    FILES = "files"
    """Files of the table that hold a snapshot's changes are missing or damaged, so the log cannot be compared."""
    TOPIC = "topic"
    """The topic does not exist, or has another number of partitions than the table has buckets."""


@dataclass(frozen=True)
class Difference:
    """One difference between log and table.

    Attributes:
        kind: what is wrong.
        text: the same in words.
        snapshot: the snapshot it is about; None where it is about none.
        partition: the log partition.
        offset: the offset of the record or, where changes are missing, of the one they should precede.
        key: primary key of the row, as text; its values in a table without a key.
    """

    kind: DifferenceKind
    text: str
    snapshot: int | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        """Show kind, place and words in one line."""
        places = (
            ("snapshot", self.snapshot),
            ("partition", self.partition),
            ("offset", self.offset),
            ("key", self.key),
        )
        place = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.kind}: {place}: {self.text}" if place else f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Report:
    """How log and table compare.

    Attributes:
        path: the table's folder.
        differences: what differs, at most ``DIFFERENCES_MAX``.
        more: how many differences there are besides.
        pending: snapshots that are committed and not yet published, which is no damage: the next write or
            ``recover()`` publishes them.
        notes: what was not compared, and why.
        snapshots: how many were compared.
        records: records read from the log.
        rows: changes compared.
    """

    path: str
    differences: tuple[Difference, ...] = ()
    more: int = 0
    pending: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    snapshots: int = 0
    records: int = 0
    rows: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences and not self.more

    def __str__(self) -> str:
        """Show the counts, then one line a difference."""
        count = len(self.differences) + self.more
        verdict = "log and table agree" if self.ok else f"log and table differ in {count:,} places"
        lines = [
            f"{self.path}: {verdict} ({self.snapshots:,} snapshots, {self.records:,} records, {self.rows:,} changes)."
        ]
        lines += [f"  {difference}" for difference in self.differences]
        if self.more:
            lines.append(f"  and {self.more:,} more")
        if self.pending:
            lines.append(f"  pending: {_ranges(self.pending)} committed and not yet published; recover() does that")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class RepairReport:
    """What a repair did.

    Attributes:
        actions: what it did, in order.
        report: how log and table compare afterwards.
        advice: what it could not mend, what that means and what to do.
    """

    actions: tuple[str, ...]
    report: Report
    advice: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs any more."""
        return self.report.ok

    def __str__(self) -> str:
        """Show what was done, then how log and table compare."""
        nothing = "nothing was to be mended" if self.ok else "nothing could be mended; see below"
        done = [f"  {action}" for action in self.actions] or [f"  {nothing}"]
        return "\n".join([f"{self.report.path}: repair", *done, str(self.report), *self.advice])


@dataclass
class Findings:
    """Collects differences, each once, up to a bound."""

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, kind: DifferenceKind, text: str, **place: int | str | None) -> None:
        """Take a difference; ``place`` names snapshot, partition, offset and key."""
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(Difference(kind, text, **place))  # type: ignore[arg-type]
        else:
            self.more += 1

    def note(self, text: str) -> None:
        """Take a note, once."""
        if text not in self.notes:
            self.notes.append(text)


def shown(batch: pa.RecordBatch) -> str:
    """Show the first row of a batch, shortened."""
    values = batch.slice(0, 1).to_pylist()[0]
    text = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


def _ranges(snapshots: tuple[int, ...]) -> str:
    first, last = snapshots[0], snapshots[-1]
    return f"snapshot {first}" if first == last else f"snapshots {first} to {last}"
