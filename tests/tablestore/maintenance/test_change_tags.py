"""Tags are created beside expiries, and by creators that are killed: a tag that exists has all its files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import InvalidInputError, NotFoundError, UnavailableError
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import Tags
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.maintenance.change_tags import make_tag
from tests.harness.faults import failing, preceded

SCHEMA = "id BIGINT NOT NULL"


def test_two_tags_made_while_their_snapshot_expires_do_not_vouch_for_each_other(tmp_path: Path) -> None:
    path = table_without_log(tmp_path)
    waiting: list[Any] = []
    hold = Tags.hold

    def hold_both_too_late(self: Tags, name: str, tag: Any) -> None:
        if not waiting:
            waiting.append((name, tag))
            with pytest.raises(NotFoundError, match="snapshot 3 has just expired"):
                make_tag(TableContext.open(path), "second", 3)
            return
        open_local(path).maintenance.expire(keep_last=1, older_than="0 s")
        hold(self, *waiting[0])
        hold(self, name, tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "hold", hold_both_too_late)
        with pytest.raises(NotFoundError, match="snapshot 3 has just expired"):
            make_tag(TableContext.open(path), "first", 3)
    assert TableContext.open(path).files.tags.keeping() == []


def test_a_tag_that_looks_like_a_time_is_refused_with_the_reason(tmp_path: Path) -> None:
    table = open_local(table_without_log(tmp_path))
    with pytest.raises(InvalidInputError, match=r"tag '2024-01-31': expected a letter or '_' \(a digit begins a snap"):
        table.tags.create("2024-01-31")


def test_a_tag_of_the_same_name_that_is_created_meanwhile_does_not_expire(tmp_path: Path) -> None:
    table = open_local(table_without_log(tmp_path))
    for name in ("again", "gone", "over"):
        table.tags.create(name, 1, retained="1 ms")
    # The clock of a file system may not move between two calls.
    for file in (Path(table.path) / "_tags").iterdir():
        os.utime(file, (0, 0))

    def act() -> None:
        for name in ("again", "gone"):
            table.tags.delete(name)
        table.tags.create("again", 2)

    with preceded(Tags, "written_ms", act) as happened:
        assert table.tags.expire() == ["over"]
    assert happened()
    assert [(tag.name, tag.snapshot.id) for tag in table.tags.all()] == [("again", 2)]


def test_a_tag_whose_creator_was_killed_keeps_files_until_orphans_are_removed(tmp_path: Path) -> None:
    path = table_without_log(tmp_path)
    table = open_local(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "put", kill)
        patch.setattr(Tags, "release", kill)
        with pytest.raises(KeyboardInterrupt):
            make_tag(TableContext.open(path), "monthly", 3)
    table.maintenance.expire(keep_last=1, older_than="0 s")
    files = TableContext.open(path).files
    (kept,) = files.tags.keeping()
    assert files.tags.all() == []
    assert all((Path(path) / file.path).exists() for file in kept.layout.base)
    assert table.maintenance.remove_orphans(dry_run=True).files == ()
    for left in (Path(path) / "_tags").iterdir():
        os.utime(left, (0, 0))
    assert len(table.maintenance.remove_orphans().files) == 1
    assert files.tags.keeping() == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "call", "hit"),
    [(Storage, "put", 1), (TableFiles, "oldest", 3), (Storage, "put_new", 1), (Tags, "has_hold", 1)],
)
def test_ctrl_c_leaves_neither_tag_nor_hold(tmp_path: Path, owner: Any, call: str, hit: int, *, after: bool) -> None:
    path = table_without_log(tmp_path)
    with failing(owner, call, KeyboardInterrupt(), after=after, hits=range(hit, hit + 1)) as calls:
        with pytest.raises(KeyboardInterrupt):
            make_tag(TableContext.open(path), "monthly", 3)
        assert calls() == hit
    assert list((Path(path) / "_tags").glob("*")) == []
    assert make_tag(TableContext.open(path), "monthly", 3).snapshot.id == 3


def test_a_full_disk_leaves_neither_tag_nor_hold(tmp_path: Path) -> None:
    path, full = table_without_log(tmp_path), OSError(errno.ENOSPC, "No space left on device")
    with (
        failing(os, "link", full),
        pytest.raises(UnavailableError, match=r"monthly\.json: cannot be written.*Make room"),
    ):
        make_tag(TableContext.open(path), "monthly", 3)
    assert list((Path(path) / "_tags").iterdir()) == []


def test_a_file_system_that_fails_before_the_tag_leaves_no_hold(tmp_path: Path) -> None:
    path = table_without_log(tmp_path)
    down = UnavailableError("no answer")
    with failing(TableFiles, "oldest", down, hits=range(3, 4)), pytest.raises(UnavailableError):
        make_tag(TableContext.open(path), "monthly", 3)
    assert list((Path(path) / "_tags").iterdir()) == []


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def table_without_log(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    with create_local(path, SCHEMA, primary_key=["id"], log_system=None, options={"bucket": 1}) as table:
        for number in range(6):
            table.write([{"id": number}])
            table.compact()
    return path
