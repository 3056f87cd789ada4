"""Checks of a whole table of ``(id, v)`` with deltalake, pyarrow and a plain consumer: the auditors of the tests."""

from __future__ import annotations

from pathlib import Path

from tablestore.opened import OpenedTable
from tests.parts import committed_changes, drain, fold, rows_of


def assert_log_is_prefix(path: Path, servers: str, topic: str, partitions: int) -> None:
    """Nothing early: whatever the log shows is committed, in order, without repeats."""
    expected = committed_changes(path, partitions)
    for seen, wanted in zip(drain(servers, topic, partitions), expected, strict=True):
        assert seen == [change for _, change in wanted][: len(seen)]


def audit(path: Path, servers: str, topic: str, partitions: int) -> None:
    """Nothing lost, doubled, early or out of order, by strangers alone: none of our code reads either side.

    A plain ``read_committed`` consumer and the ``json`` module read the log; deltalake and pyarrow read the table.
    """
    expected = committed_changes(path, partitions)
    assert drain(servers, topic, partitions) == [[change for _, change in partition] for partition in expected]


def assert_log_is_table(path: Path, servers: str, topic: str, partitions: int) -> None:
    """Nothing lost, doubled or out of order; every fold of the log is its snapshot; the index says where each is."""
    expected = committed_changes(path, partitions)
    assert drain(servers, topic, partitions) == [[change for _, change in partition] for partition in expected]
    table = OpenedTable.open(str(path))
    for snapshot in range(table.files.latest() + 1):
        upto = [change for partition in expected for s, change in partition if s <= snapshot]
        assert rows_of(table, snapshot) == fold(upto)
    assert_index_is_true(path, partitions)


def assert_index_is_true(path: Path, partitions: int) -> None:
    """Every entry of the index counts its snapshot's changes, and follows the one before without gap or overlap."""
    expected = committed_changes(path, partitions)
    index = OpenedTable.open(str(path)).index
    before = index.get(0)
    assert before is not None
    for snapshot in index.snapshots()[1:]:
        entry = index.get(snapshot)
        assert entry is not None
        assert entry.snapshot == before.snapshot + 1
        assert [p.rows for p in entry.partitions] == [sum(s == snapshot for s, _ in p) for p in expected]
        assert [p.start for p in entry.partitions] == list(before.ends)
        before = entry
