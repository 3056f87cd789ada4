"""The auditor: compares a log with its table by deltalake, pyarrow and a plain consumer; no reading code of ours."""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.harness.local_writes import Archive, Change, drain_raw

DELETE = 3
GOES = (1, DELETE)
OLDEST = "tablestore-oldest"
"""The application under whose name the commit table keeps which snapshot is the oldest."""
VALUES = ("v", "w")
"""Names of the column of values, before and after it was renamed."""
SETTLE_SECONDS = 5.0
"""The broker writes a transaction's marker into each partition a moment after it has answered the commit."""

Expected = list[list[tuple[int, Change]]]
"""For each partition its (snapshot, change), in order."""
Seen = list[list[tuple[int, list[Change]]]]
"""For each partition the offset and the changes of each record, in order."""


@dataclass
class Verdict:
    """How often each promise is broken.

    Attributes:
        lost: committed changes that the log lacks.
        doubled: changes that are there more often than committed.
        early: records that no snapshot holds.
        torn: snapshots of which a reader is given a part.
        order: partitions that are not in snapshot order.
        index: entries of the log index that are missing or wrong.
        table: batches that the table holds not once.
        illegal: changes of a normalized stream that cannot follow what it gave before.
        apart: keys on which an eventual log, or the normalized stream of it, folds to another row than the table's.
    """

    lost: int = 0
    doubled: int = 0
    early: int = 0
    torn: int = 0
    order: int = 0
    index: int = 0
    table: int = 0
    illegal: int = 0
    apart: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        """Add up."""
        return Verdict(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def clean(self) -> bool:
        """Whether nothing is broken."""
        return self == Verdict()


def committed(path: Path, partitions: int, *, key: bool, archive: Archive | None = None) -> Expected:
    """Read what the log must hold: the files that each Delta version added, in the order of their names and rows.

    What is in the archive is taken from there, as it may have expired; what is not is put there.
    """
    archive = {} if archive is None else archive
    folder = path / "_changes" if key else path
    newest = DeltaTable(folder).version()
    for version in range(1, newest + 1):
        if version not in archive:
            archive[version] = _committed_by(folder, version, partitions, key=key)
    return [[(v, c) for v in range(1, newest + 1) for p, c in archive[v] if p == part] for part in range(partitions)]


def _committed_by(folder: Path, version: int, partitions: int, *, key: bool) -> list[tuple[int, Change]]:
    """Read the changes of one version, each with its partition."""
    actions = list(map(json.loads, (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()))
    adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
    files = [(add["path"], add["partitionValues"].get("_bucket")) for add in sorted(adds, key=lambda a: a["path"])]
    told = [json.loads(a["commitInfo"].get("tablestore", "{}")) for a in actions if "commitInfo" in a]
    listed = told[0].get("changes") if told else None
    gone = {entry["path"] for entry in listed or () if entry.get("deleted")}
    if listed is not None:
        files = [(entry["path"], None) for entry in listed]
    found: list[tuple[int, Change]] = []
    for number, (name, bucket) in enumerate(files):
        partition = int(bucket) if key else (version + number) % partitions
        for row in pq.read_table(folder / name, partitioning=None).to_pylist():
            kind = DELETE if name in gone else row.get("_kind", 0)
            found.append((partition, (row["id"], _value(_value_in(row), kind, key=key))))
    return found


def oldest_of(path: Path, *, key: bool) -> int:
    """Read which snapshot is the oldest."""
    return DeltaTable(path / "_changes" if key else path).transaction_version(OLDEST) or 0


def _value_in(row: dict[str, Any]) -> Any:
    """Find the value of a row, whatever its column is called by then."""
    return next(row[name] for name in VALUES if name in row)


def _value(value: str, kind: int, *, key: bool) -> str | None:
    """Tell rows that go from rows that come: by nothing but a key, or by a sign."""
    if key:
        return None if kind == DELETE else value
    return f"-{value}" if kind in GOES else value


def audit(
    path: Path,
    servers: str,
    topic: str,
    partitions: int,
    *,
    key: bool,
    small: bool,
    complete: bool,
    archive: Archive | None = None,
) -> Verdict:
    """Compare the log and its index with the table.

    Args:
        path: the table.
        servers: the broker.
        topic: the log.
        partitions: the number of its partitions.
        key: the table has a primary key.
        small: each snapshot went out in one transaction, so also a plain consumer sees all of it or nothing.
        complete: everything committed has been published; else the log may end early.
        archive: changes of snapshots that may have expired.
    """
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        verdict = _compare(path, servers, topic, partitions, archive, key=key, small=small, complete=complete)
        if not (verdict.lost or verdict.torn) or time.monotonic() > until:
            return verdict
        time.sleep(0.05)


def _compare(
    path: Path,
    servers: str,
    topic: str,
    partitions: int,
    archive: Archive | None,
    *,
    key: bool,
    small: bool,
    complete: bool,
) -> Verdict:
    # The index and the log first: what they show must be committed when the table is read after them.
    index = read_index(path)
    records = drain_raw(servers, topic, partitions, settled=complete)
    expected = committed(path, partitions, key=key, archive=archive)
    seen = [[(r.offset(), changes_in(r, key=key)) for r in part] for part in records]
    return judge(index, seen, expected, small=small, complete=complete, oldest=oldest_of(path, key=key))


def judge(
    index: dict[int, Any], seen: Seen, expected: Expected, *, small: bool, complete: bool, oldest: int = 0
) -> Verdict:
    """Compare what the index says and the log shows with what is committed; see ``audit``.

    Of snapshots before ``oldest`` the index may have entries or not, but no gap.
    """
    verdict = Verdict()
    lengths = []
    for part, want in zip(seen, expected, strict=True):
        have, wanted = [change for _, changes in part for change in changes], [change for _, change in want]
        lengths.append(len(have))
        missing, extra = Counter(wanted), Counter(have)
        missing.subtract(have)
        extra.subtract(wanted)
        known = set(wanted)
        verdict.lost += sum((+missing).values()) if complete else 0
        verdict.doubled += sum(n for change, n in (+extra).items() if change in known)
        verdict.early += sum(n for change, n in (+extra).items() if change not in known)
        verdict.order += have != wanted[: len(have)]
    newest = max((s for want in expected for s, _ in want), default=0)
    ends = [_ends([s for s, _ in want], newest) for want in expected]
    for snapshot in range(1, newest + 1):
        whole = [end[snapshot] <= n for end, n in zip(ends, lengths, strict=True)]
        started = [end[snapshot - 1] < min(n, end[snapshot]) for end, n in zip(ends, lengths, strict=True)]
        if (small or snapshot in index) and any(started) and not all(whole):
            verdict.torn += 1
    verdict.index = _wrong_entries(index, expected, seen)
    if complete:
        verdict.index += len(set(range(min(index, default=oldest), newest + 1)) - index.keys())
        verdict.index += max(0, min(index, default=oldest) - oldest)
    return verdict


def _ends(snapshots: list[int], newest: int) -> list[int]:
    """Count, for each snapshot, the changes up to its end."""
    return [bisect_right(snapshots, snapshot) for snapshot in range(newest + 1)]


def read_index(path: Path) -> dict[int, Any]:
    """Read the log index as the JSON files that it is."""
    return {int(p.stem): json.loads(p.read_text()) for p in (path / "_log").glob("*.json")}


def _wrong_entries(index: dict[int, Any], expected: Expected, seen: Seen) -> int:
    """Count entries that do not name exactly the offsets of their snapshot's records."""
    wrong = 0
    offsets = [[offset for offset, _ in part] for part in seen]
    snapshots = [[s for s, _ in want] for want in expected]
    for snapshot, entry in index.items():
        for partition, told in enumerate(entry["partitions"]):
            first, last = (bisect_left(offsets[partition], told[name]) for name in ("start", "end"))
            changes = [change for _, held in seen[partition][first:last] for change in held]
            begin, end = (side(snapshots[partition], snapshot) for side in (bisect_left, bisect_right))
            wanted = [change for _, change in expected[partition][begin:end]]
            after = index.get(snapshot + 1)
            joined = after is None or after["partitions"][partition]["start"] == told["end"]
            wrong += changes != wanted or told["records"] != last - first or told["rows"] != len(wanted) or not joined
    return wrong


def changes_in(record: Any, *, key: bool) -> list[Change]:
    """Read the changes of a record, JSON or Arrow, with or without a key."""
    text = record.value()
    if record.key() is not None:
        return [(json.loads(record.key())["id"], None if text is None else _value_in(json.loads(text)))]
    if text[:1] == b"{":
        row = json.loads(text)
        return [(row["id"], _value_in(row))]
    rows = pa.ipc.open_stream(text).read_all().to_pylist()
    return [(row["id"], _value(_value_in(row), row["_kind"], key=key)) for row in rows]
