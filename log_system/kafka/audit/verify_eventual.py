"""Verifies and repairs an eventual log by comparing the last record of each key with the newest snapshot.

Such a log does not keep snapshots apart, so records are not compared one by one. The log is correct if the last records
of all keys yield the table or, without a key, if it has each committed change at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from log_system.base import AT, CHANGED, SAID
from log_system.index import IndexEntry, OffsetRange
from log_system.kafka.audit.log_inspection import (
    ScanProgress,
    has_kept_compared,
    note_topic,
    reached,
    read_index,
    unusable_topic,
    wrong_partitions,
)
from log_system.kafka.audit.log_scan import bounds, positions
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.topic import stable_ends, topic_id
from log_system.kafka.log import KafkaLog
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.reader.tail_reader import offset_of
from log_system.kafka.register import RegisterPosition
from log_system.report import RESTORED, Compared, DifferenceKind, Findings, Mended, Progress, Report, shown
from snapshot.errors import CorruptedError, DataLostError, NotFoundError
from snapshot.messages import counted
from snapshot.records import LogEnd
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.spec import TableSpec


@dataclass(frozen=True)
class _Seen:
    """The state of the log by its index, its register and the broker.

    Attributes:
        entries: the entries of the index, by snapshot id.
        broken: why an entry cannot be used, by snapshot id.
        register: how far each partition is settled; None if the broker has lost that.
        bounds: the first offset and the end of each partition.
        newest: the newest committed snapshot.
        topic_id: Kafka's id of the topic.
        first: the first snapshot whose entry was read; that of the empty table was, too.
    """

    entries: Mapping[int, IndexEntry]
    broken: Mapping[int, str]
    register: Sequence[RegisterPosition | None]
    bounds: Sequence[tuple[int, int]]
    newest: int
    topic_id: str
    first: int = 0

    @property
    def listed(self) -> int:
        """The newest committed snapshot that the index lists."""
        return max((s for s in self.entries if s <= self.newest), default=0)

    @property
    def settled(self) -> int:
        """The newest snapshot that the log is known to hold."""
        return min((self.listed if held is None else held.snapshot for held in self.register), default=0)

    def settled_end(self, partition: int) -> int:
        """Return the offset at which the settled part of a partition ends."""
        held, entry = self.register[partition], self.entries.get(self.settled)
        return held.end if held is not None else entry.ends[partition] if entry is not None else 0

    def is_cut(self, partition: int) -> bool:
        """Return whether retention has removed the beginning of a partition."""
        first = self.entries.get(0)
        return self.bounds[partition][0] > (first.ends[partition] if first is not None else 0)


def verify_eventual(table: BoundLog, progress: Progress | None, after: Compared | None) -> Report:
    """Compare the last record of each key in an eventual log with the newest snapshot; change nothing.

    Without a key, look for changes of the settled snapshots that the log holds less often than these.

    Unsettled records, after the settled part of a partition, come from writes in progress or aborted writes. They are
    noted but do not count as differences; the next write or ``recover()`` settles them. If retention has removed the
    beginning of a partition, only keys that still have a record in it are compared.

    What follows ``after`` holds the last record of every key that was sent or changed since, so it suffices to compare
    these. If they differ, or what was compared is no longer there, all keys are compared: a repair leaves records
    before ``after`` as they are if they hold the committed values.

    Args:
        table: the log and its table.
        progress: called with the number of offsets read so far and the total.
        after: compare only keys that were sent or changed since; None for all.

    Raises:
        UnavailableError: the broker or the file system does not answer.
    """
    meter = ScanProgress(progress)
    report = _compare(table, after, meter)
    return report if report.ok or not report.after else _compare(table, None, meter)


def _compare(table: BoundLog, after: Compared | None, meter: ScanProgress) -> Report:
    """Compare everything, or what was sent or changed since ``after`` if what was compared is still there.

    1. Read the index and the register, then the ends of the log, then the newest snapshot. In this order, what the
       index lists is in the log, and what is settled is committed.
    2. Compare partition by partition, with bounded memory.
    3. Compare the index and the register with the log.
    """
    # Report records of other producers even if readers skip them.
    log = replace(table.settings, skips_foreign=False)
    findings = Findings()
    # Step 1.
    try:
        log_end = stable_ends(log.client, log.topic)[: log.partitions]
        seen = _look(table, log, first=0 if after is None else after.snapshot)
    except NotFoundError as error:
        return unusable_topic(table, str(error))
    if len(seen.bounds) != log.partitions:
        return wrong_partitions(table, len(seen.bounds))
    if after is not None and not _holds(table, seen, after, log_end):
        return _compare(table, None, meter)
    # Step 2.
    _compare_partitions(table, log, seen, after, findings, meter)
    # Step 3.
    note_topic(seen.entries, seen.topic_id, findings)
    _check_index(seen, findings)
    _check_register(table, seen, findings)
    for snapshot in _others(table, seen):
        findings.add(
            DifferenceKind.HISTORY, f"the index lists another commit than the table's. {RESTORED}", snapshot=snapshot
        )
    ends, epochs = map(seen.settled_end, range(log.partitions)), (end.epoch for end in log_end)
    commit = table.files.fingerprint(seen.settled)
    return findings.report(
        table.path,
        pending=tuple(range(seen.listed + 1, seen.newest + 1)),
        snapshots=1,
        records=meter.total,
        compared=Compared(seen.settled, tuple(ends), commit, seen.topic_id, tuple(epochs)),
        after=0 if after is None else after.snapshot,
    )


def repair_eventual(table: BoundLog, publisher: EventualPublisher, broken: Sequence[int]) -> Mended:
    """Correct the log wherever it differs from the table, and rebuild the index; the publisher becomes the log's owner.

    1. Take the log over. After a crash here or later, the next repair or writer continues.
    2. If the topic ends before the settled offsets, delete the index, because its offsets belong to another log.
    3. Send the committed row, or a delete, of each key whose last record in the log says something else. Without a
       key, send the changes that the log lacks.
    4. Write missing index entries.

    Args:
        table: the table.
        publisher: publisher of the table's log.
        broken: snapshots whose index entries were unreadable and have been removed.

    Raises:
        FencedError: another publisher took the log over; repair again.
        UnavailableError: the broker or the file system does not answer; repair again.
    """
    actions: list[str] = []
    # Step 1.
    publisher.take_over(check=False)
    seen = _look(table, publisher.log, whole=True)
    # Step 2.
    other = _others(table, seen)
    beyond = [s for s in seen.entries if s > seen.newest or s in other]
    claimed = max((s for s in seen.entries if s not in beyond), default=None)
    if any(_reaches(seen, p, claimed) > end for p, (_, end) in enumerate(seen.bounds)):
        actions.append("deleted the log index: the topic was recreated, or has lost records")
        beyond = list(seen.entries)
    table.index.delete(sorted(beyond, reverse=True))
    actions += [f"removed the index entry of snapshot {s}" for s in sorted({*beyond, *broken}) if s > seen.newest]
    if other:
        actions.append(f"deleted index entries of other commits, from snapshot {min(other)} on: the table was restored")
    # Step 3.
    sent = publisher.reconcile_all(table.files.snapshot(seen.newest))
    what, noun = ("the committed value of ", "key") if table.spec.has_key else ("", "change")
    actions += [f"partition {p}: sent {what}{counted(n, noun)} again" for p, n in sorted(sent.items())]
    # Step 4.
    kept = {s: entry for s, entry in seen.entries.items() if s not in beyond}
    ends = [(p.end, low) for p, (low, _) in zip(publisher.positions(), seen.bounds, strict=True)]
    return Mended((*actions, *_rebuild(table, kept, ends, seen)))


def _look(table: BoundLog, log: KafkaLog, *, first: int = 0, whole: bool = False) -> _Seen:
    topic = topic_id(log.client, log.topic)
    entries, broken = read_index(table.index, log.partitions, first)
    register = positions(log)
    found = bounds(log, reached(log, entries, register), whole=whole)
    return _Seen(entries, broken, register, found, table.files.latest(), topic, first)


def _others(table: BoundLog, seen: _Seen) -> list[int]:
    """Return the snapshots whose commit in the index is not the table's, which was restored from an older copy."""
    found: list[int] = []
    for snapshot in sorted((s for s in seen.entries if s <= seen.newest), reverse=True):
        own, commit = table.files.fingerprint(snapshot), seen.entries[snapshot].commit
        if own and commit == own:
            break
        if own and commit:
            found.append(snapshot)
    return found


