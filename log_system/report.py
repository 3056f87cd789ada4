"""The reports of verify and repair: the differences between log and table, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from snapshot.messages import counted, snapshots_from_to
from snapshot.python_values import printable

Progress = Callable[[int, int], None]
"""Called with the number of offsets read and the total. Each offset counts twice: it is read once to locate snapshots
and once to compare values."""

DIFFERENCES_MAX = 1_000
"""Maximum number of differences in a report; further ones are only counted."""

RESTORED = (
    "The table has another one: it was restored from an older copy and others have committed to it since, or a Delta "
    "writer that checks and then writes has replaced the commit."
)
_TEXT_MAX = 80


class DifferenceKind(StrEnum):
    """The kinds of differences between log and table.

    The first six kinds concern the records of the log; the others concern index, register, files and topic.
    """

    MISSING = "missing"
    """Changes that are committed and recorded as published are not in the log."""
    EXTRA = "extra"
    """The log holds a record that does not correspond to a table change: from another producer, or a duplicate."""
    CHANGED = "changed"
    """A record has other values than the table's change."""
    UNREADABLE = "unreadable"
    """A record cannot be decoded."""
    EARLY = "early"
    """A record names a snapshot that is not committed."""
    HISTORY = "history"
    """A snapshot in the log is another commit than in the table: the table was restored, or the commit replaced."""
    INDEX = "index"
    """An entry of the log index is missing, damaged or wrong."""
    REGISTER = "register"
    """The register is lost or wrong."""
    FILES = "files"
    """Files of the table with a snapshot's changes are missing or damaged, so the log cannot be compared."""
    TOPIC = "topic"
    """The topic does not exist, or has another number of partitions than the table has buckets."""


@dataclass(frozen=True)
class Difference:
    """One difference between log and table.

    Attributes:
        kind: the kind of difference.
        text: a description.
        snapshot: the snapshot concerned; None if none is.
        partition: the log partition.
        offset: the record's offset; for missing changes, the offset of the record that they should precede.
        key: the row's primary key as text; in a table without a key, the whole row.
    """

    kind: DifferenceKind
    text: str
    snapshot: int | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        """Return kind, place and description in one line."""
        places = (
            ("snapshot", self.snapshot),
            ("partition", self.partition),
            ("offset", self.offset),
            ("key", self.key),
        )
        place = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.kind}: {place}: {self.text}" if place else f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Compared:
    """How far a log has been compared with its table; the next comparison can begin there.

    Attributes:
        snapshot: the last snapshot that was compared.
        ends: the offset in each log partition at which it ends; empty if the log does not keep snapshots apart.
        commit: identifies the snapshot's commit; empty if unknown.
        topic: Kafka's id of the topic to which the offsets refer; empty if unknown.
        epochs: the leader epoch of each log partition when the comparison began, which does not tell positions apart;
            empty if unknown.
    """

    snapshot: int
    ends: tuple[int, ...] = ()
    commit: str = ""
    topic: str = ""
    epochs: tuple[int, ...] = field(default=(), compare=False)


_ADVICE = {
    DifferenceKind.EXTRA: "Plain consumers have seen records that are not changes of the table. They cannot be "
    "removed without moving the records after them.",
    DifferenceKind.HISTORY: "The table was restored from an older copy, and the log holds what was committed after "
    "that copy. Nothing is published until the table is brought back as it was, or the topic deleted and log.repair() "
    "called again.",
    DifferenceKind.EARLY: "Plain consumers have seen records of a snapshot that is not committed.",
    DifferenceKind.MISSING: "Changes are missing in the middle of the log; published now they would be out of order.",
    DifferenceKind.CHANGED: "Records have other values than the table, and a record in Kafka cannot be changed.",
    DifferenceKind.UNREADABLE: "Records cannot be decoded, and a record in Kafka cannot be changed.",
    DifferenceKind.FILES: "Files of the table are missing or damaged; restore them from a backup.",
    DifferenceKind.TOPIC: "The topic must be created again with one partition per bucket; then log.repair() "
    "publishes every snapshot.",
}
_FOREIGN = (
    "If another producer wrote them, allow only the table's writers to write to the topic (Kafka ACLs), and set option "
    "'log.foreign-records' to 'skip', so that the table's own streams ignore them."
)
_ANEW = (
    "The table itself is correct, and batch reads are not affected. To get a correct log, delete the topic and call "
    "log.repair() again: it publishes every snapshot whose files still exist, and consumers start again at offset 0."
)


