"""A commit's outcome is known before a file is removed, whatever becomes of the answers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType

from snapshot.delta.land import entry_of, withdraw
from snapshot.delta.log import DeltaLog
from snapshot.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TableReplacedError,
    UnavailableError,
)
from snapshot.schema.evolution import AddColumn
from snapshot.storage import Storage
from snapshot.store.garbage import commit_expiry
from tablestore import PublishPendingError, create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.rollback import rollback
from tablestore.table.handle import TableHandle
from tablestore.write.writer import Writer
from tests.harness.faults import failing
from tests.harness.local_writes import SCHEMA, rewriting, run_here, staged, write


@contextmanager
def double(name: str, change: Callable[..., Any], hits: range = range(1, 2)) -> Iterator[None]:
    """Run ``change(real, storage, name, data)`` in place of some calls of a method of ``Storage`` on Delta's log."""
    real, calls = getattr(Storage, name), 0

    def guarded(self: Storage, path: str, *more: Any, **named: Any) -> Any:
        nonlocal calls
        if not path.startswith("_delta_log/"):
            return real(self, path, *more, **named)
        calls += 1
        return change(real, self, path, *more, **named) if calls in hits else real(self, path, *more, **named)

    setattr(Storage, name, guarded)
    try:
        yield
    finally:
        setattr(Storage, name, real)
    assert calls


def repeated(real: Any, *args: Any) -> bool:
    """The answer to a request is lost, and the client repeats the request."""
    real(*args)
    return bool(real(*args))


def unanswered(real: Any, *args: Any) -> bool:
    """The answer to a request is lost for good."""
    real(*args)
    msg = "no answer"
    raise UnavailableError(msg)


def refused(real: Any, *args: Any) -> bool:
    """The request does not reach the store."""
    msg = "no connection"
    raise UnavailableError(msg)


def make(path: Path, key: bool = True, **options: str) -> TableContext:
    named = {"bucket": "2", "compaction.auto": "false", **options}
    keys = ("id",) if key else ()
    return create_drop.create(TableDefinition(str(path), SCHEMA, primary_key=keys, options=named))


def filled(path: Path, key: bool) -> tuple[TableContext, Writer]:
    table = make(path, key)
    writer = Writer(table, None)
    for number in range(1, 4):
        write(writer, [(number, f"v{number}"), (9, f"n{number}")])
    return TableContext.open(table.path), writer


def content(path: str) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["v"]) for row in open_local(path).to_arrow().to_pylist())


def do_write(table: TableContext, writer: Writer) -> None:
    write(writer, [(50, "new")])


def do_compact(table: TableContext, writer: Writer) -> None:
    assert compact(table, run_here) is not None


def do_expire(table: TableContext, writer: Writer) -> None:
    assert expire(table, rules_of(table, timedelta(0), 1)).oldest == 3


def do_alter(table: TableContext, writer: Writer) -> None:
    assert table.files.alter(table.spec, table.files.latest() + 1, "alter-1:0").operation == "alter"


def do_delete(table: TableContext, writer: Writer) -> None:
    assert writer.replace(rewriting(table, lambda row: None if row[0] == 9 else row), kind="delete") is not None


def do_alter_columns(table: TableContext, writer: Writer) -> None:
    assert alter(table, [AddColumn("w", IntegerType())], publish=writer.publish) is not None


def do_overwrite(table: TableContext, writer: Writer) -> None:
    assert writer.write(lambda stager: staged(stager, [(7, "only")]), kind="overwrite", all_rows=True) is not None


def do_rollback(table: TableContext, writer: Writer) -> None:
    assert rollback(table, writer, run_here, 1) is not None


def do_expire_twice(table: TableContext, writer: Writer) -> None:
    do_expire(table, writer)
    write(writer, [(8, "later")])
    assert expire(TableContext.open(table.path), rules_of(table, timedelta(0), 1)).oldest == 5