def _holds(table: BoundLog, seen: _Seen, after: Compared, now: Sequence[LogEnd]) -> bool:
    """Return whether log and table still contain what was compared and what followed."""
    if after.snapshot > seen.settled or after.snapshot + 1 < table.files.oldest():
        return False
    if not has_kept_compared(table, after, seen.topic_id, now):
        return False
    return all(seen.bounds[p][0] <= end <= seen.settled_end(p) for p, end in enumerate(after.ends))


def _compare_partitions(
    table: BoundLog, log: KafkaLog, seen: _Seen, after: Compared | None, findings: Findings, meter: ScanProgress
) -> None:
    """Compare all that the partitions hold, or what was sent or changed since ``after``."""
    source, has_key = table.source(log), table.spec.has_key
    left_out, name = (
        ("keys with no record after it", _name_keys) if has_key else ("snapshots that begin before it", _name_changes)
    )
    starts = [low for low, _ in seen.bounds] if after is None else after.ends
    first, last = seen.settled if after is None else after.snapshot, seen.newest if has_key else seen.settled
    changed = [each for each in source.changes_from(first + 1) if each.snapshot.id <= last]
    meter.total += sum(end - start for start, (_, end) in zip(starts, seen.bounds, strict=True))
    for partition, start in enumerate(starts):
        end, is_cut = seen.bounds[partition][1], after is None and seen.is_cut(partition)
        if is_cut:
            findings.note(
                f"partition {partition}: retention has removed what was before offset {start}; {left_out} are not "
                "compared."
            )
        whole = after is None and not (has_key and is_cut)
        with _unreadable(findings, seen, partition):
            found = source.differences(partition, start, end, changed, whole=whole, snapshot=last)
            name(found, table.spec, seen, partition, findings)
        meter(end - start)


