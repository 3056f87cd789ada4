"""Verify: compares the log with the table's files record by record, and index and register with the log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from log_system.index import IndexEntry
from log_system.kafka.audit.change_diff import Comparison, Parted
from log_system.kafka.audit.log_inspection import (
    Inspection,
    ScanProgress,
    has_kept_compared,
    inspect_log,
    note_topic,
    read_index,
    unusable_topic,
    wrong_partitions,
)
from log_system.kafka.audit.log_scan import LogReader
from log_system.kafka.bound_log import BoundLog
from log_system.kafka.client.topic import earliest_offsets, stable_ends, topic_id
from log_system.report import RESTORED, Compared, DifferenceKind, Findings, Progress, Report, shown
from snapshot.errors import CorruptedError, DataLostError, NotFoundError
from snapshot.messages import counted
from snapshot.records import ChangeSet, LogEnd

_SETTLE_SECONDS = 1.0


def check_index(table: BoundLog, seen: Inspection, findings: Findings) -> set[int]:
    """Compare the index with the log, and return the snapshots that are not yet published."""
    pending: set[int] = set()
    last = max((*seen.entries, *seen.broken, seen.after))
    # A log may have begun before its index. After a snapshot that was compared, every entry must exist.
    oldest = seen.after or min((*seen.entries, *seen.broken, 1))
    for snapshot, why in seen.broken.items():
        findings.add(DifferenceKind.INDEX, f"{why}.", snapshot=snapshot)
    absent: list[int] = []
    for snapshot in range(max(seen.after + 1, seen.oldest), max(seen.last, last) + 1):
        entry = seen.entries.get(snapshot)
        if snapshot in seen.broken:
            continue
        if snapshot > seen.newest:
            if entry is not None:
                text = f"the index lists it, and it is not committed; the newest snapshot is {seen.newest}."
                findings.add(DifferenceKind.INDEX, text, snapshot=snapshot)
        elif entry is not None:
            _check_entry(seen, snapshot, entry, findings)
        elif snapshot > oldest or any(snapshot >= found.first for found in seen.maps):
            rows = seen.facts[snapshot].rows
            in_log = any(rows) and all(seen.holds(snapshot, p) for p in range(table.settings.partitions))
            if snapshot < last or in_log:
                absent.append(snapshot)
            else:
                pending.add(snapshot)
    _check_absent(table, absent, findings, at_end=last)
    if not seen.after and 0 not in seen.entries and 0 not in seen.broken and oldest == 1 and not seen.oldest:
        findings.add(DifferenceKind.INDEX, "the entry of the empty table, snapshot 0, is missing.", snapshot=0)
    return pending


def _check_absent(table: BoundLog, absent: list[int], findings: Findings, *, at_end: int) -> None:
    """Report missing entries, unless a writer, which publishes first, has added them by now, or they have expired."""
    if any(snapshot > at_end for snapshot in absent):
        time.sleep(_SETTLE_SECONDS)
    now = read_index(table.index, table.settings.partitions)[0] if absent else {}
    oldest = table.files.oldest() if absent else 0
    for snapshot in absent:
        if snapshot not in now and snapshot >= oldest:
            text = "the log holds the snapshot and the index does not list it, so our readers do not see it."
            findings.add(DifferenceKind.INDEX, text, snapshot=snapshot)


def _check_entry(seen: Inspection, snapshot: int, entry: IndexEntry, findings: Findings) -> None:
    right = seen.entry(snapshot)
    assert right is not None
    if seen.is_other(snapshot, entry.commit):
        findings.add(DifferenceKind.HISTORY, f"the index lists commit {entry.commit}. {RESTORED}", snapshot=snapshot)
    if (entry.timestamp_ms, entry.kind) != (right.timestamp_ms, right.kind):
        text = (
            f"the entry says {entry.kind!r} at {entry.timestamp_ms} ms, the table {right.kind!r} at "
            f"{right.timestamp_ms} ms."
        )
        findings.add(DifferenceKind.INDEX, text, snapshot=snapshot)
    for partition, (says, found) in enumerate(zip(entry.partitions, right.partitions, strict=True)):
        if says != found and (seen.holds(snapshot, partition) or says.rows != found.rows):
            text = (
                f"the entry says offsets {says.start} to {says.end}, {says.records} records of {says.rows} changes; "
                f"log and table have {found.start} to {found.end}, {found.records} and {found.rows}."
            )
            findings.add(DifferenceKind.INDEX, text, snapshot=snapshot, partition=partition, offset=found.start)


def check_register(seen: Inspection, findings: Findings) -> None:
    """Compare the register with the log, unless a writer is publishing at the moment."""
    if seen.through is not None:
        return
    if seen.moving:
        findings.note("the register is not compared, because a writer is publishing.")
        return
    for partition, (says, found) in enumerate(zip(seen.register, seen.maps, strict=True)):
        right = found.position()
        place = {"partition": partition, "offset": found.end}
        if says is not None and seen.is_other(says.snapshot, says.commit):
            text = f"the register says that commit {says.commit} is published. {RESTORED}"
            findings.add(DifferenceKind.HISTORY, text, snapshot=says.snapshot, **place)
        if says is None:
            if found.found or found.part or found.cut or (found.after and found.start > _begin(seen, partition)):
                text = "the register is lost; recovery reads it from the log's records instead."
                findings.add(DifferenceKind.REGISTER, text, **place)
        elif right is not None and says != right and (says.rows or right.rows):
            text = (
                f"the register says that snapshot {says.snapshot} ends at offset {says.end}, with {says.records} "
                f"records of {says.rows} changes; the log ends with snapshot {right.snapshot} at {right.end}, with "
                f"{right.records} and {right.rows}."
            )
            findings.add(DifferenceKind.REGISTER, text, **place)
        elif right is None and found.after and not found.cut and says.rows and says.end > found.end:
            text = (
                f"the register says that snapshot {says.snapshot} ends at offset {says.end}; the log has nothing after "
                f"snapshot {found.after}, which ends at {found.end}."
            )
            findings.add(DifferenceKind.REGISTER, text, **place)


def _begin(seen: Inspection, partition: int) -> int:
    """Return the offset at which the table's log began."""
    return seen.entries[0].ends[partition] if 0 in seen.entries else 0


