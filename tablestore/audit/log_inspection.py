"""Looks at a table's log as a whole, for verify and repair: what it holds, and what index and register say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client.topic import topic_id
from log_system.kafka.log import KafkaLog
from log_system.kafka.published_positions import is_another
from log_system.kafka.reader.log_scan import bounds, positions, scan
from log_system.kafka.reader.partition_map import PartitionMap, lay_out
from log_system.kafka.register import RegisterPosition
from snapshot.errors import CorruptedError, DataLostError
from snapshot.records import Snapshot
from tablestore.context import TableContext

Progress = Callable[[int, int], None]
"""Told how many offsets have been read, of how many; each is read twice, once for its place and once for its value."""


class ScanProgress:
    """Adds up what has been read."""

    def __init__(self, progress: Progress | None) -> None:
        """Tell ``progress``, if there is one."""
        self._progress = progress
        self._done = 0
        self.total = 0

    def __call__(self, offsets: int) -> None:
        """Count offsets that have been read."""
        self._done += offsets
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)


@dataclass(frozen=True)
class Facts:
    """What the table says of a snapshot.

    Attributes:
        snapshot: the snapshot; None when its log entry in Delta cannot be read.
        rows: for each partition, its changes; empty likewise.
        lost: why it cannot be read; empty when it can.
        expired: whether Delta's own log retention is the cause, which is no damage.
    """

    snapshot: Snapshot | None
    rows: tuple[int, ...]
    lost: str = ""
    expired: bool = False


@dataclass(frozen=True)
class Inspection:
    """All that is known of a table's log.

    Attributes:
        entries: the index, by the ids that the files' names give.
        broken: why an entry cannot be used, by id.
        register: the register; None for a partition whose offset is lost.
        moving: whether the register moved meanwhile, so that somebody is publishing.
        newest: the newest committed snapshot.
        maps: for each partition, where the snapshots lie.
        facts: for each committed snapshot, what the table says.
        oldest: the oldest snapshot that has not expired.
        table_id: the table's id.
        topic_id: Kafka's id of the topic.
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

    def commit(self, snapshot: int) -> str:
        """Return what identifies the table's commit of a snapshot; empty where its entry cannot be read."""
        facts = self.facts.get(snapshot)
        return "" if facts is None or facts.snapshot is None else facts.snapshot.fingerprint

    def is_other(self, snapshot: int, commit: str) -> bool:
        """Return whether what the log says of a snapshot's commit is not what the table says."""
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
        """Tell whether index or register say that a partition holds a snapshot."""
        entry, held = self.entries.get(snapshot), self.register[partition]
        return (entry is not None and entry.partitions[partition].records > 0) or (
            held is not None and held.holds(snapshot)
        )

    def holds(self, snapshot: int, partition: int) -> bool:
        """Tell whether a partition holds a snapshot's changes, or did before retention removed them."""
        rows = self.facts[snapshot].rows
        if rows and not rows[partition]:
            return True
        found = self.maps[partition]
        return snapshot in found.found or snapshot < found.first

    def entry(self, snapshot: int) -> IndexEntry | None:
        """Build the entry a snapshot must have; None where log and table cannot tell.

        What retention has removed from the log is taken from the entry that is there.
        """
        facts, present, before = self.facts[snapshot], self.entries.get(snapshot), self.entries.get(snapshot - 1)
        ranges: list[OffsetRange] = []
        for partition, found in enumerate(self.maps):
            old = present.partitions[partition] if present is not None else None
            rows = facts.rows[partition] if facts.rows else (old.rows if old else -1)
            start = found.end_before(snapshot)
            if snapshot < found.first or rows < 0:
                if old is None:
                    # Nobody can read it from the log any more, whatever the entry says.
                    low = found.start if before is None else before.partitions[partition].end
                    old = OffsetRange(low, low, 0, max(rows, 0))
                ranges.append(old)
            elif start is None or snapshot <= found.first < found.known_from:
                # Retention may have passed into the marker before its first record.
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
        # An entry from before these were kept is right without them.
        return right if present is None or present.table else replace(right, table="", commit="", topic="")