@contextmanager
def _unreadable(findings: Findings, seen: _Seen, partition: int) -> Iterator[None]:
    """Add a difference where a record cannot be decoded, or a file of the table cannot be read."""
    try:
        yield
    except CorruptedError as error:
        findings.add(DifferenceKind.UNREADABLE, str(error), partition=partition)
    except (DataLostError, FileNotFoundError) as error:
        findings.add(DifferenceKind.FILES, str(error), snapshot=seen.newest, partition=partition)


def _offsets(batch: pa.RecordBatch) -> pa.Array:
    return offset_of(batch.column(AT))


def _name_keys(
    found: Iterator[pa.RecordBatch], spec: TableSpec, seen: _Seen, partition: int, findings: Findings
) -> None:
    """Add the keys whose last record is wrong; note how many of them are not settled."""
    waiting = 0
    try:
        for batch in found:
            unsettled = pc.or_kleene(
                pc.greater(batch.column(CHANGED), seen.settled),
                pc.greater_equal(_offsets(batch), seen.settled_end(partition)),
            )
            unsettled = pc.fill_null(unsettled, False)
            waiting += pc.sum(unsettled).as_py() or 0
            _name_rows(batch.filter(pc.invert(unsettled)), spec, partition, findings)
    finally:
        if waiting:
            findings.note(
                f"partition {partition}: {counted(waiting, 'unsettled key')}, from writes under way or aborted ones; "
                "the next write or recover() settles them."
            )


def _name_changes(
    found: Iterator[pa.RecordBatch], spec: TableSpec, _: _Seen, partition: int, findings: Findings
) -> None:
    """Add the changes of a table without a key that the log does not hold as often as the snapshots."""
    for batch in found:
        kinds = batch.column(KIND)
        for number in range(batch.num_rows):
            row = shown(batch.slice(number, 1).select(spec.arrow.names))
            kind = RowKind(kinds[number].as_py()).change_type
            text = f"the snapshots have the {kind} of {row} more often than the log."
            findings.add(DifferenceKind.MISSING, text, partition=partition)


def _name_rows(batch: pa.RecordBatch, spec: TableSpec, partition: int, findings: Findings) -> None:
    offsets = _offsets(batch)
    columns, keys = list(spec.arrow.names), list(spec.primary_key)
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        said = row.column(SAID)[0].as_py()
        place = {"partition": partition, "offset": offsets[number].as_py(), "key": shown(row.select(keys))}
        if row.column(KIND)[0].as_py() == RowKind.DELETE:
            findings.add(DifferenceKind.EXTRA, "the table does not have the key, the log does.", **place)
        elif said is None:
            findings.add(
                DifferenceKind.MISSING, f"the table has {shown(row.select(columns))}, the log nothing.", **place
            )
        elif said == RowKind.DELETE:
            findings.add(
                DifferenceKind.CHANGED, f"the table has {shown(row.select(columns))}, the log a delete.", **place
            )
        else:
            text = f"the table has {shown(row.select(columns))}, the log another value."
            findings.add(DifferenceKind.CHANGED, text, **place)


