"""Repair: what can be mended is, the log stays as it was for plain consumers, and the rest is told with advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from tablestore.cli import app
from tests.harness.damage import KINDS, PARTITIONS, Damaged
from tests.harness.local_writes import drain_raw, publisher_of
from tests.harness.table_audit import assert_log_is_table

RUN = CliRunner(env={"COLUMNS": "200"})


@pytest.fixture
def table(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", **getattr(request, "param", {}))


every_kind = pytest.mark.parametrize("table", KINDS, indirect=True)


def log_of(table: Damaged) -> list[tuple[int, int]]:
    """Give partition and offset of every record: a repair of the index must not add any."""
    return [(m.partition(), m.offset()) for p in drain_raw(table.servers, table.topic, PARTITIONS) for m in p]


def test_a_sound_table_is_left_alone(table: Damaged) -> None:
    before = log_of(table)
    done = table.repair()
    assert (done.actions, done.advice, done.ok) == ((), (), True)
    assert log_of(table) == before
    assert "nothing needed repair" in str(done)


@pytest.mark.parametrize("lost", [[0], [2], [4], [3, 4], [0, 1, 2, 3, 4]], ids=str)
def test_lost_index_entries_come_back_as_they_were(table: Damaged, lost: list[int]) -> None:
    kept, before = [table.entry(s) for s in range(5)], log_of(table)
    for snapshot in lost:
        table.entry_file(snapshot).unlink()
    done = table.repair()
    assert done.ok, str(done)
    assert [table.entry(s) for s in range(5)] == kept
    assert log_of(table) == before
    assert all("rebuilt the index entry" in action for action in done.actions)
    assert len(done.actions) == len(lost)


@every_kind
def test_wrong_and_damaged_index_entries_are_made_right(table: Damaged) -> None:
    kept, before = [table.entry(s) for s in range(5)], log_of(table)
    table.entry_file(1).write_bytes(b"{")
    table.edit_entry(2, lambda entry: entry["partitions"][0].update(end=99, records=1))
    table.edit_entry(3, lambda entry: entry.update(kind="delete", snapshot=8))
    table.edit_entry(4, lambda entry: entry["partitions"][1].update(rows=7))
    done = table.repair()
    assert done.ok, str(done)
    assert [table.entry(s) for s in range(5)] == kept
    assert log_of(table) == before


def test_an_entry_of_a_snapshot_that_is_not_committed_is_removed(table: Damaged) -> None:
    table.entry_file(5).write_text(table.entry_file(4).read_text().replace('"snapshot": 4', '"snapshot": 5'))
    assert table.repair().ok
    assert not table.entry_file(5).exists()
    table.write(5)
    assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


def test_an_entry_ahead_of_the_log_is_replaced_by_publishing(table: Damaged) -> None:
    table.write(5, publish=False)
    table.entry_file(5).write_text(table.entry_file(4).read_text().replace('"snapshot": 4', '"snapshot": 5'))
    done = table.repair()
    assert done.ok, str(done)
    assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


@pytest.mark.parametrize("and_index", [False, True])
def test_a_lost_register_comes_back(table: Damaged, *, and_index: bool) -> None:
    table.forget_group()
    if and_index:
        for snapshot in range(5):
            table.entry_file(snapshot).unlink()
    before = log_of(table)
    done = table.repair()
    assert done.ok, str(done)
    assert log_of(table) == before
    table.write(5)
    assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


def test_a_register_ahead_of_the_log_is_set_back_and_nothing_is_left_out(table: Damaged) -> None:
    publisher = publisher_of(table.open())
    publisher.restore({1: RegisterPosition(9, 1, 1, done=True, end=99)})
    publisher.discard()
    table.write(5, publish=False)
    assert table.repair().ok
    assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


@every_kind
def test_what_was_committed_and_not_published_is_published(table: Damaged) -> None:
    table.write(5, publish=False)
    done = table.repair()
    assert done.ok, str(done)
    assert done.report.pending == ()
    assert any("published snapshot 5" in action for action in done.actions)


@every_kind
@pytest.mark.parametrize("gone", [False, True], ids=["empty", "gone"])
def test_a_lost_topic_is_published_anew(table: Damaged, *, gone: bool) -> None:
    if gone:
        table.drop_topic()
    else:
        table.recreate_topic()
    done = table.repair()
    assert done.ok, str(done)
    assert done.report.snapshots == 4
    if table.key:
        assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


@pytest.mark.parametrize(
    "table",
    [
        {"log__truncate_record": True, **options}
        for options in ({}, {"key": False, "log__format": "arrow", "publish__driver_rows_max": 0})
    ],
    indirect=True,
    ids=["json-key", "arrow-append-tasks"],
)
def test_records_that_say_that_all_rows_are_gone_are_mended_like_others(table: Damaged) -> None:
    """They have no rows of their own: what they stand for is counted in the index, and told by the table's files."""
    table.delete_all()
    table.write(6)
    kept, before = [table.entry(s) for s in range(7)], log_of(table)
    assert kept[5].rows
    assert sum(p.records for p in kept[5].partitions) == PARTITIONS
    table.forget_group()
    for snapshot in (0, 1, 2, 3, 4, 6):
        table.entry_file(snapshot).unlink()
    table.edit_entry(5, lambda entry: entry["partitions"][1].update(rows=7, end=99))
    done = table.repair()
    assert done.ok, str(done)
    assert [table.entry(s) for s in range(7)] == kept
    assert log_of(table) == before
    # One that is committed and not published; one of a table without rows is no snapshot.
    table.delete_all(publish=False)
    table.delete_all(publish=False)
    done = table.repair()
    assert any("published snapshot 7" in action for action in done.actions), str(done)
    assert (done.ok, done.report.snapshots) == (True, 7), str(done)
    values = [record.value() for p in range(PARTITIONS) for record in table.records(p)]
    assert [table.records(p)[-1].value() for p in range(PARTITIONS)].count(values[-1]) == PARTITIONS
    table.drop_topic()
    done = table.repair()
    assert done.ok, str(done)
    assert [record.value() for p in range(PARTITIONS) for record in table.records(p)] == values
    if table.key:
        table.write(8)
        assert_log_is_table(table.path, table.servers, table.topic, PARTITIONS)


