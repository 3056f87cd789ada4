"""Inspects a table's log for verify and repair: its contents, and what index and register say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.audit.log_scan import bounds, positions, scan
from log_system.kafka.audit.partition_map import PartitionMap, lay_out
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.topic import topic_id
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import is_another, shortened_partitions
from log_system.kafka.register import RegisterPosition
from log_system.report import Compared, Difference, DifferenceKind, Findings, Progress, Report
from snapshot.errors import CorruptedError, DataLostError
from snapshot.records import LogEnd, Snapshot


class ScanProgress:
    """Counts the offsets that have been read, and reports them."""

    def __init__(self, progress: Progress | None) -> None:
        """Report to ``progress``, if there is one."""
        self._progress = progress
        self._done = 0
        self.total = 0

    def __call__(self, offsets: int) -> None:
        """Add a number of offsets that have been read."""
        self._done += offsets
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)


@dataclass(frozen=True)
class Facts:
    """The facts that the table's files give about a snapshot.

    Attributes:
        snapshot: the snapshot; None if its entry in the Delta log cannot be read.
        rows: number of its changes in each partition; empty if its entry in the Delta log cannot be read.
        lost: why the snapshot cannot be read; empty if it can.
        expired: whether it cannot be read because it has expired; that is not damage.
    """

    snapshot: Snapshot | None
    rows: tuple[int, ...]
    lost: str = ""
    expired: bool = False


@dataclass(frozen=True)
class Inspection:
    """All that is known about a table's log.

    Attributes:
        entries: the entries of the index, by the snapshot ids in their file names.
        broken: why an entry cannot be used, by snapshot id.
        register: the register's position in each partition; None if it is lost.
        moving: whether the register changed during the inspection, so a writer is publishing.
        newest: the newest committed snapshot.
        maps: where the snapshots are in each partition.
        facts: what the table says about each committed snapshot.
        oldest: the oldest snapshot that has not expired.
        table_id: the table's id.
        topic_id: Kafka's id of the topic.
        after: the snapshot after which the log was inspected; 0 for the whole log.
        through: the last snapshot to compare; None for the newest, and then up to the end of the log.
    """

    entries: dict[int, IndexEntry]
    broken: dict[int, str]
    register: list[RegisterPosition | None]
    moving: bool
    newest: int
    maps: list[PartitionMap]
    facts: dict[int, Facts]
    oldest: int = 0
    table_id: str = ""
    topic_id: str = ""
    after: int = 0
    through: int | None = None

    @property
    def last(self) -> int:
        """The last snapshot to compare."""
        return self.newest if self.through is None else self.through

    def commit(self, snapshot: int) -> str:
        """Return the fingerprint of the table's commit of a snapshot; empty if its entry cannot be read."""
        facts = self.facts.get(snapshot)
        return "" if facts is None or facts.snapshot is None else facts.snapshot.fingerprint

    def is_other(self, snapshot: int, commit: str) -> bool:
        """Return whether a snapshot's commit according to the log differs from the table's."""
        own = self.commit(snapshot)
        return bool(own and commit) and own != commit

    def others(self) -> list[tuple[int, int, int]]:
        """Return snapshot, partition and offset of each record that names another commit than the table's."""
        return [
            (mark.position.snapshot, partition, mark.position.end - 1)
            for partition, found in enumerate(self.maps)
            for mark in found.scan.marks
            if self.is_other(mark.position.snapshot, mark.position.commit)
        ]

    def claimed(self, snapshot: int, partition: int) -> bool:
        """Return whether index or register say that a partition holds a snapshot."""
        entry, held = self.entries.get(snapshot), self.register[partition]
        return (entry is not None and entry.partitions[partition].records > 0) or (
            held is not None and held.holds(snapshot)
        )

    def holds(self, snapshot: int, partition: int) -> bool:
        """Return whether a partition holds a snapshot's changes, or did before retention removed them."""
        rows = self.facts[snapshot].rows
        if rows and not rows[partition]:
            return True
        found = self.maps[partition]
        return snapshot in found.found or snapshot < found.first

    def entry(self, snapshot: int) -> IndexEntry | None:
        """Return the entry that a snapshot must have; None if log and table do not determine it.

        For records that retention has removed from the log, use the existing entry.
        """
        facts, present, before = self.facts[snapshot], self.entries.get(snapshot), self.entries.get(snapshot - 1)
        ranges: list[OffsetRange] = []
        for partition, found in enumerate(self.maps):
            old = present.partitions[partition] if present is not None else None
            rows = facts.rows[partition] if facts.rows else (old.rows if old else -1)
            start = found.end_before(snapshot)
            if snapshot < found.first or rows < 0:
                if old is None:
                    # The records can no longer be read from the log, so any range will do.
                    low = found.start if before is None else before.partitions[partition].end
                    old = OffsetRange(low, low, 0, max(rows, 0))
                ranges.append(old)
            elif start is None or snapshot <= found.first < found.known_from:
                # Retention may have advanced into the transaction marker before the snapshot's first record.
                start = old.start if old is not None else found.start
                start = before.partitions[partition].end if before is not None else start
                ranges.append(_range(found, snapshot, start, rows))
            else:
                ranges.append(_range(found, snapshot, start, rows))
        known = facts.snapshot
        if known is None:
            return None if present is None else replace(present, partitions=tuple(ranges))
        right = IndexEntry(
            snapshot,
            known.timestamp_ms,
            known.operation,
            tuple(ranges),
            table=self.table_id,
            commit=known.fingerprint,
            topic=self.topic_id,
        )
        # Older entries lack these three fields; they are correct without them.
        return right if present is None or present.table else replace(right, table="", commit="", topic="")


