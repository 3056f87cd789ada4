"""Compares the index and the register with what the log was found to hold."""

from __future__ import annotations

import time

from log_system.index import IndexEntry
from log_system.kafka.log import KafkaLog
from tablestore.inspect_log import Inspection, read_index
from tablestore.opened import OpenedTable
from tablestore.report import RESTORED, Findings, Kind

_SETTLE_SECONDS = 1.0


def check_index(table: OpenedTable, log: KafkaLog, seen: Inspection, findings: Findings) -> set[int]:
    """Compare the index with the log; give the snapshots that are not published yet."""
    pending: set[int] = set()
    last = max((*seen.entries, *seen.broken, 0))
    oldest = min((*seen.entries, *seen.broken, 1))
    for snapshot, why in seen.broken.items():
        findings.add(Kind.INDEX, f"{why}.", snapshot=snapshot)
    absent: list[int] = []
    for snapshot in range(max(1, seen.oldest), max(seen.newest, last) + 1):
        entry = seen.entries.get(snapshot)
        if snapshot in seen.broken:
            continue
        if snapshot > seen.newest:
            if entry is not None:
                text = f"the index lists it, and it is not committed; the newest snapshot is {seen.newest}."
                findings.add(Kind.INDEX, text, snapshot=snapshot)
        elif entry is not None:
            _check_entry(seen, snapshot, entry, findings)
        elif snapshot > oldest or any(snapshot >= found.first for found in seen.maps):
            rows = seen.facts[snapshot].rows
            in_log = any(rows) and all(seen.holds(snapshot, p) for p in range(log.partitions))
            if snapshot < last or in_log:
                absent.append(snapshot)
            else:
                pending.add(snapshot)
    _check_absent(table, log, absent, findings, at_end=last)
    if 0 not in seen.entries and 0 not in seen.broken and oldest == 1 and not seen.oldest:
        findings.add(Kind.INDEX, "the entry of the empty table, snapshot 0, is missing.", snapshot=0)
    return pending


def _check_absent(table: OpenedTable, log: KafkaLog, absent: list[int], findings: Findings, *, at_end: int) -> None:
    """Tell of entries that are missing, unless a writer, who publishes first, has put them by now."""
    if any(snapshot > at_end for snapshot in absent):
        time.sleep(_SETTLE_SECONDS)
    now = read_index(table.index, log.partitions)[0] if absent else {}
    for snapshot in absent:
        if snapshot not in now:
            text = "the log holds the snapshot and the index does not list it, so our readers do not see it."
            findings.add(Kind.INDEX, text, snapshot=snapshot)


def _check_entry(seen: Inspection, snapshot: int, entry: IndexEntry, findings: Findings) -> None:
    right = seen.entry(snapshot)
    assert right is not None
    if seen.is_other(snapshot, entry.commit):
        findings.add(Kind.HISTORY, f"the index lists commit {entry.commit}. {RESTORED}", snapshot=snapshot)
    if (entry.timestamp_ms, entry.kind) != (right.timestamp_ms, right.kind):
        text = (
            f"the entry says {entry.kind!r} at {entry.timestamp_ms} ms, the table {right.kind!r} at "
            f"{right.timestamp_ms} ms."
        )
        findings.add(Kind.INDEX, text, snapshot=snapshot)
    for partition, (says, found) in enumerate(zip(entry.partitions, right.partitions, strict=True)):
        if says != found and (seen.holds(snapshot, partition) or says.rows != found.rows):
            text = (
                f"the entry says offsets {says.start} to {says.end}, {says.records} records of {says.rows} changes; "
                f"log and table have {found.start} to {found.end}, {found.records} and {found.rows}."
            )
            findings.add(Kind.INDEX, text, snapshot=snapshot, partition=partition, offset=found.start)


def check_register(seen: Inspection, findings: Findings) -> None:
    """Compare the register with the log, unless somebody is publishing."""
    if seen.moving:
        findings.note("the register is not compared: somebody is publishing.")
        return
    for partition, (says, found) in enumerate(zip(seen.register, seen.maps, strict=True)):
        right = found.position()
        place = {"partition": partition, "offset": found.end}
        if says is not None and seen.is_other(says.snapshot, says.commit):
            text = f"the register says that commit {says.commit} is published. {RESTORED}"
            findings.add(Kind.HISTORY, text, snapshot=says.snapshot, **place)
        if says is None:
            if found.found or found.part or found.cut:
                text = "the register is lost; recovery reads it from the log's records instead."
                findings.add(Kind.REGISTER, text, **place)
        elif right is not None and says != right and (says.rows or right.rows):
            text = (
                f"the register says that snapshot {says.snapshot} ends at offset {says.end}, with {says.records} "
                f"records of {says.rows} changes; the log ends with snapshot {right.snapshot} at {right.end}, with "
                f"{right.records} and {right.rows}."
            )
            findings.add(Kind.REGISTER, text, **place)


def check_history(seen: Inspection, findings: Findings) -> None:
    """Compare the commits that records name with the table's."""
    for snapshot, partition, offset in seen.others():
        place = {"snapshot": snapshot, "partition": partition, "offset": offset}
        findings.add(Kind.HISTORY, f"the record is of another commit. {RESTORED}", **place)


def note_retention(seen: Inspection, findings: Findings) -> None:
    """Say what cannot be compared since it has left the log."""
    for partition, found in enumerate(seen.maps):
        if found.cut:
            findings.note(
                f"partition {partition}: the log begins at offset {found.scan.low}; retention has removed what was "
                f"before, so snapshots below {found.first} are not compared there."
            )