def inspect_log(table: TableContext, log: KafkaLog, meter: ScanProgress, *, whole: bool = False) -> Inspection:
    """Read index, register and log.

    The order makes it right beside writers: what the index lists is in the log by then, and what is in the log is
    committed by then.

    1. Read the index and the register.
    2. Find the ends of the log.
    3. Read what is committed, snapshot by snapshot.
    4. Scan the log.
    5. Read the register again, to see whether it has moved.

    Args:
        table: the table.
        log: its log.
        meter: told how far it is.
        whole: see ``bounds``.

    Raises:
        NotFoundError: the topic does not exist.
        UnavailableError: the broker does not answer, or an open transaction hides what is published.
    """
    # Step 1.
    topic = topic_id(log.client, log.topic)
    entries, broken = read_index(table.index, log.partitions)
    before = positions(log)
    # Step 2.
    # An administrator may have added partitions; nothing is published to those.
    ranges = bounds(log, reached(log, entries, before), whole=whole)[: log.partitions]
    # Step 3.
    newest, oldest = table.files.latest(), table.files.oldest(fresh=False)
    facts = {s: Facts(None, (), "it has expired", expired=True) for s in range(1, oldest)}
    facts |= {s: _facts(table, s) for s in range(max(oldest, 1), newest + 1)}
    # Step 4.
    meter.total = 2 * sum(end - low for low, end in ranges)
    scans = [scan(log, p, low, end, newest, meter) for p, (low, end) in enumerate(ranges)]
    # Step 5.
    after = positions(log)
    maps = []
    compacted = table.options.log is not None and table.options.log.compacted
    for partition, held in enumerate(scans):
        base = entries[0].partitions[partition].end if 0 in entries else 0
        position = before[partition]
        published = max([*(s for s in entries if s <= newest), position.snapshot if position else 0])
        found = lay_out(held, base, newest, published)
        maps.append(_with_index(found, partition, entries) if compacted else found)
    ids = table.spec.table_id, topic
    return Inspection(entries, broken, before, before != after, newest, maps, facts, oldest, *ids)


def reached(log: KafkaLog, entries: Mapping[int, IndexEntry], register: Sequence[RegisterPosition | None]) -> list[int]:
    """Return for each partition the offset that index and register say the log reaches."""
    found = [max((e.partitions[p].end for e in entries.values()), default=0) for p in range(log.partitions)]
    return [max(end, 0 if held is None else held.end) for end, held in zip(found, register, strict=True)]


def stale(entries: Mapping[int, IndexEntry], topic: str) -> list[int]:
    """Return the snapshots whose entries are of a topic that was deleted, one of the same name having been made."""
    return [snapshot for snapshot, entry in entries.items() if is_another(entry.topic, topic)]


def read_index(index: LogIndex, partitions: int) -> tuple[dict[int, IndexEntry], dict[int, str]]:
    """Read every entry of the index.

    Returns:
        The entries and, for those that cannot be used, why.

    Raises:
        UnavailableError: the file system does not answer.
    """
    entries: dict[int, IndexEntry] = {}
    broken: dict[int, str] = {}
    for snapshot in index.snapshots():
        try:
            entry = index.get(snapshot)
        except CorruptedError as error:
            broken[snapshot] = str(error)
            continue
        if entry is None:
            continue
        numbers: list[Any] = [n for r in entry.partitions for n in (r.start, r.end, r.records, r.rows)]
        if entry.snapshot != snapshot:
            broken[snapshot] = f"the entry says that it is of snapshot {entry.snapshot}"
        elif len(entry.partitions) != partitions:
            broken[snapshot] = f"the entry has {len(entry.partitions)} partitions, the log {partitions}"
        elif not all(isinstance(number, int) and number >= 0 for number in numbers):
            broken[snapshot] = "the entry holds what is no offset and no count"
        else:
            entries[snapshot] = entry
    return entries, broken


def _facts(table: TableContext, snapshot: int) -> Facts:
    buckets = table.options.buckets
    try:
        changes = table.files.published(snapshot, buckets)
        return Facts(changes.snapshot, tuple(changes.rows(p) for p in range(buckets)))
    except DataLostError as error:
        return Facts(None, (), str(error), expired=True)
    except (CorruptedError, OSError, ValueError) as error:
        return Facts(None, (), str(error))


def _with_index(found: PartitionMap, partition: int, entries: dict[int, IndexEntry]) -> PartitionMap:
    """Take the places of snapshots whose last record Kafka has compacted away from the index."""
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
    return PartitionMap(
        found.scan, ordered, found.first, found.cut, found.start, found.known_from, found.part, found.early,
        found.commit if next(reversed(ordered), 0) == found.last else "",
    )  # fmt: skip


def _range(found: PartitionMap, snapshot: int, start: int, rows: int) -> OffsetRange:
    held = found.found.get(snapshot)
    return OffsetRange(start, start, 0, rows) if held is None else OffsetRange(start, held.end, held.records, rows)
