"""Merge engines and the log: what is published is the merged row, after any crash and with several writers."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from log_system.index import LogIndex
from snapshot.records import CommitId
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness import local_writes
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import Change, drain, fold, make_table, publisher_of, rows_of, run_here
from tests.harness.log_audit import verify
from tests.harness.table_audit import assert_log_is_table

PARTITIONS = 2
JOINED = {
    "merge_engine": "aggregation",
    "fields__v__aggregate_function": "listagg",
    "aggregation__remove_record_on_delete": True,
}
"""Each value of a key is appended to those before it: whatever is lost, doubled or out of order shows."""


def joined(rows: dict[int, str], changes: list[Change]) -> dict[int, str]:
    """Do what ``JOINED`` does."""
    now = dict(rows)
    for key, value in changes:
        if value is None:
            now.pop(key, None)
        else:
            now[key] = f"{now[key]},{value}" if key in now else value
    return now


@pytest.mark.parametrize("options", [{}, {"changelog_producer": "lookup", "log__format": "arrow"}])
def test_the_log_holds_the_merged_rows_after_any_crash(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], options: dict[str, str]
) -> None:
    servers, name = kafka.bootstrap_servers, topic()
    table = make_table(tmp_path / "t", servers, name, **JOINED, **options)
    publisher = publisher_of(table)
    dice = random.Random(name[:5])
    expected: dict[int, str] = {}
    crashes = [(LogIndex, "put", False), (type(publisher), "publish", False), (LogIndex, "put", True)]
    for number in range(8):
        batch: list[Change] = [(dice.randrange(4), dice.choice([f"{number}", "x", None])) for _ in range(5)]
        batch.append((9, f"{number}"))
        writer = Writer(table, publisher)
        if number % 2:
            owner, step, after = crashes[number // 2 % 3]
            with failing(owner, step, after=after), pytest.raises(Crash):
                local_writes.write(writer, batch, CommitId("q", number, durable=True))
            publisher.discard()
            table = TableContext.open(table.path)
            publisher = publisher_of(table)
            writer = Writer(table, publisher)
        local_writes.write(writer, batch, CommitId("q", number, durable=True))
        expected = joined(expected, batch)
        assert rows_of(table) == expected, "a repeated batch is merged once"
        if number == 4:
            compact(TableContext.open(table.path), run_here)
    recover(table, publisher)
    publisher.discard()
    assert expected[9] == "0,1,2,3,4,5,6,7"
    if not options:
        assert_log_is_table(tmp_path / "t", servers, name, PARTITIONS)
    report = verify(TableContext.open(table.path))
    assert report.ok, str(report)


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
def test_writers_at_once_merge_every_row_once(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], consistency: str
) -> None:
    servers, name = kafka.bootstrap_servers, topic()
    made = make_table(tmp_path / "t", servers, name, **JOINED, log__consistency=consistency)

    def run(who: str) -> None:
        table = TableContext.open(made.path)
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        for number in range(4):
            local_writes.write(writer, [(key, f"{who}{number}") for key in range(3)])
        publisher.discard()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, "ab"))
    publisher = publisher_of(made)
    recover(made, publisher)
    publisher.discard()
    rows = rows_of(made)
    for values in rows.values():
        held = values.split(",")
        assert sorted(held) == sorted(f"{who}{number}" for who in "ab" for number in range(4))
        assert all([v for v in held if v[0] == who] == [f"{who}{n}" for n in range(4)] for who in "ab")
    assert fold(change for partition in drain(servers, name, PARTITIONS) for change in partition) == rows
    report = verify(TableContext.open(made.path))
    assert report.ok, str(report)


def test_an_attempt_that_becomes_nothing_leaves_no_word_in_an_eventual_log(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """What a first attempt has sent is undone at once, although no commit of its own follows."""
    servers, name = kafka.bootstrap_servers, topic()
    options = {"merge_engine": "first-row", "log__consistency": "eventual"}
    table = make_table(tmp_path / "t", servers, name, **options)
    publisher = publisher_of(table)
    writer, others = Writer(table, publisher), iter([True])

    def staged(stager: Any) -> Any:
        files = local_writes.staged(stager, [(1, "mine")])
        if next(others, False):
            local_writes.write(Writer(TableContext.open(table.path), None), [(1, "first")])
        return files

    writer.recover_once()
    assert writer.write(staged) is None
    publisher.discard()
    assert rows_of(table) == {1: "first"}
    assert fold(change for partition in drain(servers, name, PARTITIONS) for change in partition) == {1: "first"}
    assert verify(TableContext.open(table.path)).ok


def test_a_row_that_an_overwrite_leaves_as_it_is_follows_the_record_that_all_are_gone(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """With a sequence rows are looked up while they are staged, and one that is there already would be no change."""
    servers, name = kafka.bootstrap_servers, topic()
    table = make_table(tmp_path / "t", servers, name, sequence__field="v", log__truncate_record=True)
    publisher = publisher_of(table)
    writer = Writer(table, publisher)
    local_writes.write(writer, [(1, "b"), (2, "c")])
    local_writes.act(writer, table, "overwrite", lambda rows: [*((key, None) for key in rows), (1, "b"), (3, "a")])
    local_writes.write(writer, [(2, "b")])
    publisher.discard()
    assert rows_of(table) == {1: "b", 3: "a"}, "what comes after a delete with a greater sequence is late"
    assert_log_is_table(tmp_path / "t", servers, name, PARTITIONS)
    assert verify(TableContext.open(table.path)).ok
