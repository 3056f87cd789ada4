"""Readers that pause while what they read is compacted and expires: all rows, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from snapshot.errors import DataLostError
from tablestore import LocalTable, open_local
from tablestore.local import tail

ROWS = 150_000
"""More than a reader takes from a file at once."""


def expire(table: LocalTable) -> None:
    """Let all snapshots but the newest expire, as another process does."""
    other = open_local(table.path)
    other.compact()
    other.maintenance.expire(older_than="0 s", keep_last=1)


@pytest.mark.parametrize("log", [False, True], ids=["files", "kafka"])
def test_changes_that_expire_between_two_snapshots_are_lost_data(
    make: Callable[..., LocalTable], monkeypatch: pytest.MonkeyPatch, log: bool
) -> None:
    monkeypatch.setattr(tail, "_TOGETHER_ROWS", 1)
    table = make("id int", primary_key=["id"], log=log)
    for n in range(3):
        table.write([{"id": n}])
    readers = [table.changes(0), table.tail(scan_mode="earliest"), table.tail(scan_mode="earliest", follow=False)]
    assert [next(reader).num_rows for reader in readers] == [1, 1, 1]
    expire(table)
    for reader in readers:
        with pytest.raises(DataLostError, match=r"snapshot 2 is no longer .* has expired; .*scan_mode='full'"):
            next(reader)


def test_changes_whose_files_expire_within_a_snapshot_are_lost_data(make: Callable[..., LocalTable]) -> None:
    table = make("id int", primary_key=["id"])
    table.write([{"id": n} for n in range(ROWS)])
    reader = table.changes(0)
    next(reader)
    expire(table)
    with pytest.raises(DataLostError, match="If the snapshot has expired since this read started, begin with a newer"):
        list(reader)


def test_a_scan_gives_all_rows_or_says_that_its_snapshot_has_expired(make: Callable[..., LocalTable]) -> None:
    table = make("id int", primary_key=["id"], bucket=8)
    table.write([{"id": n} for n in range(ROWS)])
    reader = iter(table.scan())
    found = next(reader).num_rows
    expire(table)
    try:
        found += sum(batch.num_rows for batch in reader)
    except DataLostError as error:
        assert "the snapshot has expired since this read started" in str(error)  # noqa: PT017 - or it does not fail
    else:
        assert found == ROWS