def check_history(seen: Inspection, findings: Findings) -> None:
    """Compare the commits named in records with the table's."""
    for snapshot, partition, offset in seen.others():
        place = {"snapshot": snapshot, "partition": partition, "offset": offset}
        findings.add(DifferenceKind.HISTORY, f"the record belongs to another commit. {RESTORED}", **place)


def note_retention(seen: Inspection, findings: Findings) -> None:
    """Note what cannot be compared because retention has removed it from the log."""
    for partition, found in enumerate(seen.maps):
        if found.cut:
            findings.note(
                f"partition {partition}: the log begins at offset {found.scan.low}; retention has removed what was "
                f"before, so snapshots below {found.first} are not compared there."
            )


NAMED_MAX = 20
"""Maximum number of reported differences of one snapshot in one partition; the rest of it there is not compared."""


def verify(
    table: BoundLog, progress: Progress | None = None, after: Compared | None = None, through: int | None = None
) -> Report:
    """Return the differences of log and table, for every snapshot still in the log or for some; change nothing.

    Writers may run concurrently. If what was compared up to ``after`` is no longer there (the topic was recreated, the
    log ends before, the commit was replaced), everything is compared.

    1. Find each snapshot's offsets in the log's own records.
    2. Compare each snapshot's records with the changes in the table's files, partition by partition, a few megabytes
       at a time.
    3. Compare the index and the register with what step 1 found.

    Args:
        table: the log and its table.
        progress: called with the number of offsets read so far and the total.
        after: compare only what follows; None for everything.
        through: the last snapshot to compare; None for all, and for the end of the log and the register, too.

    Raises:
        UnavailableError: the broker or the file system does not answer.
        InvalidInputError: the broker rejects the client's options.
    """
    log = table.settings
    findings, meter = Findings(), ScanProgress(progress)
    try:
        # Step 1.
        ends = stable_ends(log.client, log.topic)
        if after is not None and not (
            after.snapshot <= table.files.latest()
            and has_kept_compared(table, after, topic_id(log.client, log.topic), ends)
        ):
            after = None
        seen = inspect_log(table, meter, after=after, through=through)
    except NotFoundError as error:
        return unusable_topic(table, str(error))
    if len(seen.maps) != log.partitions:
        return wrong_partitions(table, len(seen.maps))
    # Step 2.
    check_history(seen, findings)
    contents = Contents(table, seen, findings, meter)
    for partition in range(log.partitions):
        contents.check(partition)
    # Step 3.
    pending = check_index(table, seen, findings)
    contents.check_pending(pending)
    # A compaction or a change of the definition has no changes: its entry is written with the next publish.
    has_changes = any(seen.facts[snapshot].lost or any(seen.facts[snapshot].rows) for snapshot in pending)
    check_register(seen, findings)
    note_retention(seen, findings)
    note_topic(seen.entries, seen.topic_id, findings)
    return findings.report(
        table.path,
        pending=tuple(sorted(pending)) if has_changes else (),
        snapshots=len(contents.compared),
        records=sum(found.scan.records for found in seen.maps),
        rows=contents.rows,
        compared=_compared(seen, min(pending, default=seen.last + 1) - 1, ends),
        after=seen.after,
    )


