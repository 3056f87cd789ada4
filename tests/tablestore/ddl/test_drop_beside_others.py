"""What others find, and leave behind, while a table is dropped."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import AlreadyExistsError, NotFoundError, TableReplacedError
from snapshot.storage import Storage
from snapshot.store.tags import Tags
from tablestore import LocalTable, create_local, open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.service.verify_position import Verified, VerifiedFile
from tablestore.service.watcher import TableWatcher
from tablestore.streaming.consumers import Consumers
from tablestore.write.writer import Writer
from tests.harness.faults import preceded
from tests.harness.local_writes import make_table, publisher_of, write

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


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_works_on_a_table_that_is_created_again_all_the_time_learns_that(tmp_path: Path, seed: int) -> None:
    """No other error is raised, and nothing that was meant for one table gets into the next."""
    path, stop, wrong = str(tmp_path / "t"), Event(), list[str]()
    options = {"bucket": 2, "compaction.commits": 3}
    works: list[Callable[[LocalTable, int], object]] = [
        lambda table, number: table.write([{"id": number % 20, "v": "x"}]),
        lambda table, _: table.to_arrow(),
        lambda table, number: table.get(number % 20),
        lambda table, _: list(table.tail(scan_mode="earliest", follow=False)),
        lambda table, _: list(table.changes(1)),
        lambda table, _: table.compact(),
        lambda table, _: table.maintenance.expire(),
        lambda table, number: table.tags.create(f"t{number}"),
        lambda table, number: table.alter.set_options({"compaction.commits": 2 + number % 7}),
        lambda table, _: table.verify(),
    ]

    def use(dice: random.Random) -> None:
        table, number = None, 0
        while not stop.is_set():
            number += 1
            try:
                table = open_local(path) if table is None or dice.random() < 0.3 else table
                dice.choice(works)(table, number)
            except (NotFoundError, TableReplacedError, AlreadyExistsError):
                continue
            except Exception as error:  # noqa: BLE001 - the test lists whatever it is
                wrong.append(f"{type(error).__name__}: {error}")

    users = [Thread(target=use, args=(random.Random(seed * 10 + number),)) for number in range(2)]
    for user in users:
        user.start()
    try:
        for number in range(10):
            table = create_local(path, DDL, primary_key="id", options=options)
            # The tables with a checkpoint, which is due after 20 commits, take turns with those without.
            for write in range(25 * (number % 2)):
                table.write([{"id": write, "v": f"{number}"}])
            assert table.verify().ok
            create_drop.drop_at(path)
    finally:
        stop.set()
        for user in users:
            user.join()
    assert wrong == []
    assert not Path(path).exists()


def test_a_drop_goes_on_when_a_writer_adds_a_file_to_what_it_removes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create_local(path, DDL).write([{"id": 1, "v": "a"}])
    begun = ExitStack()

    def begin() -> None:
        begun.enter_context(preceded(os, "rmdir", (path / "part-late.parquet").touch))

    with begun, preceded(Storage, "delete_tree", begin):
        create_drop.drop_at(str(path))
    assert not path.exists()


@pytest.fixture
def late(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> dict[Path, bytes]:
    """Drop a table of five snapshots; return what an object store may put there afterwards, by requests on their way.

    Files that are put by hand stand for those requests.
    """
    path = tmp_path / "t"
    table = make_table(path, kafka.bootstrap_servers, topic())
    publisher = publisher_of(table)
    for number in range(1, 6):
        write(Writer(table, publisher), [(number, "old")])
    publisher.discard()
    Consumers(table.files.storage).put("reader", 1, table=table.spec.table_id)
    with open_local(path) as local:
        local.tags.create("kept", 4)
    names = ("_log/*[34].json", "_tags/*", "_consumers/*")
    found = {file: file.read_bytes() for name in names for file in path.glob(name)}
    assert len(found) == 4
    create_drop.drop(table)
    return found


def put(late: dict[Path, bytes]) -> None:
    for file, text in late.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)


def test_what_requests_leave_in_a_dropped_table_is_named(tmp_path: Path, late: dict[Path, bytes]) -> None:
    put(late)
    with pytest.raises(
        AlreadyExistsError, match=r"an empty folder, got one with \['_consumers', .*delete what is left"
    ):
        create_local(tmp_path / "t", DDL)


def test_what_requests_to_a_dropped_table_leave_in_the_next_one_is_not_read(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], late: dict[Path, bytes]
) -> None:
    path = tmp_path / "t"
    table = make_table(path, kafka.bootstrap_servers, topic())
    publisher = publisher_of(table)
    for number in range(1, 5):
        write(Writer(table, publisher), [(number, "new")])
        if number == 2:
            put(late)
        if number >= 2:
            opened, watcher = TableContext.open(str(path)), TableWatcher(str(path))
            assert opened.index.newest() == number
            assert opened.verify().ok
            tail = open_local(path).tail(scan_mode="earliest", follow=False)
            assert [row["v"] for batch in tail for row in batch.to_pylist()] == ["new"] * number
            assert watcher.attempt()
            assert watcher.state.consumers == {}
            watcher.close()
    publisher.discard()


def test_a_tag_of_a_dropped_table_is_none_of_the_next_one(tmp_path: Path, late: dict[Path, bytes]) -> None:
    with create_local(tmp_path / "t", DDL) as table:
        table.write([{"id": 1, "v": "new"}])
        put(late)
        assert table.tags.all() == []
        with pytest.raises(NotFoundError, match="the table has no tags"):
            table.to_arrow(tag="kept")
        table.tags.create("kept")
        assert table.to_arrow(tag="kept").num_rows == 1
        table.tags.delete("kept")
        assert table.tags.all() == []