@dataclass(frozen=True)
class Report:
    """The result of comparing log and table.

    Attributes:
        path: the table's folder.
        differences: the differences, at most ``DIFFERENCES_MAX``.
        more: number of further differences.
        pending: snapshots that are committed but not yet published, if any of them has changes. This is no damage: the
            next write or ``recover()`` publishes them.
        notes: what was not compared, and why.
        snapshots: number of snapshots compared.
        records: number of records read from the log.
        rows: number of changes compared.
        compared: how far log and table were compared, where the next comparison can begin; None if they cannot be.
        after: the snapshot after which the comparison began; 0 if it covered the whole log.
    """

    path: str
    differences: tuple[Difference, ...] = ()
    more: int = 0
    pending: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    snapshots: int = 0
    records: int = 0
    rows: int = 0
    compared: Compared | None = None
    after: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no differences."""
        return not self.differences and not self.more

    def __str__(self) -> str:
        """Return the counts, then one line per difference."""
        count = len(self.differences) + self.more
        verdict = "log and table agree" if self.ok else f"log and table differ in {counted(count, 'place')}"
        compared = ((self.snapshots, "snapshot"), (self.records, "record"), (self.rows, "change"))
        lines = [f"{self.path}: {verdict} ({', '.join(counted(*each) for each in compared)})."]
        lines += [f"  {difference}" for difference in self.differences]
        if self.more:
            lines.append(f"  and {self.more:,} more")
        if self.pending:
            pending = snapshots_from_to(self.pending[0], self.pending[-1])
            lines.append(f"  pending: {pending} committed and not yet published; recover() does that")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        actions: what the repair did, in order.
        report: the differences that remain between log and table.
        advice: what could not be repaired, what that means and what to do.
    """

    actions: tuple[str, ...]
    report: Report
    advice: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no differences remain, and nothing was in the way of publishing."""
        return self.report.ok and not self.advice

    def __str__(self) -> str:
        """Return what was done, then the remaining differences."""
        nothing = "nothing needed repair" if self.ok else "nothing could be repaired; see below"
        done = [f"  {action}" for action in self.actions] or [f"  {nothing}"]
        return "\n".join([f"{self.report.path}: repair", *done, str(self.report), *self.advice])


@dataclass(frozen=True)
class Mended:
    """The result of a repair, before the log is verified again.

    Attributes:
        actions: what was done, in order.
        obstacles: what could not be done.
    """

    actions: tuple[str, ...]
    obstacles: tuple[str, ...] = ()


@dataclass
class Findings:
    """Collects differences, up to ``DIFFERENCES_MAX``, and notes, each once."""

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, kind: DifferenceKind, text: str, **place: int | str | None) -> None:
        """Add a difference; ``place`` gives snapshot, partition, offset and key."""
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(Difference(kind, text, **place))  # type: ignore[arg-type]
        else:
            self.more += 1

    def note(self, text: str) -> None:
        """Add a note unless it has already been added."""
        if text not in self.notes:
            self.notes.append(text)

    def report(self, path: str, **facts: Any) -> Report:
        """Return the report of the table at ``path``; ``facts`` are its further fields."""
        return Report(path, tuple(self.differences), self.more, notes=tuple(self.notes), **facts)


def advice(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return an explanation of the differences that a repair cannot correct, with what to do about them."""
    kinds = {difference.kind for difference in differences}
    found = [text for kind, text in _ADVICE.items() if kind in kinds]
    if kinds & {DifferenceKind.EXTRA, DifferenceKind.EARLY, DifferenceKind.CHANGED, DifferenceKind.UNREADABLE}:
        found.append(_FOREIGN)
    in_log = kinds & {
        DifferenceKind.EXTRA,
        DifferenceKind.EARLY,
        DifferenceKind.MISSING,
        DifferenceKind.CHANGED,
        DifferenceKind.UNREADABLE,
        DifferenceKind.HISTORY,
    }
    return tuple([*found, _ANEW] if in_log else found)


def shown(batch: pa.RecordBatch) -> str:
    """Return the first row of a batch as text, shortened."""
    values = (printable(column.slice(0, 1))[0] for column in batch.columns)
    text = ", ".join(f"{name}={value!r}" for name, value in zip(batch.schema.names, values, strict=True))
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
