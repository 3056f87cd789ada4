"""Checks of a whole table of ``(id, v)`` with deltalake, pyarrow and a plain consumer: the auditors of the tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tablestore.context import TableContext
from tests.harness.local_writes import TRUNCATED, Archive, Change, committed_changes, drain, fold_into, rows_of


def assert_log_is_prefix(path: Path, servers: str, topic: str, partitions: int, archive: Archive | None = None) -> None:
    """Nothing early: whatever the log shows is committed, in order, without repeats."""
    expected = committed_changes(path, partitions, archive)
    for seen, wanted in zip(drain(servers, topic, partitions, settled=False), expected, strict=True):
        assert seen == [change for _, change in wanted][: len(seen)]


def audit(path: Path, servers: str, topic: str, partitions: int) -> None:
    """Nothing lost, doubled, early or out of order, by strangers alone: none of our code reads either side.

    A plain ``read_committed`` consumer and the ``json`` module read the log; deltalake and pyarrow read the table.
    """
    expected = committed_changes(path, partitions)
    assert drain(servers, topic, partitions) == [[change for _, change in partition] for partition in expected]


def assert_log_is_table(
    path: Path,
    servers: str,
    topic: str,
    partitions: int,
    *,
    reads_max: int | None = None,
    archive: Archive | None = None,
) -> None:
    """Nothing lost, doubled or out of order; every fold of the log is its snapshot; the index says where each is.

    With ``reads_max``, no more than so many snapshots, spread evenly, are read and compared with the fold: without
    compaction, reading one takes as long as there are snapshots before it.
    """
    expected = committed_changes(path, partitions, archive)
    assert drain(servers, topic, partitions) == [[change for _, change in partition] for partition in expected]
    table = TableContext.open(str(path))
    newest, oldest = table.files.latest(), table.files.oldest()
    step = 1 if reads_max is None else max(1, newest // reads_max)
    folded: dict[int, str] = {}
    by_snapshot = _by_snapshot(expected)
    for snapshot in range(newest + 1):
        fold_into(folded, by_snapshot.get(snapshot, []))
        if (newest - snapshot) % step == 0 and snapshot >= oldest:
            assert rows_of(table, snapshot) == folded
    assert_index_is_true(path, partitions, archive)


def assert_index_is_true(path: Path, partitions: int, archive: Archive | None = None) -> None:
    """Every entry of the index counts its snapshot's changes, and follows the one before without gap or overlap.

    Entries of snapshots that have expired count no more: a publisher that was asleep may have written one again.
    """
    counts = [Counter(s for s, _ in partition) for partition in committed_changes(path, partitions, archive)]
    table = TableContext.open(str(path))
    index, oldest = table.index, table.files.oldest()
    first, *others = [snapshot for snapshot in index.snapshots() if snapshot >= oldest - 1]
    before = index.get(first)
    assert before is not None
    assert before.snapshot <= oldest
    for snapshot in others:
        entry = index.get(snapshot)
        assert entry is not None
        assert entry.snapshot == before.snapshot + 1
        assert [p.rows for p in entry.partitions] == [count[snapshot] for count in counts]
        assert [p.start for p in entry.partitions] == list(before.ends)
        before = entry


def _by_snapshot(expected: list[list[tuple[int, Change]]]) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = {}
    for partition in expected:
        for snapshot, change in partition:
            held = found.setdefault(snapshot, [])
            # What one partition says of its rows says nothing of another's.
            held.insert(0, change) if change == TRUNCATED else held.append(change)
    return found
