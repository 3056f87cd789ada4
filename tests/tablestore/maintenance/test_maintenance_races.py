"""Maintenance by several processes at once: what one removes, another neither needs nor owns."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from log_system.index import LogIndex
from snapshot.errors import (
    ConflictError,
    DataLostError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TableReplacedError,
    UnavailableError,
)
from snapshot.staging.changelog_lookup import Lookup
from snapshot.staging.parquet_writer import ParquetFiles
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from snapshot.store.tags import Tags
from tablestore import LocalTable, create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl.create_drop import drop
from tablestore.maintenance import compact, expire_snapshots, remove_orphans
from tablestore.maintenance.change_tags import delete_tag, make_tag
from tablestore.maintenance.minor_compaction import combine
from tablestore.streaming.change_feed import Position
from tablestore.streaming.consumers import ConsumerProgress, Consumers, reset_consumer
from tests.harness.faults import Crash, failing, preceded
from tests.harness.local_writes import run_here

SCHEMA = "id BIGINT NOT NULL"
WRITES = 24
"""Enough for a checkpoint, below which an expiry truncates a Delta log."""


def make(path: str, key: bool = True) -> None:
    options = {"bucket": 1, "compaction.auto": False, "snapshot.expire-auto": False}
    keys = ["id"] if key else []
    with create_local(path, SCHEMA, primary_key=keys, log_system=None, options=options) as table:
        for number in range(WRITES):
            table.write([{"id": number}])
            if number in (3, WRITES - 1):
                table.compact()
        table.write([{"id": WRITES}])


def make_again(path: str, key: bool = True) -> None:
    drop(TableContext.open(path))
    make(path, key)


def expire(path: str, keep_last: int = 1) -> Any:
    with open_local(path) as table:
        return table.maintenance.expire(keep_last=keep_last, older_than="0 s")


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("is_checked", [True, False])
def test_an_expiry_that_slept_leaves_a_table_created_again_alone(tmp_path: Path, key: bool, is_checked: bool) -> None:
    path = str(tmp_path / "t")
    make(path, key)
    owner, name = (expire_snapshots, "remove_garbage") if is_checked else (LogIndex, "delete")
    replaced = pytest.raises(TableReplacedError, match="dropped and created again") if is_checked else nullcontext()
    with preceded(owner, name, lambda: make_again(path, key)), replaced:
        expire(path)
    table = open_local(path)
    assert table.count() == WRITES + 1
    assert len(table.snapshots()) == WRITES + 4


def test_orphans_are_not_files_of_a_tag_made_while_the_logs_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)
    for file in (tmp_path / "t").rglob("*.parquet"):
        os.utime(file, (0, 0))

    def tag_and_expire() -> None:
        with open_local(path) as table:
            table.tags.create("kept", 3)
        expire(path)

    with preceded(remove_orphans, "known_before", tag_and_expire):
        open_local(path).maintenance.remove_orphans()
    assert len(open_local(path).to_arrow(tag="kept")) == 3


def read_by(path: str) -> None:
    ConsumerProgress(TableContext.open(path), "late").read(Position(5))


def begin_by(path: str) -> None:
    ConsumerProgress(TableContext.open(path), "late").begin(Position(5))


def reset(path: str) -> None:
    reset_consumer(TableContext.open(path), "early", 5)


@pytest.mark.parametrize("register", [read_by, begin_by, reset])
@pytest.mark.parametrize("step", ["_decide", "commit_expiry"])
def test_a_consumer_written_while_its_snapshots_expire_is_seen_or_refused(
    tmp_path: Path, register: Callable[[str], None], step: str
) -> None:
    path = str(tmp_path / "t")
    make(path)
    consumers = Consumers(TableContext.open(path).files.storage)
    consumers.put("early", 20)
    refused: list[DataLostError] = []

    def act() -> None:
        try:
            register(path)
        except DataLostError as error:
            refused.append(error)

    with preceded(expire_snapshots, step, act):
        oldest = expire(path).oldest
    assert (oldest, bool(refused)) == ((5, False) if step == "_decide" else (20, True))
    assert [error for error in refused if "from snapshot 20 on" not in str(error)] == []
    early = consumers.get("early")
    assert early is not None
    assert early.snapshot == (5 if register is reset and not refused else 20)
    assert (consumers.get("late") is None) == (register is reset or bool(refused))
    assert list((tmp_path / "t" / "_consumers").glob("*.expiring")) == []


def test_a_tag_does_not_land_in_a_table_created_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)
    with (
        preceded(Tags, "put", lambda: make_again(path)),
        pytest.raises(TableReplacedError, match="dropped and created again"),
    ):
        make_tag(TableContext.open(path), "old", 3)
    assert open_local(path).tags.all() == []


def test_a_tag_of_a_table_created_again_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)

    def make_again_with_tag() -> None:
        make_again(path)
        with open_local(path) as table:
            table.tags.create("same", 5)

    replaced = pytest.raises(TableReplacedError, match="dropped and created again")
    with preceded(TableContext, "check_same", make_again_with_tag), replaced:
        make_tag(TableContext.open(path), "same", 3)
    assert [(tag.name, tag.snapshot.id) for tag in open_local(path).tags.all()] == [("same", 5)]


def test_an_expiry_that_was_not_committed_refuses_no_consumer(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)
    lost = ConflictError("others committed first")
    with failing(expire_snapshots, "commit_expiry", lost), pytest.raises(ConflictError, match="others"):
        expire(path)
    read_by(path)
    assert list((tmp_path / "t" / "_consumers").glob("*.expiring")) == []


def test_what_is_said_of_a_tag_is_true_when_an_answer_is_lost(tmp_path: Path) -> None:
    path, down = str(tmp_path / "t"), UnavailableError("no answer")
    make(path)
    with failing(Tags, "release", down):
        make_tag(TableContext.open(path), "one", 3)
    for name, is_lost in (("two", True), ("three", False)):
        with (
            failing(Storage, "put_new", down, after=is_lost),
            pytest.raises(OutcomeUnknownError, match=f"'{name}' may"),
        ):
            make_tag(TableContext.open(path), name, 3)
    table = TableContext.open(path)
    assert [tag.name for tag in table.files.tags.all()] == ["one", "two"]
    # The files stay until somebody has looked, whatever has landed.
    for name in ("one", "two"):
        delete_tag(table, name)
    expire(path)
    kept = table.files.tags.keeping()
    assert len(kept) == 3
    assert all((tmp_path / "t" / "_changes" / file.path).exists() for file in kept[0].layout.changes)


def test_a_tag_whose_maker_slept_until_its_hold_was_an_orphan_is_not_made(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)

    def a_day_passes() -> None:
        for hold in (tmp_path / "t" / "_tags").glob("*.hold"):
            os.utime(hold, (0, 0))
        open_local(path).maintenance.remove_orphans()
        expire(path)

    with preceded(Tags, "put", a_day_passes), pytest.raises(ConflictError, match="tag 'late' was not made"):
        make_tag(TableContext.open(path), "late", 3)
    assert TableContext.open(path).files.tags.keeping() == []


def test_what_a_killed_expiry_has_announced_goes_with_the_next_expiry(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)
    with preceded(expire_snapshots, "commit_expiry", kill), pytest.raises(KeyboardInterrupt):
        expire(path)
    with pytest.raises(DataLostError, match=f"from snapshot {WRITES + 3} on"):
        read_by(path)
    assert expire(path).oldest == WRITES + 3
    assert list((tmp_path / "t" / "_consumers").iterdir()) == []


def test_an_expiry_leaves_what_expiries_of_the_next_table_have_announced(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)

    def make_again_and_expire() -> None:
        make_again(path)
        with preceded(expire_snapshots, "commit_expiry", kill), pytest.raises(KeyboardInterrupt):
            expire(path)

    with preceded(Consumers, "withdraw", make_again_and_expire), pytest.raises(TableReplacedError):
        expire(path)
    with pytest.raises(DataLostError, match=f"from snapshot {WRITES + 3} on"):
        read_by(path)


def kill() -> None:
    raise KeyboardInterrupt


def test_of_options_and_columns_that_two_processes_alter_at_once_none_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)

    def other() -> None:
        with open_local(path) as table:
            table.alter.set_options({"compaction.commits": 7})
            table.alter.add_column("b", "int")

    with preceded(TableFiles, "alter", other), open_local(path) as table:
        table.alter.set_options({"snapshot.retain-min": 3})
    renamed = pytest.raises(InvalidInputError, match="'b'")
    with preceded(TableFiles, "alter", lambda: rename(path, "b", "c")), open_local(path) as table, renamed:
        table.alter.rename_column("b", "d")
    now = open_local(path)
    assert (now.options.compaction.commits, now.options.snapshot.retain_min) == (7, 3)
    assert now.schema.names == ["id", "c"]


def rename(path: str, old: str, new: str) -> None:
    with open_local(path) as table:
        table.alter.rename_column(old, new)


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
@pytest.mark.parametrize("act", ["write", "delete", "compact", "combine", "tag"])
def test_a_path_is_free_when_its_table_is_dropped_under_somebody_at_work(tmp_path: Path, act: str, key: bool) -> None:
    path = str(tmp_path / "t")
    make(path, key)
    with open_local(path) as table:
        for number in range(5):
            table.write([{"id": number}])
    acts: dict[str, Callable[[LocalTable], object]] = {
        "write": lambda table: table.write([{"id": 100}]),
        "delete": lambda table: table.delete("id > 3"),
        "compact": lambda table: table.compact(),
        "combine": combine_all,
        "tag": lambda table: table.tags.create("late"),
    }
    owner: Any = {"tag": Tags, "compact": compact}.get(act, ParquetFiles)
    name = {"tag": "put", "compact": "_merge_bucket"}.get(act, "close")
    gone = pytest.raises(NotFoundError)
    with open_local(path) as table, preceded(owner, name, lambda: drop(TableContext.open(path))), gone:
        acts[act](table)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    make(path, key)


def combine_all(table: LocalTable) -> object:
    context = TableContext.open(table.path)
    if not context.spec.has_key:
        return table.compact()
    layout = context.files.layout(context.files.latest())
    return combine(context, layout, layout.changes, run_here)


def test_a_write_that_reads_rows_goes_on_when_a_compaction_replaces_their_files(tmp_path: Path) -> None:
    """The snapshot that the write was computed from is there still: its rows are in other files by now."""
    path = str(tmp_path / "t")
    options = {"bucket": 1, "compaction.auto": False, "snapshot.expire-auto": False, "merge-engine": "partial-update"}
    table = create_local(path, "id int, v int", primary_key=["id"], options=options)
    for number in range(2):
        table.write([{"id": 1, "v": number}])
        table.compact()
        table.write([{"id": 2, "v": number}])

    def compact_and_expire() -> None:
        # Before the last step of the compaction, which makes a snapshot.
        with failing(TableFiles, "trim"), pytest.raises(Crash), open_local(path) as other:
            other.compact()
        expire(path)

    with preceded(Lookup, "_look_up", compact_and_expire):
        table.write([{"id": 2, "v": None}, {"id": 3, "v": 3}])
    rows = table.to_arrow().to_pylist()
    assert sorted(row["id"] * 10 + row["v"] for row in rows) == [11, 21, 33]
