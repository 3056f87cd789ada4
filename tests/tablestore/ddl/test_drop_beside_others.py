"""What others find, and leave behind, while a table is dropped."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from snapshot.errors import NotFoundError
from snapshot.storage import Storage
from snapshot.store.tags import Tags
from tablestore import LocalTable, create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.service.verify_position import Verified, VerifiedFile
from tests.harness.faults import preceded

DDL = "id bigint, v string"


@pytest.mark.parametrize("key", [True, False])
def test_whoever_looks_while_a_table_is_dropped_finds_all_of_it_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bool
) -> None:
    path, real, looks = str(tmp_path / "t"), os.unlink, 0
    local = create_local(path, DDL, primary_key=["id"] if key else [])
    for number in range(3):
        local.write([{"id": number, "v": "a"}])
    opened = TableContext.open(path)

    def unlink(*given: Any, **named: Any) -> None:
        nonlocal looks
        real(*given, **named)
        looks += 1
        for look in (local.count, lambda: open_local(path), opened.files.latest, opened.check_same):
            with pytest.raises(NotFoundError, match="there is no"):
                look()
        with suppress(TableNotFoundError):
            assert DeltaTable(path).version() == 0, "another Delta reader finds an older version"

    with preceded(create_drop, "remove_log", lambda: monkeypatch.setattr(os, "unlink", unlink)):
        create_drop.drop(TableContext.open(path))
    assert looks >= 5


@pytest.mark.parametrize(
    ("owner", "name", "verb"),
    [
        (Tags, "hold", lambda table: table.tags.create("t")),
        (Tags, "put", lambda table: table.tags.create("t")),
        (Storage, "now_ms", lambda table: table.maintenance.remove_orphans(older_than="2 h")),
        (VerifiedFile, "write", lambda table: VerifiedFile(Storage.at(table.path)).write(Verified("t"))),
    ],
    ids=["hold of a tag", "tag", "probe of the clock", "position of a verification"],
)
def test_nobody_leaves_a_file_for_a_table_that_was_dropped_meanwhile(
    tmp_path: Path, owner: type, name: str, verb: Callable[[LocalTable], object]
) -> None:
    """With a file in its folder, no table could be created there."""
    path = str(tmp_path / "t")
    table = create_local(path, DDL)
    table.write([{"id": 1, "v": "a"}])
    with preceded(owner, name, lambda: create_drop.drop_at(path)), pytest.raises(NotFoundError, match="dropped"):
        verb(table)
    assert not (tmp_path / "t").exists()
    create_local(path, DDL)
