"""A rollback is one snapshot of true changes, right also when others write, compact or expire meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshot.errors import InvalidInputError, NotFoundError, UnavailableError
from snapshot.storage import Storage
from tablestore import create_local
from tablestore.context import TableContext
from tablestore.maintenance.change_tags import make_tag
from tablestore.maintenance.compact import compact
from tablestore.maintenance.remove_orphans import remove_orphans
from tablestore.maintenance.rollback import rollback
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table, publisher_of, rows_of, run_here, write
from tests.harness.log_audit import verify
from tests.harness.table_audit import assert_log_is_table
from tests.tablestore.maintenance.test_expire_snapshots import Life, content, needed, on_disk

PARTITIONS = 2


@pytest.mark.parametrize("producer", ["none", "lookup"])
def test_a_rollback_makes_the_table_what_it_was(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], producer: str
) -> None:
    servers, name = kafka.bootstrap_servers, topic()
    log = {"log__format": "arrow"}
    table = make_table(tmp_path / "t", servers, name, changelog_producer=producer, compaction__auto=False, **log)
    writer = Writer(table, publisher_of(table))
    write(writer, [(n, "a") for n in range(6)])
    write(writer, [(0, "b"), (1, None), (7, "b")])
    make_tag(table, "two", 2)
    then = rows_of(table, 2)
    write(writer, [(0, "c"), (1, "c"), (2, None), (8, "c"), (3, "a")])
    compact(table, run_here)
    write(writer, [(8, "d"), (9, "d"), (7, None)])

    made = rollback(table, writer, run_here, 2)
    assert made is not None
    assert made.operation == "rollback"
    # Keys 0, 2 and 7 come back, 1, 8 and 9 go; 3 has its old value all along.
    assert made.rows == (6 if producer == "none" else 7)
    assert rows_of(table) == then
    assert rollback(table, writer, run_here, "two") is None
    found = [
        row for p in range(PARTITIONS) for b in table.files.changes(made.id, 2).batches(p) for row in b.to_pylist()
    ]
    assert {row["id"] for row in found} == {0, 1, 2, 7, 8, 9}
    assert verify(table).ok

    # Whoever writes meanwhile is rolled back with the rest, since that came first.
    write(writer, [(4, "z")])
    tries = 0

    def with_another(tasks: Any, work: Any) -> list[str]:
        nonlocal tries
        tries += 1
        results = run_here(tasks, work)
        if tries == 1:
            write(Writer(TableContext.open(table.path), None), [(5, "meanwhile"), (50, "meanwhile")])
        return results

    made = rollback(table, writer, with_another, 2)
    assert (tries, rows_of(table)) == (2, then)
    assert made is not None
    with pytest.raises(NotFoundError, match="there is no snapshot 99"):
        rollback(table, writer, run_here, 99)
    with pytest.raises(NotFoundError, match="'nine'"):
        rollback(table, writer, run_here, "nine")
    if producer == "none":
        assert_log_is_table(tmp_path / "t", servers, name, PARTITIONS)
    assert verify(table).ok


def test_a_rollback_to_a_tag_whose_snapshot_has_expired_or_that_dies(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    life = Life(tmp_path / "t", kafka.bootstrap_servers, topic())
    life.write(5)
    make_tag(life.table, "five", 5)
    life.write(8, compact_every=4)
    life.expire(2)
    assert life.table.files.oldest() > 5
    before = rows_of(life.table)
    with failing(Writer, "write_staged"), pytest.raises(Crash):
        rollback(life.table, life.writer, run_here, "five")
    assert rows_of(life.table) == before
    rollback(life.table, life.writer, run_here, "five")
    assert rows_of(life.table) == dict(life.held[5])
    assert verify(life.table).ok
    with pytest.raises(NotFoundError, match="has expired"):
        rollback(life.table, life.writer, run_here, 4)
    flat = Life(tmp_path / "flat", kafka.bootstrap_servers, topic(), key=False)
    with pytest.raises(InvalidInputError, match=r"log\.format='json' identifies a deleted row by its primary key"):
        rollback(flat.table, flat.writer, run_here, 0)


def test_without_a_key_files_come_and_go(kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    life = Life(tmp_path / "t", kafka.bootstrap_servers, topic(), key=False, log__format="arrow")
    life.write(6)

    def with_an_append(tasks: Any, work: Any) -> list[str]:
        write(Writer(TableContext.open(str(life.path)), None), [(1000, "meanwhile")])
        return run_here(tasks, work)

    made = rollback(life.table, life.writer, with_an_append, 4)
    assert made is not None
    assert (made.operation, made.rows) == ("rollback", 8)
    assert content(life.table, made.id) == sorted([*life.held[4], (1000, "meanwhile")])
    back = rollback(life.table, life.writer, run_here, 6)
    assert back is not None
    assert (back.rows, content(life.table, back.id)) == (9, life.held[6])
    life.remember()
    assert verify(life.table).ok
    # The files that came back are copies: those of before expire with their snapshots.
    life.write(1)
    life.expire(2)
    life.check(oldest=back.id)
    assert on_disk(life.path) == needed(life.table)
    assert remove_orphans(life.table).young == 0


def test_what_a_row_was_is_not_merged_with_what_it_is(kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> None:
    options = {"merge_engine": "aggregation", "fields__v__aggregate_function": "listagg", "compaction__auto": False}
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), **options)
    writer = Writer(table, publisher_of(table))
    write(writer, [(1, "a"), (2, "x")])
    then = rows_of(table)
    write(writer, [(1, "b"), (3, "c")])
    assert rows_of(table) == {1: "a,b", 2: "x", 3: "c"}
    rollback(table, writer, run_here, 1)
    assert rows_of(table) == then
    write(writer, [(1, "d")])
    assert rows_of(table) == {**then, 1: "a,d"}
    assert verify(table).ok


def test_a_rollback_that_cannot_copy_a_file_leaves_no_copies_of_others(tmp_path: Path) -> None:
    table = create_local(tmp_path / "t", "id int", options={"compaction.auto": False})
    for number in range(3):
        table.write([{"id": number}])
    table.truncate()
    before = set(tmp_path.rglob("*.parquet"))
    down = UnavailableError("the store is down")
    with failing(Storage, "copy", down, hits=range(2, 3)), pytest.raises(UnavailableError, match="store is down"):
        table.maintenance.rollback(3)
    assert set(tmp_path.rglob("*.parquet")) == before
    table.maintenance.rollback(3)
    assert table.count() == 3
