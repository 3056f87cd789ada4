"""verify() and repair() of an eventual log: what is wrong in its fold, index or register is found and mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from log_system.index import LogIndex
from log_system.report import DifferenceKind, Report
from snapshot.delta.log import DeltaLog
from tablestore.write.writer import Writer
from tests.harness.damage import PARTITIONS, ROWS, Damaged, raw
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, fold, make_table, rows_of, write
from tests.harness.log_audit import verify

BOTH = pytest.mark.parametrize("story", ["json", "arrow"], indirect=True)


@pytest.fixture
def story(request: Any, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    options = {"log__consistency": "eventual", "log__format": getattr(request, "param", "json")}
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", **options)


def assert_right(story: Damaged) -> None:
    report = story.verify()
    assert report.ok, str(report)
    assert not report.pending
    log = drain(story.servers, story.topic, PARTITIONS)
    assert fold(change for partition in log for change in partition) == rows_of(story.open())


def key_of(story: Damaged, partition: int) -> int:
    """A key of a partition that is in the table."""
    alive = rows_of(story.open())
    return next(json.loads(m.key())["id"] for m in story.records(partition) if json.loads(m.key())["id"] in alive)


def add_partitions(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()


def send(story: Damaged, partition: int, key: int, value: str | None) -> int:
    text = None if value is None else json.dumps({"id": key, "v": value}).encode()
    return story.send(partition, text, json.dumps({"id": key}).encode())


@BOTH
def test_a_log_that_is_right_is_ok_and_repair_leaves_it(story: Damaged) -> None:
    assert_right(story)
    before = sum(map(len, drain(story.servers, story.topic, PARTITIONS)))
    assert story.repair().actions == ()
    assert sum(map(len, drain(story.servers, story.topic, PARTITIONS))) == before
    assert_right(story)


def test_what_a_write_under_way_has_sent_is_a_note(story: Damaged) -> None:
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        story.write(7)
    report = story.verify()
    assert report.ok, str(report)
    assert any("unsettled" in note for note in report.notes)
    repaired = story.repair()
    assert any("sent the committed value" in action for action in repaired.actions)
    assert not repaired.report.notes
    assert_right(story)


def test_a_snapshot_that_is_committed_and_not_settled_is_pending(story: Damaged) -> None:
    with failing(LogIndex, "put"), pytest.raises(Crash):
        story.write(7)
    story.write(8, publish=False)
    report = story.verify()
    assert report.ok, str(report)
    assert report.pending == (5, 6)
    story.repair()
    assert_right(story)


@pytest.mark.parametrize("value", ["wrong", None])
def test_a_strangers_record_is_found_with_key_and_offset_and_overwritten(story: Damaged, value: str | None) -> None:
    key = key_of(story, 1)
    offset = send(story, 1, key, value)
    story.settle_past(1, offset + 1)
    (found,) = story.found(DifferenceKind.CHANGED)
    assert (found.partition, found.offset, found.key) == (1, offset, f"id={key}")
    assert story.repair().ok
    assert_right(story)


def test_a_log_to_which_partitions_were_added_is_compared_and_repaired(story: Damaged) -> None:
    add_partitions(story.servers, story.topic, PARTITIONS + 3)
    story.write(7)
    assert_right(story)
    assert_key_is_found_and_deleted(story)


def test_a_key_that_the_table_does_not_have_is_found_and_deleted(story: Damaged) -> None:
    assert_key_is_found_and_deleted(story)


def assert_key_is_found_and_deleted(story: Damaged) -> None:
    """Check that a record of a key that the table does not have is found and repaired."""
    offset = send(story, 0, 77, "stranger")
    story.settle_past(0, offset + 1)
    (found,) = story.found(DifferenceKind.EXTRA)
    assert (found.partition, found.offset, found.key) == (0, offset, "id=77")
    assert story.repair().ok
    assert_right(story)


def since(story: Damaged, snapshot: int) -> Report:
    """Compare what follows a snapshot, with nothing cached."""
    table = story.open()
    return table.log.verify(None, table.compared_up_to(snapshot))


@BOTH
def test_a_comparison_goes_on_where_the_last_one_ended(story: Damaged) -> None:
    whole = story.verify()
    assert whole.compared == story.open().compared_up_to(4)
    story.write_rows([(2, "changed"), (3, None)])
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        story.write_rows([(4, "never committed")])
    story.write_rows([(5, "changed")])
    report = since(story, 4)
    assert report.ok, str(report)
    assert (report.after, report.compared.snapshot) == (4, 6)
    assert 0 < report.records <= story.verify().records - whole.records
    again = story.open().log.verify(None, report.compared)
    assert (again.ok, again.after, again.records) == (True, 6, 0)


def test_a_comparison_of_a_part_notes_what_is_not_settled(story: Damaged) -> None:
    story.write_rows([(2, "settled")])
    with failing(LogIndex, "put"), pytest.raises(Crash):
        story.write(7)
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        story.write(8, publish=False)
    report = since(story, 4)
    assert report.ok, str(report)
    assert (report.after, report.pending) == (4, (6,))
    assert any("unsettled" in note for note in report.notes)


@pytest.mark.parametrize("value", ["wrong", None])
def test_a_comparison_of_a_part_finds_a_wrong_record_after_it(story: Damaged, value: str | None) -> None:
    key = key_of(story, 1)
    offset = send(story, 1, key, value)
    story.settle_past(1, offset + 1)
    assert [(d.kind, d.offset, d.key) for d in since(story, 4).differences] == [
        (DifferenceKind.CHANGED, offset, f"id={key}")
    ]


def test_a_comparison_of_a_part_finds_that_a_change_is_not_in_the_log(story: Damaged) -> None:
    story.write_rows([(n, "changed") for n in range(ROWS)])
    lost, other = story.records(1)[-2:]
    story.forge(lambda held: [raw(other) if m.value() == lost.value() else raw(m) for m in held])
    for partition in range(PARTITIONS):
        story.settle_past(partition, story.entry(5).ends[partition])
    report = since(story, 4)
    assert [(d.kind, d.key) for d in report.differences] == [
        (DifferenceKind.CHANGED, f"id={json.loads(lost.key())['id']}")
    ]
    assert report.after == 0, "what it had before is found by comparing the whole log"


@pytest.mark.parametrize(
    "other", [{"topic": "another"}, {"ends": (1_000, 0)}, {"ends": (0,)}, {"commit": "another"}, {"snapshot": 5}, {}]
)
def test_all_keys_are_compared_if_what_was_compared_is_gone(story: Damaged, other: dict[str, Any]) -> None:
    table = story.open()
    before = table.compared_up_to(2)
    assert table.log.verify(None, before).after == 2
    if not other:
        story.truncate({0: before.ends[0] + 1})
    report = table.log.verify(None, replace(before, **other))
    assert report.ok, str(report)
    assert report.after == 0


def test_a_record_that_cannot_be_read_is_found(story: Damaged) -> None:
    story.send(0, b"{", b"{")
    (found,) = story.found(DifferenceKind.UNREADABLE)
    assert found.partition == 0


@pytest.mark.parametrize("damage", ["lost", "cut", "not json", "ahead"])
def test_a_damaged_index_is_found_and_rebuilt(story: Damaged, damage: str) -> None:
    right = story.entry(2)
    if damage == "lost":
        story.entry_file(2).unlink()
    elif damage == "cut":
        story.edit_entry(2, lambda raw: raw["partitions"].pop())
    elif damage == "not json":
        story.entry_file(2).write_text("{")
    else:
        raw = json.loads(story.entry_file(4).read_text()) | {"snapshot": 5}
        story.entry_file(5).write_text(json.dumps(raw))
    (found,) = story.found(DifferenceKind.INDEX)
    assert found.snapshot == (5 if damage == "ahead" else 2)
    repaired = story.repair()
    assert repaired.ok, str(repaired)
    assert len(repaired.actions) == 1
    assert story.entry(2) == right
    assert_right(story)


def test_a_lost_register_is_found_and_set_again(story: Damaged) -> None:
    story.forget_group()
    assert len(story.found(DifferenceKind.REGISTER)) == PARTITIONS
    assert story.repair().ok
    assert_right(story)


@pytest.mark.parametrize("key", [True, False], ids=["key", "append"])
def test_first_snapshots_that_nobody_has_published_are_pending(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], key: bool
) -> None:
    options = {"log__format": "arrow", "log__consistency": "eventual"}
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), key=key, **options)
    write(Writer(table, None), [(1, "a")])
    report = verify(table)
    assert report.ok, str(report)
    assert report.pending == (1,)


@pytest.mark.parametrize("gone", ["emptied", "deleted"])
def test_a_topic_made_anew_gets_every_row_again(story: Damaged, gone: str) -> None:
    if gone == "emptied":
        story.recreate_topic()
        assert {d.kind for d in story.verify().differences} == {DifferenceKind.MISSING, DifferenceKind.REGISTER}
    else:
        story.drop_topic()
        assert [d.kind for d in story.verify().differences] == [DifferenceKind.TOPIC]
    repaired = story.repair()
    assert repaired.ok, str(repaired)
    assert_right(story)
    # The newest snapshot, which keeps the id of the new topic, has all of its records.
    entry = story.entry(story.open().files.latest())
    assert [p.start for p in entry.partitions] == [0, 0]
    story.write(9)
    assert_right(story)


def test_what_retention_has_removed_is_noted_and_not_compared(story: Damaged) -> None:
    story.truncate({0: story.entry(3).ends[0]})
    report = story.verify()
    assert report.ok, str(report)
    assert any("partition 0: retention" in note for note in report.notes)