def _compared(seen: Inspection, snapshot: int, now: Sequence[LogEnd]) -> Compared:
    """Return the position at which a comparison after ``snapshot`` starts."""
    epochs = tuple(end.epoch for end in now)
    ends = (found.end_before(snapshot + 1) for found in seen.maps)
    known = (found.start if end is None else end for found, end in zip(seen.maps, ends, strict=True))
    return Compared(snapshot, tuple(known), seen.commit(snapshot), seen.topic_id, epochs)


class _EnoughError(Exception):
    """The maximum number of differences is reached, so the rest of the snapshot is skipped."""


class _TableError(Exception):
    """A file of the table cannot be read; ``__cause__`` says which one."""


class Contents:
    """Compares the records of a log with the changes in its table's files."""

    def __init__(self, table: BoundLog, seen: Inspection, findings: Findings, meter: ScanProgress) -> None:
        """Compare the log as laid out in ``seen``, and add differences to ``findings``."""
        self._table = table
        self._log = table.settings
        self._seen = seen
        self._findings = findings
        self._meter = meter
        self._keys = list(table.spec.primary_key)
        self._compacted = self._log.compacted
        self.compared: set[int] = set()
        self.rows = 0

    def check(self, partition: int) -> None:
        """Compare one partition, from its first snapshot whose records are all still in the log to the log's end."""
        found, seen = self._seen.maps[partition], self._seen
        for offset, snapshot in (*found.early, *found.scan.foreign):
            text = f"the record names snapshot {snapshot}; the newest committed one is {seen.newest}."
            self._findings.add(DifferenceKind.EARLY, text, snapshot=snapshot, partition=partition, offset=offset)
        reader = LogReader(self._log, partition, found.start, found.scan.end, self._meter)
        for snapshot in range(found.first, seen.last + 1):
            place = found.found.get(snapshot)
            facts = seen.facts[snapshot]
            if facts.lost and place is not None:
                self._cannot_compare(snapshot, facts.lost, expired=facts.expired)
            elif place is not None:
                try:
                    changes = self._table.files.published(snapshot, self._log.partitions)
                except DataLostError as error:
                    self._cannot_compare(snapshot, str(error), expired=False)
                    continue
                self._compare(reader, changes, partition, (place.start, place.end))
                self.compared.add(snapshot)
            elif not facts.lost and facts.rows[partition]:
                self._absent(snapshot, partition, facts.rows[partition])
        # Records after the last complete snapshot are the beginning of the next one, or another producer's.
        if found.scan.end > found.end:
            part = found.part
            following = part.snapshot if part is not None else None
            known = following is not None and following in seen.facts and not seen.facts[following].lost
            changes_ = self._table.files.published(following, self._log.partitions) if following and known else None
            self._compare(reader, changes_, partition, (found.end, found.scan.end), part.rows if part else 0)

    def check_pending(self, pending: Iterable[int]) -> None:
        """Check that pending snapshots can be published, which requires that their files exist."""
        for snapshot in pending:
            facts = self._seen.facts[snapshot]
            if facts.lost:
                self._cannot_compare(snapshot, facts.lost, expired=facts.expired)
                continue
            try:
                missing = self._table.files.changes(snapshot, self._log.partitions).missing()
            except DataLostError as error:
                self._cannot_compare(snapshot, str(error), expired=False)
                continue
            for path in missing:
                why = f"{path}: a file of a snapshot that is not yet published is missing."
                self._cannot_compare(snapshot, why, expired=False)

    def _absent(self, snapshot: int, partition: int, rows: int) -> None:
        """Report that a partition lacks a snapshot, unless the snapshot is not yet published."""
        found = self._seen.maps[partition]
        if snapshot > found.last and not self._seen.claimed(snapshot, partition):
            return
        self._findings.add(
            DifferenceKind.MISSING,
            f"the snapshot is missing; the log has nothing of its {counted(rows, 'change')} here.",
            snapshot=snapshot,
            partition=partition,
            offset=found.end_before(snapshot),
        )

    def _compare(
        self,
        reader: LogReader,
        changes: ChangeSet | None,
        partition: int,
        offsets: tuple[int, int],
        limit: int | None = None,
    ) -> None:
        """Compare the records of a range with the changes of a snapshot, or with the first ``limit`` of them."""
        snapshot = None if changes is None else changes.snapshot.id
        named = 0

        def unreadable(offset: int, cause: str) -> None:
            nonlocal named
            named += 1
            place = {"snapshot": snapshot, "partition": partition, "offset": offset}
            self._findings.add(DifferenceKind.UNREADABLE, f"the record cannot be decoded: {cause}", **place)
            if named >= NAMED_MAX:
                raise _EnoughError

        # Each snapshot was published with the table's columns at that time.
        records = reader.decoded(*offsets, unreadable, None if changes is None else changes.schema)
        comparison = Comparison(records, self._changes(changes, partition, limit))
        try:
            for parted in comparison.parted(gaps=self._compacted):
                if parted.missing is not None and self._overtaken(partition, offsets[0]):
                    break
                named += self._name_differences(parted, snapshot, partition)
                if named >= NAMED_MAX:
                    raise _EnoughError
        except _EnoughError:
            text = f"{named} differences here; the rest of the range, up to offset {offsets[1]}, is not compared."
            self._findings.add(DifferenceKind.CHANGED, text, snapshot=snapshot, partition=partition)
        except _TableError as error:
            assert snapshot is not None
            self._cannot_compare(snapshot, str(error.__cause__), expired=False)
        self.rows += comparison.rows

    def _overtaken(self, partition: int, start: int) -> bool:
        """Return whether retention has removed records after ``start`` since the log was scanned; if so, add a note.

        Missing records may then have been removed by retention, so they are not reported as lost.
        """
        low = earliest_offsets(self._log.client, self._log.topic)[partition]
        if low > start:
            self._findings.note(
                f"partition {partition}: retention has removed records up to offset {low} while they were read; what "
                "was there is not compared."
            )
        return low > start

    def _changes(self, changes: ChangeSet | None, partition: int, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield a snapshot's changes as they must be in the log, at most ``limit`` rows."""
        if changes is None:
            return
        left = limit
        try:
            for batch in changes.batches(partition, 0):
                part = batch if left is None else batch.slice(0, left)
                left = None if left is None else left - part.num_rows
                yield self._log.traits.as_read(part, self._log.primary_key, self._log.changelog)
                if left == 0:
                    return
        except (DataLostError, CorruptedError, OSError) as error:
            raise _TableError from error

    def _name_differences(self, parted: Parted, snapshot: int | None, partition: int) -> int:
        """Report a place where log and table diverge, and return the number of differences."""
        place = {"snapshot": snapshot, "partition": partition}
        if parted.extra is not None and parted.missing is not None:
            key = self._key(parted.missing)
            text = f"the log has {shown(parted.extra[0])}, the table {shown(parted.missing)}."
            self._findings.add(DifferenceKind.CHANGED, text, **place, offset=parted.offset, key=key)
            return 1
        if parted.missing is not None:
            rows = parted.missing.num_rows
            text = f"the log lacks {counted(rows, 'change')} here; the first is {shown(parted.missing)}."
            self._findings.add(
                DifferenceKind.MISSING, text, **place, offset=parted.offset, key=self._key(parted.missing)
            )
            return 1
        assert parted.extra is not None
        batch, offsets = parted.extra
        found = self._seen.maps[partition]
        named = {offset for offset, _ in (*found.early, *found.scan.foreign)}
        count = 0
        for first in np.unique(offsets, return_index=True)[1].tolist():
            if int(offsets[first]) in named:
                continue
            row = batch.slice(first, 1)
            text = f"no change of the table belongs here; the log has {shown(row)}."
            self._findings.add(DifferenceKind.EXTRA, text, **place, offset=int(offsets[first]), key=self._key(row))
            count += 1
            if count >= NAMED_MAX:
                break
        return count

    def _key(self, batch: pa.RecordBatch) -> str:
        return shown(batch.select(self._keys) if self._keys else batch)

    def _cannot_compare(self, snapshot: int, why: str, *, expired: bool) -> None:
        # It may have expired since the comparison began.
        expired = expired or snapshot < self._table.files.oldest()
        if expired and snapshot < self._seen.oldest:
            self._findings.note(f"snapshots before {self._seen.oldest} have expired in the table and are not compared.")
        elif expired:
            self._findings.note(f"snapshot {snapshot} is not compared: {why}")
        elif not any(d.kind is DifferenceKind.FILES and d.snapshot == snapshot for d in self._findings.differences):
            self._findings.add(DifferenceKind.FILES, why, snapshot=snapshot)