def _check_index(seen: _Seen, findings: Findings) -> None:
    for snapshot, why in seen.broken.items():
        findings.add(DifferenceKind.INDEX, f"{why}.", snapshot=snapshot)
    oldest = max(seen.first, min((*seen.entries, *seen.broken), default=0))
    for snapshot in range(oldest, max(seen.entries, default=0) + 1):
        entry, before = seen.entries.get(snapshot), seen.entries.get(snapshot - 1)
        if snapshot in seen.broken:
            continue
        if entry is None:
            findings.add(
                DifferenceKind.INDEX, "the index does not list it, so readers cannot begin there.", snapshot=snapshot
            )
        elif snapshot > seen.newest:
            text = f"the index lists it, and it is not committed; the newest snapshot is {seen.newest}."
            findings.add(DifferenceKind.INDEX, text, snapshot=snapshot)
        elif before is not None and tuple(p.start for p in entry.partitions) != before.ends:
            findings.add(DifferenceKind.INDEX, "its range does not begin where the one before ends.", snapshot=snapshot)


def _check_register(table: BoundLog, seen: _Seen, findings: Findings) -> None:
    claimed = seen.listed if seen.listed in seen.entries else None
    for partition, held in enumerate(seen.register):
        _, end = seen.bounds[partition]
        if held is not None and held.commit and held.snapshot <= seen.newest:
            own = table.files.fingerprint(held.snapshot)
            if own and own != held.commit:
                text = f"the register says that commit {held.commit} is settled. {RESTORED}"
                findings.add(DifferenceKind.HISTORY, text, snapshot=held.snapshot, partition=partition)
        # A broker that lost the end of the log may have lost the register's too.
        reaches = _reaches(seen, partition, claimed)
        if reaches > end:
            text = f"settled up to offset {reaches}, and the log ends at {end}: it was recreated or has lost records."
            findings.add(DifferenceKind.REGISTER, text, partition=partition, offset=end)
        elif held is None:
            # The first publisher writes it; until then, snapshots are pending.
            if seen.listed:
                findings.add(
                    DifferenceKind.REGISTER,
                    "the register is lost; recovery reads the index instead.",
                    partition=partition,
                )
        elif held.snapshot > seen.newest:
            text = f"the register names snapshot {held.snapshot}; the newest committed one is {seen.newest}."
            findings.add(DifferenceKind.REGISTER, text, partition=partition)


def _reaches(seen: _Seen, partition: int, claimed: int | None) -> int:
    """Return the offset that a partition must reach according to register and index."""
    held = seen.register[partition]
    listed = 0 if claimed is None else seen.entries[claimed].ends[partition]
    return max(listed, 0 if held is None else held.end)


def _rebuild(table: BoundLog, kept: dict[int, IndexEntry], ends: Sequence[tuple[int, int]], seen: _Seen) -> list[str]:
    """Write missing index entries up to the snapshot that was settled, and return what was done.

    In a run of missing entries, the last one gets the whole range of offsets, as when snapshots are settled together.
    """
    actions: list[str] = []
    # What others have committed since is not settled: their records may have been undone as those of a failed write.
    partitions, newest = len(ends), seen.newest
    for snapshot in range(min(kept, default=newest), newest + 1):
        if snapshot in kept:
            continue
        try:
            changes = table.files.changes(snapshot, partitions)
        except DataLostError:
            continue
        before = kept.get(snapshot - 1)
        starts = before.ends if before is not None else tuple(low for _, low in ends)
        following = kept.get(snapshot + 1)
        stops: Sequence[int] = starts
        if snapshot == newest:
            stops = [max(end, start) for (end, _), start in zip(ends, starts, strict=True)]
        elif following is not None:
            stops = [each.start for each in following.partitions]
        ranges = [OffsetRange(starts[p], stops[p], stops[p] - starts[p], changes.rows(p)) for p in range(partitions)]
        found = changes.snapshot
        ids = {"table": table.spec.table_id, "commit": found.fingerprint, "topic": seen.topic_id}
        entry = IndexEntry(snapshot, found.timestamp_ms, found.operation, tuple(ranges), **ids)
        table.index.put(entry)
        kept[snapshot] = entry
        actions.append(f"rebuilt the index entry of snapshot {snapshot}")
    return actions