ACTS = [
    (do_write, True, range(1, 2)), (do_write, False, range(1, 2)),
    # With a key, a compaction commits to the root and then to the changes.
    (do_compact, True, range(1, 2)), (do_compact, True, range(2, 3)), (do_compact, False, range(1, 2)),
    (do_expire, True, range(1, 2)), (do_expire, False, range(1, 2)), (do_alter, True, range(1, 2)),
    (do_delete, False, range(1, 2)), (do_alter_columns, True, range(1, 2)), (do_alter_columns, False, range(1, 2)),
    (do_overwrite, True, range(1, 2)), (do_rollback, True, range(1, 2)), (do_rollback, False, range(1, 2)),
    (do_expire_twice, True, range(3, 4)), (do_expire_twice, False, range(3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("fault", [repeated, unanswered, refused], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("act", "key", "hits"), ACTS, ids=[f"{a.__name__}-{k}-{h.start}" for a, k, h in ACTS])
def test_a_commit_whose_answer_is_lost_lands_once_and_loses_no_file(
    tmp_path: Path, act: Any, key: bool, hits: range, fault: Any
) -> None:
    twins = [filled(tmp_path / name, key) for name in ("faulty", "whole")]
    with double("put_new", fault, hits):
        act(*twins[0])
    act(*twins[1])
    found, expected = (content(table.path) for table, _ in twins)
    assert found == expected
    versions = [(t.files.latest(), t.files.base_table.version()) for t in (TableContext.open(t.path) for t, _ in twins)]
    assert versions[0] == versions[1]
    write(twins[0][1], [(60, "after")])
    assert (60, "after") in content(twins[0][0].path)


def test_where_the_store_cannot_be_asked_the_outcome_is_unknown_and_every_file_stays(tmp_path: Path) -> None:
    table, _ = filled(tmp_path / "t", key=True)
    is_down = False

    def put_then_down(real: Any, *args: Any) -> bool:
        nonlocal is_down
        is_down = True
        return unanswered(real, *args)

    def read(real: Any, *args: Any) -> Any:
        return refused(real, *args) if is_down else real(*args)

    always = range(1, 1_000)
    with double("put_new", put_then_down, always), double("read", read, always), pytest.raises(OutcomeUnknownError):
        compact(table, run_here)
    assert content(table.path) == [(1, "v1"), (2, "v2"), (3, "v3"), (9, "n3")]
    held = [file.path for file in TableContext.open(table.path).files.base_table.files()]
    assert held
    assert [path for path in held if not (tmp_path / "t" / path).exists()] == []


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize(
    "verb",
    [
        lambda t: t.write([{"id": 50, "v": "new"}]),
        lambda t: t.update("id = 1", {"v": "'new'"}),
        lambda t: t.delete("id = 1"),
        lambda t: t.overwrite([{"id": 50, "v": "new"}]),
        lambda t: t.maintenance.rollback(1),
    ],
    ids=["write", "update", "delete", "overwrite", "rollback"],
)
def test_a_store_that_answers_nothing_after_the_commit_does_not_undo_it(tmp_path: Path, key: bool, verb: Any) -> None:
    """An error that says "nothing was committed" would make the caller write the rows again."""
    faulty, whole = (open_local(filled(tmp_path / name, key)[0].path) for name in ("faulty", "whole"))
    with unreadable_commit(), pytest.raises(OutcomeUnknownError, match="snapshot 4 was committed"):
        verb(faulty)
    verb(whole)
    for handle in (faulty, whole):
        handle.write([{"id": 70, "v": "more"}])
    assert content(str(tmp_path / "faulty")) == content(str(tmp_path / "whole"))


@pytest.mark.parametrize("key", [True, False])
def test_a_store_that_answers_nothing_after_a_change_of_columns_does_not_undo_it(tmp_path: Path, key: bool) -> None:
    table, _ = filled(tmp_path / "t", key)
    handle = open_local(table.path)
    with unreadable_commit():
        made = handle.alter.add_column("w", "int")
    assert made is not None
    with unreadable_commit():
        assert handle.alter.set_options({"compaction.commits": 7}) is not None
    assert "w" in open_local(table.path).schema.names
    handle.write([{"id": 70, "v": "more", "w": 1}])


@contextmanager
def unreadable_commit() -> Iterator[None]:
    """An entry that is put cannot be read from then on, until the block ends."""
    made: set[str] = set()

    def put(real: Any, storage: Storage, path: str, *data: Any) -> Any:
        made.add(path)
        return real(storage, path, *data)

    def read(real: Any, storage: Storage, path: str, *folder: Any) -> Any:
        return refused(real) if path in made else real(storage, path, *folder)

    always = range(1, 1_000)
    with double("put_new", put, always), double("read", read, always):
        yield


def test_a_create_whose_intent_cannot_be_deleted_is_done(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with failing(Storage, "delete", UnavailableError("no answer")):
        make(tmp_path / "t")
    write(Writer(TableContext.open(path), None), [(1, "a")])
    with pytest.raises(AlreadyExistsError):
        make(tmp_path / "t")
    create_drop.drop_at(path)
    make(tmp_path / "t")


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_a_draft_that_cannot_be_removed_does_not_undo_the_commit(tmp_path: Path, number: int) -> None:
    table, writer = filled(tmp_path / "t", key=True)
    with failing(Path, "unlink", OSError(number, os.strerror(number)), hits=range(1, 100)):
        made = write(writer, [(70, "kept")])
        assert compact(TableContext.open(table.path), run_here) is not None
    assert made is not None
    assert made.id == 4
    assert (70, "kept") in content(table.path)


def test_a_link_that_is_reported_as_failed_counts_as_made(tmp_path: Path) -> None:
    """As a network file system does when it repeats a request: the second one finds the file of the first."""
    storage = Storage.at(tmp_path)
    with failing(os, "link", FileExistsError(errno.EEXIST, "exists"), after=True):
        assert storage.put_new("one.json", b"mine")
    assert not storage.put_new("one.json", b"other")
    assert storage.read("one.json") == b"mine"


def test_an_entry_is_not_put_below_a_log_that_was_cut_meanwhile(tmp_path: Path) -> None:
    """A writer is suspended between its look at the log and its commit; others write, and the log is cut."""
    table, writer = filled(tmp_path / "t", key=True)

    def overtaken(real: Any, *args: Any) -> bool:
        other = Writer(TableContext.open(table.path), None)
        for number in range(40):
            write(other, [(100 + number, "other")])
        now = TableContext.open(table.path)
        expire(now, rules_of(now, timedelta(0), 1))
        return bool(real(*args))

    with double("put_new", overtaken):
        made = write(writer, [(80, "late")])
    assert made is not None
    assert made.id == TableContext.open(table.path).files.latest() > 44
    assert (80, "late") in content(table.path)
    kept = versions_in(Path(table.path) / "_changes")
    assert kept == list(range(kept[0], kept[-1] + 1)), "an entry is left below the log"


def versions_in(table: Path) -> list[int]:
    """List the versions whose entries are in a Delta table's log."""
    return sorted(int(file.stem) for file in (table / "_delta_log").glob("*.json"))


def test_an_entry_that_lands_in_a_table_created_again_is_taken_out(tmp_path: Path) -> None:
    """A writer is suspended between its look at the log and its commit; the table is dropped and created again."""
    table, writer = filled(tmp_path / "t", key=True)

    def replaced(real: Any, *args: Any) -> bool:
        create_drop.drop(TableContext.open(table.path))
        create_drop.create(TableDefinition(table.path, SCHEMA, primary_key=("id",), options={"bucket": "2"}))
        return bool(real(*args))

    newest = table.files.latest()
    with double("put_new", replaced), pytest.raises(TableReplacedError):
        write(writer, [(80, "late")])
    assert versions_in(Path(table.path) / "_changes") == [0]
    again = Writer(TableContext.open(table.path), None)
    for number in range(newest + 2):
        write(again, [(number, "again")])
    assert len(content(table.path)) == newest + 2


def test_an_entry_of_the_next_table_is_not_taken_out(tmp_path: Path) -> None:
    """A writer is suspended after its commit; then the table is dropped, created again, and gets as many snapshots."""
    table, writer = filled(tmp_path / "t", key=True)
    newest = table.files.latest()

    def replaced(real: Any, *args: Any) -> bool:
        assert real(*args)
        create_drop.drop(TableContext.open(table.path))
        create_drop.create(TableDefinition(table.path, SCHEMA, primary_key=("id",), options={"bucket": "2"}))
        again = Writer(TableContext.open(table.path), None)
        for number in range(newest + 1):
            write(again, [(number, "again")])
        return True

    with double("put_new", replaced), pytest.raises(TableReplacedError):
        write(writer, [(80, "late")])
    assert versions_in(Path(table.path) / "_changes") == list(range(newest + 2))
    assert content(table.path) == [(number, "again") for number in range(newest + 1)]


def test_an_entry_that_another_commit_follows_is_not_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.at(tmp_path)
    storage.put_new(entry_of(7), b"mine")

    def overtaken(real: Any, *args: Any, **named: Any) -> int:
        removed = int(real(*args, **named))
        storage.put_new(entry_of(8), b"next")
        return removed

    # The other commit follows while the entry is removed, which is undone; then it is not even removed.
    with double("delete", overtaken), pytest.raises(OutcomeUnknownError, match="others followed it"):
        withdraw(storage, 7, b"mine")
    monkeypatch.setattr(Storage, "delete", lambda *_, **__: pytest.fail("a reader would find a gap"))
    with pytest.raises(OutcomeUnknownError, match="others followed it"):
        withdraw(storage, 7, b"mine")
    assert storage.read(entry_of(7)) == b"mine"


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("writes", [0, 3, 6])
def test_an_old_handle_does_not_touch_a_table_that_was_created_again(tmp_path: Path, key: bool, writes: int) -> None:
    table, writer = filled(tmp_path / "t", key)
    local = open_local(table.path)
    local.count()
    create_drop.drop(TableContext.open(table.path))
    again = create_drop.create(
        TableDefinition(
            table.path, SCHEMA.add("more", "double"), primary_key=("id",) if key else (), options={"bucket": "2"}
        )
    )
    SCHEMA.fields.pop()
    SCHEMA.names.pop()
    for number in range(writes):
        files = again.files
        files.log.commit(files.latest() + 1, add=[], info={"kind": "append", "rows": 0, "commit": f"w:{number}"})
    held = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    attempts: dict[str, Callable[[], Any]] = {
        "write": lambda: write(writer, [(1, "old")]),
        "compact": lambda: compact(table, run_here),
        "expire": lambda: expire(table, rules_of(table, timedelta(0), 1)),
        "alter": lambda: table.files.alter(table.spec, table.files.latest() + 1, "alter-1:0"),
        "read": lambda: table.files.layout(table.files.latest()),
        "drop": lambda: create_drop.drop(table),
        "open_local": local.count,
    }
    for name, attempt in attempts.items():
        with pytest.raises(TableReplacedError, match="dropped and created again"):
            pytest.fail(f"{name} gave {attempt()}")
    left = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert {path: data for path, data in left.items() if path.suffix != ".parquet" or path in held} == held
    assert set(left) == set(held), "the old handle left files behind"


def test_a_dropped_table_is_said_to_be_gone(tmp_path: Path) -> None:
    table, writer = filled(tmp_path / "t", key=True)
    create_drop.drop(TableContext.open(table.path))
    with pytest.raises(NotFoundError, match="no Delta table"):
        write(writer, [(1, "old")])


def test_a_creation_whose_answer_is_lost_is_found(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path / "t")
    table = make(tmp_path / "t")
    with pytest.raises(AlreadyExistsError):
        make(tmp_path / "t")
    assert DeltaLog(storage).version() == 0
    assert table.files.latest() == 0


def test_an_expiry_is_committed_once(tmp_path: Path) -> None:
    table, _ = filled(tmp_path / "t", key=True)
    with double("put_new", repeated):
        assert commit_expiry(table.files, 2) == 4
    assert commit_expiry(TableContext.open(table.path).files, 2) is None


def test_a_file_system_that_checks_and_then_writes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"expected a file system that creates a file only if it is absent"):
        create_drop.create(TableDefinition("hdfs://127.0.0.1:1/t", SCHEMA))


def test_another_commit_of_the_version_is_a_conflict(tmp_path: Path) -> None:
    table, _ = filled(tmp_path / "t", key=True)
    other = TableContext.open(table.path)
    assert table.files.latest() == other.files.latest() == 3
    other.files.log.commit(4, add=[], info={"kind": "append", "rows": 0})
    with pytest.raises(ConflictError, match="version 4 was committed by another writer"):
        table.files.log.commit(4, add=[], info={"kind": "append", "rows": 0})


def test_a_change_of_columns_that_cannot_be_published_says_that_it_is_committed(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    table = create_local(tmp_path / "t", "id bigint", primary_key="id", log_system="kafka", options=options)
    pending = r"snapshot 1 is committed but not yet in the log: OSError.*Do not write the rows again"
    with failing(TableHandle, "renew", OSError("refused")), pytest.raises(PublishPendingError, match=pending):
        table.alter.add_column("more", "int")
    again = open_local(tmp_path / "t")
    assert [entry.snapshot for entry in again.recover()] == [1]
    again.write([{"id": 1, "more": 2}])
    assert again.verify().ok