def inspect_log(
    table: BoundLog,
    meter: ScanProgress,
    *,
    whole: bool = False,
    after: Compared | None = None,
    through: int | None = None,
) -> Inspection:
    """Read index, register and log, all of them or those of some snapshots.

    The order makes the result correct although writers may run concurrently: what the index lists is already in the
    log when the log is read, and what is in the log is already committed when the commits are read.

    1. Read the index and the register.
    2. Find the ends of the log.
    3. Read the committed snapshots.
    4. Scan the log.
    5. Read the register again, to find out whether it has changed.

    Args:
        table: the log and its table.
        meter: counts the offsets that are read.
        whole: see ``bounds``.
        after: inspect only what follows; None for the whole log.
        through: inspect up to where this snapshot ends according to the index; None for up to the log's end.

    Raises:
        NotFoundError: the topic does not exist.
        UnavailableError: the broker does not answer, or an open transaction hides published records.
    """
    # Step 1.
    log = table.settings
    topic = topic_id(log.client, log.topic)
    first = 0 if after is None else after.snapshot
    entries, broken = read_index(table.index, log.partitions, first, through)
    before = positions(log)
    # Step 2.
    # Ignore partitions that an administrator has added; nothing is published to them.
    ranges = bounds(log, reached(log, entries, before), whole=whole)
    last = None if through is None else entries.get(through)
    if last is not None:
        ranges = [(low, min(end, part.end)) for (low, end), part in zip(ranges, last.partitions, strict=True)]
    else:
        through = None
    if after is not None:
        ranges = [(max(low, start), end) for (low, end), start in zip(ranges, after.ends, strict=True)]
    # Step 3.
    newest, oldest = table.files.latest(), table.files.oldest(fresh=False)
    top = newest if through is None else through
    facts = {s: Facts(None, (), "it has expired", expired=True) for s in range(first + 1, min(oldest, top + 1))}
    facts |= {s: _facts(table, s) for s in range(max(oldest, first + 1), top + 1)}
    # Step 4.
    meter.total = 2 * sum(max(0, end - low) for low, end in ranges)
    scans = [scan(log, p, low, end, newest, meter) for p, (low, end) in enumerate(ranges)]
    # Step 5.
    register = positions(log)
    maps = []
    for partition, held in enumerate(scans):
        base = entries[0].partitions[partition].end if 0 in entries else 0
        if after is not None:
            base = after.ends[partition]
        position = before[partition]
        published = max([*(s for s in entries if s <= newest), position.snapshot if position else 0])
        found = lay_out(held, base, newest, published, first)
        maps.append(_with_index(found, partition, entries) if log.compacted else found)
    ids = table.spec.table_id, topic
    return Inspection(
        entries, broken, before, before != register, newest, maps, facts, oldest, *ids, after=first, through=through
    )


def reached(log: KafkaLog, entries: Mapping[int, IndexEntry], register: Sequence[RegisterPosition | None]) -> list[int]:
    """Return, for each partition, the offset up to which the log must reach according to index and register."""
    found = [max((e.partitions[p].end for e in entries.values()), default=0) for p in range(log.partitions)]
    return [max(end, 0 if held is None else held.end) for end, held in zip(found, register, strict=True)]


