"""Tags are created beside expiries, and by creators that are killed: a tag that exists has all its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import NotFoundError
from snapshot.store.tags import Tags
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.maintenance.change_tags import make_tag

SCHEMA = "id BIGINT NOT NULL"


def test_two_tags_made_while_their_snapshot_expires_do_not_vouch_for_each_other(tmp_path: Path) -> None:
    path = table_without_log(tmp_path)
    waiting: list[Any] = []
    held: list[str] = []
    hold = Tags.hold

    def hold_both_too_late(self: Tags, tag: Any) -> str:
        if not waiting:
            waiting.append(tag)
            with pytest.raises(NotFoundError, match="snapshot 3 has expired meanwhile"):
                make_tag(TableContext.open(path), "second", 3)
            return held.pop()
        open_local(path).maintenance.expire(keep_last=1, older_than="0 s")
        held.append(hold(self, waiting[0]))
        return hold(self, tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "hold", hold_both_too_late)
        with pytest.raises(NotFoundError, match="snapshot 3 has expired meanwhile"):
            make_tag(TableContext.open(path), "first", 3)
    assert TableContext.open(path).files.tags.keeping() == []


def test_a_tag_whose_creator_was_killed_keeps_files_until_orphans_are_removed(tmp_path: Path) -> None:
    path = table_without_log(tmp_path)
    table = open_local(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tags, "put", kill)
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


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def table_without_log(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    with create_local(path, SCHEMA, primary_key=["id"], log_system=None, options={"bucket": 1}) as table:
        for number in range(6):
            table.write([{"id": number}])
            table.compact()
    return path
