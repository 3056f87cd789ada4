"""A checkpoint stays with its table, although delta-rs writes it by path."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from threading import Thread

import pytest
import s3fs
from deltalake import DeltaTable

from snapshot.storage import Storage
from tablestore import create_local, open_local
from tablestore.ddl import create_drop
from tests.harness.faults import failing, preceded

DDL = "id bigint, v string"
OPTIONS = {"compaction.auto": False}
NEW = [{"id": 7, "v": "new"}]


def replace(path: str) -> None:
    """Drop the table, and create another one with one row."""
    create_drop.drop_at(path)
    create_local(path, DDL).write(NEW)


def test_a_table_is_not_dropped_while_its_checkpoint_is_being_written(tmp_path: Path) -> None:
    """Readers would take the next table for the dropped one."""
    path = str(tmp_path / "t")
    table = create_local(path, DDL, options=OPTIONS)

    replacing = Thread(target=replace, args=(path,))

    def begin() -> None:
        replacing.start()
        replacing.join(0.5)
        assert replacing.is_alive(), "the drop does not wait for the checkpoint"

    with preceded(DeltaTable, "create_checkpoint", begin):
        for number in range(20):
            table.write([{"id": number, "v": "a"}])
    replacing.join()
    assert open_local(path).to_arrow().to_pylist() == NEW
    assert not list(tmp_path.rglob("*checkpoint*"))


def test_no_checkpoint_is_written_once_the_table_is_dropped(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = create_local(path, DDL, options=OPTIONS)

    for number in range(19):
        table.write([{"id": number, "v": "a"}])
    with preceded(Storage, "locked", lambda: replace(path)):
        table.write([{"id": 19, "v": "a"}])
    assert open_local(path).to_arrow().to_pylist() == NEW
    assert not list(tmp_path.rglob("*checkpoint*"))


def test_a_file_system_that_locks_no_folders_is_written_without_locks(tmp_path: Path) -> None:
    refusing = failing(fcntl, "flock", OSError(errno.EBADF, os.strerror(errno.EBADF)), hits=range(1, 1_000))
    with refusing as tries:
        table = create_local(tmp_path / "t", DDL, options=OPTIONS)
        for number in range(20):
            table.write([{"id": number, "v": "a"}])
        assert len(list(tmp_path.rglob("*checkpoint*"))) == 2
        create_drop.drop_at(str(tmp_path / "t"))
        assert tries() >= 3
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("late", ["both files", "the name of the newest alone"])
@pytest.mark.parametrize("again", [False, True], ids=["dropped", "created again"])
def test_a_checkpoint_of_a_dropped_table_is_not_left_in_an_object_store(
    lake: str, monkeypatch: pytest.MonkeyPatch, again: bool, late: str
) -> None:
    """With a file there, no table could be created, and none read that is there already."""
    path, real, store = f"{lake}/t", DeltaTable.create_checkpoint, s3fs.S3FileSystem(use_listings_cache=False)
    table = create_local(path, DDL, options=OPTIONS)

    def create_checkpoint(delta: DeltaTable) -> None:
        real(delta)
        made = {file: store.cat_file(file) for file in store.find(path) if "checkpoint" in file}
        assert len(made) == 2
        create_drop.drop_at(path)
        if again:
            create_local(path, DDL).write(NEW)
        for file, content in made.items():
            if late == "both files" or file.endswith("_last_checkpoint"):
                store.pipe_file(file, content)

    monkeypatch.setattr(DeltaTable, "create_checkpoint", create_checkpoint)
    for number in range(20):
        table.write([{"id": number, "v": "a"}])
    if not again:
        assert store.find(path) == []
        create_local(path, DDL).write(NEW)
    assert open_local(path).to_arrow().to_pylist() == NEW
    assert DeltaTable(path).version() == 1
    assert not [file for file in store.find(path) if "checkpoint" in file]