def has_kept_compared(table: BoundLog, after: Compared, topic: str, now: Sequence[LogEnd]) -> bool:
    """Return whether log and table still hold what was compared, up to a snapshot that the table has.

    Judged by the topic's id, the commit's fingerprint, and the ends and leader epochs of the partitions. Nothing is
    published to partitions that were added since.
    """
    log, own = table.settings, table.files.fingerprint(after.snapshot)
    if after.topic not in ("", topic) or (own and after.commit and own != after.commit):
        return False
    if len(after.ends) != log.partitions or len(after.ends) > len(now):
        return False
    was = list(map(LogEnd, after.ends, after.epochs or repeat(-1)))
    is_shorter = any(end.offset < old.offset for old, end in zip(was, now, strict=False))
    return not is_shorter and not shortened_partitions(log, was, now)


def stale(entries: Mapping[int, IndexEntry], topic: str) -> list[int]:
    """Return the snapshots whose entries refer to a deleted topic of the same name."""
    return [snapshot for snapshot, entry in entries.items() if is_another(entry.topic, topic)]


def unusable_topic(table: BoundLog, why: str) -> Report:
    """Return the report of a log whose topic cannot be compared with the table at all."""
    return Report(table.path, (Difference(DifferenceKind.TOPIC, why),))


def wrong_partitions(table: BoundLog, count: int) -> Report:
    """Return the report of a log whose topic does not have one partition per bucket."""
    log = table.settings
    return unusable_topic(table, f"topic {log.topic!r} has {count} partitions, the table {log.partitions}.")


def note_topic(entries: Mapping[int, IndexEntry], topic: str, findings: Findings) -> None:
    """Note if the topic is not the one that index entries refer to."""
    if old := stale(entries, topic):
        findings.note(f"the topic was deleted and recreated since snapshot {max(old)} was published.")


def read_index(
    index: LogIndex, partitions: int, first: int = 0, last: int | None = None
) -> tuple[dict[int, IndexEntry], dict[int, str]]:
    """Read the entries of the index, from snapshot ``first`` to ``last``, and that of the empty table.

    Returns:
        The usable entries, and the reason for each entry that cannot be used.

    Raises:
        UnavailableError: the file system does not answer.
    """
    entries: dict[int, IndexEntry] = {}
    broken: dict[int, str] = {}
    for snapshot in index.snapshots():
        if (0 < snapshot < first) or (last is not None and snapshot > last):
            continue
        try:
            entry = index.get(snapshot)
        except CorruptedError as error:
            broken[snapshot] = str(error)
            continue
        if entry is None:
            continue
        numbers: list[Any] = [n for r in entry.partitions for n in (r.start, r.end, r.records, r.rows)]
        if len(entry.partitions) != partitions:
            broken[snapshot] = f"the entry has {len(entry.partitions)} partitions, the log {partitions}"
        elif not all(isinstance(number, int) and number >= 0 for number in numbers):
            broken[snapshot] = "the entry holds a value that is neither an offset nor a count"
        else:
            entries[snapshot] = entry
    return entries, broken


def _facts(table: BoundLog, snapshot: int) -> Facts:
    buckets = table.settings.partitions
    try:
        changes = table.files.published(snapshot, buckets)
        return Facts(changes.snapshot, tuple(changes.rows(p) for p in range(buckets)))
    except DataLostError as error:
        return Facts(None, (), str(error), expired=True)
    except (CorruptedError, OSError, ValueError) as error:
        return Facts(None, (), str(error))


def _with_index(found: PartitionMap, partition: int, entries: dict[int, IndexEntry]) -> PartitionMap:
    """Return the map completed by the index with snapshots whose last record Kafka has compacted away."""
    merged = dict(found.found)
    for snapshot, entry in entries.items():
        held = entry.partitions[partition]
        if snapshot >= found.first and held.rows and held.end <= found.scan.end:
            merged.setdefault(snapshot, held)
    ordered: dict[int, OffsetRange] = {}
    start = found.start
    for snapshot in sorted(merged):
        held = merged[snapshot]
        ordered[snapshot] = OffsetRange(start, held.end, held.records, held.rows)
        start = held.end
    return replace(found, found=ordered, commit=found.commit if next(reversed(ordered), 0) == found.last else "")


def _range(found: PartitionMap, snapshot: int, start: int, rows: int) -> OffsetRange:
    held = found.found.get(snapshot)
    return OffsetRange(start, start, 0, rows) if held is None else OffsetRange(start, held.end, held.records, rows)
