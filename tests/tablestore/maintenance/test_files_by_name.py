"""Files whose names two tables may have: those of a table that is created again stay as they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from log_system.index import IndexEntry, OffsetRange
from snapshot.delta.log import DeltaLog
from snapshot.errors import DataLostError, NotFoundError, TableReplacedError, UnavailableError
from snapshot.storage import Storage
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.maintenance import remove_orphans
from tablestore.maintenance.change_tags import delete_tag
from tablestore.maintenance.minor_compaction import combine
from tablestore.streaming.change_feed import Position
from tablestore.streaming.consumers import ConsumerProgress, reset_consumer
from tests.harness.faults import failing, preceded
from tests.harness.local_writes import run_here

WRITES = 6
ENTRY = IndexEntry(3, 0, "upsert", (OffsetRange(0, 3, 3, 3),))


def make(path: Path, writes: int, *, key: bool = True, **options: Any) -> None:
    keys, given = ["id"] if key else [], {"bucket": 1, "compaction.auto": False, **options}
    with create_local(path, "id BIGINT NOT NULL, v BIGINT", primary_key=keys, options=given) as table:
        for number in range(writes):
            table.write([{"id": number, "v": number}, {"id": -number, "v": number}])
        table.tags.create("kept", 2)
    context = TableContext.open(str(path))
    context.index.put(ENTRY)
    ConsumerProgress(context, "reader").read(Position(writes - 1))


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def expire_all(table: TableContext) -> None:
    open_local(table.path).maintenance.expire(keep_last=1, older_than="0 s")


ACTS: dict[str, tuple[Callable[[TableContext], object], str]] = {
    "an entry of the index": (lambda table: table.index.put(ENTRY), "put"),
    "an entry that stays": (lambda table: table.index.put(ENTRY, replaces=False), "put_new"),
    "removed entries": (lambda table: table.index.delete([ENTRY.snapshot]), "delete"),
    "a consumer": (lambda table: ConsumerProgress(table, "reader").read(Position(WRITES)), "put"),
    "a new consumer": (lambda table: ConsumerProgress(table, "late").begin(Position(WRITES)), "put"),
    "a consumer set back": (lambda table: reset_consumer(table, "reader", 3), "put"),
    "a removed consumer": (lambda table: reset_consumer(table, "reader", None), "delete"),
    "a stale consumer": (expire_all, "delete"),
    "an announced expiry": (expire_all, "put"),
    "a tag": (lambda table: delete_tag(table, "kept"), "delete"),
}


@pytest.mark.parametrize("again", [True, False], ids=["again", "gone"])
@pytest.mark.parametrize("name", ACTS)
def test_what_slept_before_it_touched_a_file_leaves_a_table_created_again_alone(
    tmp_path: Path, name: str, again: bool
) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    stale = {"consumer.expiration-time": "1 ms"} if name == "a stale consumer" else {}
    make(path, WRITES, **stale)
    make(other, WRITES + 2, **stale)
    for consumer in tmp_path.glob("*/_consumers/*"):
        os.utime(consumer, (0, 0))
    act, call = ACTS[name]

    def replace() -> None:
        shutil.rmtree(path)
        if again:
            shutil.copytree(other, path)

    table = TableContext.open(str(path))
    # The clock of the file system is asked by a file of its own.
    at = 2 if name == "an announced expiry" else 1
    with preceded(Storage, call, replace, at=at) as happened, suppress(NotFoundError, TableReplacedError):
        act(table)
    assert happened()
    left = {file: content for file, content in (contents(path) if path.exists() else {}).items() if content}
    assert left == (contents(other) if again else {})


def test_a_tag_whose_files_cannot_be_removed_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    make(path, WRITES)
    table = TableContext.open(str(path))
    reset_consumer(table, "reader", None)
    open_local(path).compact()
    open_local(path).maintenance.expire(keep_last=1, older_than="0 s")
    files = set(path.rglob("*.parquet"))
    with failing(Storage, "delete", UnavailableError("no answer"), hits=range(2, 10)):
        delete_tag(table, "kept")
    assert "tag 'kept': the write is done; removing its files" in caplog.text
    assert table.files.tags.all() == []
    assert set(path.rglob("*.parquet")) == files
    assert open_local(path).maintenance.expire(keep_last=1, older_than="0 s").data_files == 2


def combine_all(table: Any) -> object:
    context = TableContext.open(table.path)
    layout = context.files.layout(context.files.latest())
    return combine(context, layout, layout.changes, run_here)


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("name", ["write", "delete", "update", "overwrite", "rollback", "compact", "combine"])
def test_what_slept_until_its_files_were_orphans_commits_nothing(tmp_path: Path, name: str, key: bool) -> None:
    path = tmp_path / "t"
    make(path, WRITES, key=key)
    acts: dict[str, Callable[[Any], object]] = {
        "write": lambda table: table.write([{"id": 9, "v": 9}]),
        "delete": lambda table: table.delete("id > 2"),
        "update": lambda table: table.update("id > 2", {"v": "v + 1"}),
        "overwrite": lambda table: table.overwrite([{"id": 9, "v": 9}]),
        "rollback": lambda table: table.maintenance.rollback(3),
        "compact": lambda table: table.compact(),
        "combine": combine_all if key else lambda table: table.compact(),
    }

    def a_day_passes() -> None:
        for file in path.rglob("*.parquet"):
            os.utime(file, (0, 0))
        open_local(path).maintenance.remove_orphans()

    if name == "rollback":
        open_local(path).delete("id = 1")
    before = sorted(row["id"] for row in open_local(path).to_arrow().to_pylist())
    gone = pytest.raises(DataLostError, match=r"of this commit, such as .* are gone.*Nothing was committed")
    with open_local(path) as table:
        newest = table.snapshots()[0].id
        with preceded(DeltaLog, "commit", a_day_passes), gone:
            acts[name](table)
        assert table.snapshots()[0].id == newest
        assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == before
        acts[name](table)
        assert remove_orphans.remove_orphans(TableContext.open(str(path))).files == ()
