"""A Delta writer that checks whether a version exists and then writes it: what it replaces is noticed."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from snapshot.delta.entries import entry_of
from snapshot.errors import DataLostError
from snapshot.storage import Storage
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.write.writer import Writer
from tests.harness.local_writes import run_here, write
from tests.snapshot.test_commit_outcome import content, double, filled

FOREIGN = json.dumps({"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}).encode()


def overwritten(real: Any, storage: Storage, name: str, data: bytes, *folder: Any) -> bool:
    """Put a version; the other writer, which has seen that there is none, puts its own after it."""
    assert real(storage, name, data, *folder)
    storage.put(name, FOREIGN)
    return True


@pytest.mark.parametrize("key", [False, True], ids=["append", "key"])
def test_a_write_whose_commit_is_replaced_is_not_acknowledged(tmp_path: Path, key: bool) -> None:
    table, writer = filled(tmp_path / "t", key)
    before = content(table.path)
    with double("put_new", overwritten), pytest.raises(DataLostError, match=r"version 4, .*\(SET TBLPROPERTIES\)"):
        write(writer, [(50, "new")])
    assert content(table.path) == before
    # The process knows that it is gone; it is not told again.
    assert write(Writer(TableContext.open(table.path), None), [(50, "new")]) is not None
    assert content(table.path) == [*before, (50, "new")]


@pytest.mark.parametrize("others", [0, 2])
def test_the_next_commit_of_a_process_finds_out_that_its_last_one_was_replaced(tmp_path: Path, others: int) -> None:
    table, writer = filled(tmp_path / "t", False)
    assert write(writer, [(50, "gone")]).id == 4
    table.files.log.storage.put(entry_of(4), FOREIGN)
    for number in range(others):
        write(Writer(TableContext.open(table.path), None), [(60 + number, "other")])
    files = set(tmp_path.rglob("*.parquet"))
    with pytest.raises(DataLostError, match=r"version 4, which this process committed \(append\), was replaced"):
        write(writer, [(51, "new")])
    assert set(tmp_path.rglob("*.parquet")) == files
    assert write(writer, [(51, "new")]).id == 5 + others
    assert (50, "gone") not in content(table.path)


@pytest.mark.parametrize("key", [False, True], ids=["append", "key"])
def test_the_next_commit_of_a_process_finds_out_that_an_old_copy_of_the_table_was_restored(
    tmp_path: Path, key: bool
) -> None:
    table, writer = filled(tmp_path / "t", key)
    before = content(table.path)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    assert write(writer, [(50, "gone")]).id == 4
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    files = set((tmp_path / "t").rglob("*.parquet"))
    with pytest.raises(DataLostError, match=r"version 4, which this process committed \(.*\), is gone.* was set back"):
        write(writer, [(51, "new")])
    with pytest.raises(DataLostError, match="open the table again"):
        write(writer, [(51, "new")])
    assert set((tmp_path / "t").rglob("*.parquet")) == files
    writer = Writer(TableContext.open(table.path), None)
    assert write(writer, [(51, "new")]).id == 4
    assert content(table.path) == [*before, (51, "new")]
    assert write(writer, [(52, "new")]).id == 5


def test_a_compaction_whose_commit_is_replaced_drops_no_change(tmp_path: Path) -> None:
    table, writer = filled(tmp_path / "t", True)
    before = content(table.path)
    with double("put_new", overwritten):
        compact(table, run_here)
    assert content(table.path) == before
    write(writer, [(50, "new")])
    assert compact(TableContext.open(table.path), run_here) is not None
    assert content(table.path) == [*before, (50, "new")]


def test_rows_that_a_replaced_compaction_had_merged_stay_in_the_table(tmp_path: Path) -> None:
    table, writer = filled(tmp_path / "t", True)
    before = content(table.path)
    assert compact(table, run_here).id == 4
    write(writer, [(50, "new"), (1, None)])
    table.files.storage.put(entry_of(1), FOREIGN)
    after = sorted({*before, (50, "new")} - {(1, "v1")})
    assert content(table.path) == after
    table = TableContext.open(table.path)
    assert expire(table, rules_of(table, timedelta(0), 1)).oldest == 5
    assert content(table.path) == after
    assert compact(TableContext.open(table.path), run_here) is not None
    assert content(table.path) == after
    assert not TableContext.open(table.path).files.layout(7).changes