def test_what_retention_removed_stays_removed(table: Damaged) -> None:
    table.truncate(dict(enumerate(table.entry(2).ends)))
    kept = [table.entry(s) for s in range(5)]
    table.entry_file(3).unlink()
    table.forget_group()
    before = log_of(table)
    done = table.repair()
    assert done.ok, str(done)
    assert log_of(table) == before
    assert [table.entry(s) for s in range(5)] == kept


def test_a_log_that_retention_has_emptied_is_not_filled_again(table: Damaged) -> None:
    table.truncate({0: -1, 1: -1})
    table.forget_group()
    done = table.repair()
    assert done.ok, str(done)
    assert log_of(table) == []


def test_a_strangers_record_stays_and_is_told(table: Damaged) -> None:
    offset = table.send(0, b"hello")
    table.write(5)
    done = table.repair()
    assert [(d.kind, d.offset) for d in done.report.differences] == [(DifferenceKind.UNREADABLE, offset)]
    assert any("delete the topic and call log.repair() again" in text for text in done.advice)
    table.drop_topic()
    assert table.repair().ok


def test_a_hole_in_the_middle_is_told_and_not_filled_out_of_order(table: Damaged) -> None:
    before, after = table.entry(1).partitions[1].end, table.entry(2).partitions[1].end
    table.forge(
        lambda messages: [
            (m.key(), m.value(), m.headers())
            for m in messages
            if m.partition() != 1 or not before <= m.offset() < after
        ]
    )
    records = len(log_of(table))
    done = table.repair()
    assert [(d.kind, d.snapshot, d.partition) for d in done.report.differences] == [(DifferenceKind.MISSING, 2, 1)], (
        str(done)
    )
    assert any("out of order" in text for text in done.advice)
    assert len(log_of(table)) == records


def test_a_snapshot_whose_files_are_gone_is_told_and_not_skipped(table: Damaged) -> None:
    table.recreate_topic()
    table.change_file(2, 0).unlink()
    done = table.repair()
    assert not done.ok
    assert any("Not everything could be published" in text for text in done.advice)
    assert not table.entry_file(2).exists()


def test_the_commands_tell_of_differences_and_mend_them(table: Damaged) -> None:
    path = str(table.path)
    sound = RUN.invoke(app, ["verify", path])
    assert (sound.exit_code, "Log and table agree: 4 snapshots" in sound.stdout) == (0, True)
    table.entry_file(2).unlink()
    found = RUN.invoke(app, ["verify", path])
    assert found.exit_code == 1
    assert [word in found.stdout for word in ("index", "does not list it", "tablestore repair")] == [True] * 3
    mended = RUN.invoke(app, ["repair", path])
    assert mended.exit_code == 0, mended.stdout
    assert "rebuilt the index entry of snapshot 2" in mended.stdout
    assert RUN.invoke(app, ["verify", path]).exit_code == 0
    table.send(0, b"hello")
    told = RUN.invoke(app, ["repair", path])
    assert told.exit_code == 1
    assert "delete the topic" in told.stdout
