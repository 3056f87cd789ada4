"""Verify: log, index, register and files are damaged in many ways, and each is found with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DIFFERENCES_MAX, Difference, DifferenceKind, Findings, Report
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tests.harness.damage import KINDS, PARTITIONS, ROWS, Damaged, raw
from tests.harness.local_writes import SCHEMA, publisher_of, run_here
from tests.harness.log_audit import verify


@pytest.fixture
def table(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", **getattr(request, "param", {}))


every_kind = pytest.mark.parametrize("table", KINDS, indirect=True)
only_key = pytest.mark.parametrize("table", [KINDS[0], KINDS[2]], indirect=True)


def places(found: list[Difference]) -> list[tuple[Any, ...]]:
    return [(d.snapshot, d.partition, d.offset) for d in found]


@every_kind
def test_a_sound_table_is_compared_whole(table: Damaged) -> None:
    report = table.verify()
    assert report.ok, str(report)
    changes = 3 * ROWS + (2 if table.key else ROWS)
    assert (report.snapshots, report.rows, report.pending, report.notes) == (4, changes, (), ())
    assert report.records == sum(len(table.records(p)) for p in range(PARTITIONS))
    assert "log and table agree (4 snapshots" in str(report)


def test_progress_reaches_its_end(table: Damaged) -> None:
    told: list[tuple[int, int]] = []
    verify(table.open(), lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@every_kind
def test_a_snapshot_not_published_is_pending_and_no_damage(table: Damaged) -> None:
    table.write(5, publish=False)
    table.write(6, publish=False)
    report = table.verify()
    assert report.ok, str(report)
    assert report.pending == (5, 6)
    assert "pending: snapshots 5 to 6" in str(report)


@only_key
def test_a_compaction_has_nothing_to_publish(table: Damaged) -> None:
    context = table.open()
    compact(context, run_here)
    assert context.files.latest() > context.newest_visible()
    report = table.verify()
    assert (report.ok, report.pending, report.compared.snapshot) == (True, (), context.newest_visible())
    table.write(7, publish=False)
    assert table.verify().pending == (5, 6)


# The index.


@pytest.mark.parametrize("lost", [[0], [2], [4], [3, 4], [0, 1, 2, 3, 4]], ids=str)
def test_lost_index_entries_are_found(table: Damaged, lost: list[int]) -> None:
    for snapshot in lost:
        table.entry_file(snapshot).unlink()
    report = table.verify()
    assert sorted((d.kind, d.snapshot) for d in report.differences) == [(DifferenceKind.INDEX, s) for s in lost]
    assert report.pending == ()


@pytest.mark.parametrize("keep", [0, 20])
def test_an_index_entry_cut_short_is_found(table: Damaged, keep: int) -> None:
    text = table.entry_file(2).read_bytes()
    table.entry_file(2).write_bytes(text[:keep])
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.INDEX, 2)


@every_kind
@pytest.mark.parametrize("what", ["start", "end", "records", "rows"])
def test_an_index_entry_with_a_wrong_number_is_found(table: Damaged, what: str) -> None:
    partition = table.partition_of(3)

    def edit(entry: dict[str, Any]) -> None:
        entry["partitions"][partition][what] += 1

    table.edit_entry(3, edit)
    found = table.verify().differences
    assert [(d.kind, d.snapshot, d.partition) for d in found] == [(DifferenceKind.INDEX, 3, partition)], found


@pytest.mark.parametrize("what", ["timestamp_ms", "kind", "snapshot", "partitions"])
def test_an_index_entry_that_says_something_else_is_found(table: Damaged, what: str) -> None:
    wrong = {"timestamp_ms": 1, "kind": "delete", "snapshot": 7, "partitions": []}[what]
    table.edit_entry(3, lambda entry: entry.update({what: wrong}))
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.INDEX, 3)


def test_an_index_entry_with_what_is_no_number_is_found(table: Damaged) -> None:
    table.edit_entry(3, lambda entry: entry["partitions"][0].update(end="12"))
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.INDEX, 3)


def test_an_index_ahead_of_the_table_is_found(table: Damaged) -> None:
    text = table.entry_file(4).read_text().replace('"snapshot": 4', '"snapshot": 5')
    table.entry_file(5).write_text(text)
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.INDEX, 5)
    assert "not committed" in found.text


def test_an_index_ahead_of_the_log_is_found(table: Damaged) -> None:
    table.write(5, publish=False)
    text = table.entry_file(3).read_text().replace('"snapshot": 3', '"snapshot": 5')
    table.entry_file(5).write_text(text)
    missing = table.found(DifferenceKind.MISSING)
    assert [(d.snapshot, d.partition) for d in missing] == [(5, 0), (5, 1)]


# The register.


def test_a_lost_register_is_found(table: Damaged) -> None:
    table.forget_group()
    assert [d.partition for d in table.found(DifferenceKind.REGISTER)] == [0, 1]


@pytest.mark.parametrize("snapshot", [2, 9])
def test_a_register_that_says_something_else_is_found(table: Damaged, snapshot: int) -> None:
    publisher = publisher_of(table.open())
    publisher.restore({1: RegisterPosition(snapshot, 1, 1, done=True, end=2)})
    publisher.discard()
    (found,) = table.verify().differences
    assert (found.kind, found.partition) == (DifferenceKind.REGISTER, 1)


# The log.


@every_kind
def test_a_strangers_record_between_snapshots_is_found(table: Damaged) -> None:
    partition = table.partition_of(3)
    offset = table.send(partition, b"hello", b"key")
    table.write(5)
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot, found.partition, found.offset) == (
        DifferenceKind.UNREADABLE,
        5,
        partition,
        offset,
    )


@every_kind
def test_a_strangers_record_at_the_end_is_found(table: Damaged) -> None:
    offset = table.send(0, b"hello")
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot, found.partition, found.offset) == (DifferenceKind.UNREADABLE, None, 0, offset)


@every_kind
@pytest.mark.parametrize("at_end", [False, True], ids=["between", "at end"])
def test_a_repeated_record_is_found(table: Damaged, *, at_end: bool) -> None:
    partition = table.partition_of(4)
    key, value, headers = raw(table.records(partition)[-1])
    offset = table.send(partition, value, key, headers)
    if not at_end:
        table.write(5)
    (found,) = table.verify().differences
    # In a table without a key the files of snapshot 5 may all be in the other partition.
    snapshot = None if at_end or not table.entry(5).partitions[partition].rows else 5
    assert (found.kind, found.snapshot, found.partition, found.offset) == (
        DifferenceKind.EXTRA,
        snapshot,
        partition,
        offset,
    )
    assert found.key is not None
    assert "id=" in found.key


def test_a_strangers_record_that_reads_like_ours_is_found(table: Damaged) -> None:
    offset = table.send(1, b'{"id":77,"v":"x"}', b'{"id":77}')
    table.write(5)
    (found,) = table.verify().differences
    assert (found.kind, found.partition, found.offset, found.key) == (DifferenceKind.EXTRA, 1, offset, "id=77")


@pytest.mark.parametrize("position", [b"1/1/1", None], ids=["with position", "snapshot only"])
def test_a_record_of_a_snapshot_that_is_not_committed_is_found(table: Damaged, position: bytes | None) -> None:
    headers = [("snapshot", b"9"), *([("position", position)] if position else [])]
    offset = table.send(0, b'{"id":1,"v":"x"}', b'{"id":1}', headers)
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot, found.partition, found.offset) == (DifferenceKind.EARLY, 9, 0, offset)


@every_kind
def test_a_record_with_another_value_is_found(table: Damaged) -> None:
    """Snapshot 5 is published by somebody else, with the headers it must have and a value it must not."""
    other = table.open()

    codec = other.log.settings.codec()
    table.write(5, publish=False)
    changes = other.files.changes(5, PARTITIONS)
    offsets = {}
    for partition in range(PARTITIONS):
        batch = next(changes.batches(partition)) if changes.rows(partition) else None
        if batch is None:
            continue
        values = batch.column(1).to_pylist()
        values[-1] = "forged"
        records = codec.encode(batch.set_column(1, batch.schema.field(1), pa.array(values)))
        for number, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            last = number == len(records.values) - 1
            position = RegisterPosition(5, batch.num_rows, len(records.values), done=True, end=0)
            headers = position.headers(batch.num_rows, other.spec.table_id) if last else None
            offsets[partition] = table.send(partition, value, key, headers)
    table.forget_group()
    found = table.found(DifferenceKind.CHANGED)
    assert places(found) == [(5, p, offset) for p, offset in offsets.items()]
    assert all("forged" in d.text and "v='5." in d.text for d in found)


@only_key
def test_a_hole_in_the_log_is_found(table: Damaged) -> None:
    """The log is recreated without snapshot 2 in partition 1."""
    before = table.entry(1).partitions[1].end
    after = table.entry(2).partitions[1].end
    table.forge(lambda messages: [raw(m) for m in messages if m.partition() != 1 or not before <= m.offset() < after])
    (found,) = table.found(DifferenceKind.MISSING)
    assert (found.snapshot, found.partition) == (2, 1)
    assert "the snapshot is missing" in found.text


def test_some_missing_records_within_a_snapshot_are_found(table: Damaged) -> None:
    lost = table.records(0)[1]
    table.forge(lambda messages: [raw(m) for m in messages if m.partition() != 0 or m.offset() != lost.offset()])
    (found,) = table.found(DifferenceKind.MISSING)
    assert (found.snapshot, found.partition, found.offset) == (1, 0, lost.offset())
    assert "the log lacks 1 change here" in found.text


def test_swapped_records_are_found(table: Damaged) -> None:
    def swap(messages: list[Any]) -> list[Any]:
        records = [raw(m) for m in messages]
        records[0], records[1] = records[1], records[0]
        return records

    table.forge(swap)
    assert {(d.snapshot, d.partition, d.offset) for d in table.found(DifferenceKind.CHANGED)} == {
        (1, p, o) for p in range(PARTITIONS) for o in range(2)
    }


@every_kind
def test_a_log_made_anew_and_empty_is_found(table: Damaged) -> None:
    table.recreate_topic()
    found = {(d.snapshot, d.partition) for d in table.found(DifferenceKind.MISSING)}
    assert found == {(s, p) for s in range(1, 5) for p, r in enumerate(table.entry(s).partitions) if r.rows}


def test_a_topic_that_is_gone_is_found(table: Damaged) -> None:
    table.drop_topic()
    (found,) = table.verify().differences
    assert found.kind is DifferenceKind.TOPIC


@every_kind
def test_what_retention_removed_is_said_and_the_rest_is_compared(table: Damaged) -> None:
    ends = dict(enumerate(table.entry(2).ends))
    table.truncate(ends)
    report = table.verify()
    assert report.ok, str(report)
    assert len(report.notes) == PARTITIONS
    # In a table without a key, snapshot 3 may have nothing in partition 0.
    assert re.search("snapshots below [34] are not compared", report.notes[0])
    assert report.snapshots == 2


def test_a_snapshot_cut_in_two_by_retention_is_passed_over(table: Damaged) -> None:
    table.truncate({0: table.entry(2).partitions[0].start + 3})
    report = table.verify()
    assert report.ok, str(report)
    assert "snapshots below 3 are not compared" in report.notes[0]


def test_a_log_that_retention_has_emptied_is_no_damage(table: Damaged) -> None:
    table.truncate({0: -1, 1: -1})
    report = table.verify()
    assert report.ok, str(report)
    assert report.snapshots == 0
    table.write(5)
    assert table.verify().ok


# The table's files.


@every_kind
def test_a_missing_change_file_is_found(table: Damaged) -> None:
    table.change_file(3, table.partition_of(3)).unlink()
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.FILES, 3)


def test_a_damaged_change_file_is_found(table: Damaged) -> None:
    file = table.change_file(3, 0)
    file.write_bytes(file.read_bytes()[:100])
    (found,) = table.verify().differences
    assert (found.kind, found.snapshot) == (DifferenceKind.FILES, 3)


@pytest.mark.parametrize("table", [KINDS[0]], indirect=True)
@pytest.mark.parametrize("call", range(4))
def test_snapshots_that_expire_while_they_are_compared_are_no_damage(table: Damaged, call: int) -> None:
    compact(table.open(), run_here)
    table.write(5)
    table.write(6)
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        if calls == call:
            expire(table.open(), rules_of(table.open(), "0 s", 1))
        calls += 1

    report = verify(table.open(), progress)
    assert calls > call
    assert table.open().files.oldest() == table.open().files.latest() - 1
    assert report.ok, str(report)
    assert not report.pending


def test_a_table_without_a_log_has_nothing_to_compare(tmp_path: Path) -> None:
    made = create_drop.create(TableDefinition(str(tmp_path / "t"), SCHEMA, primary_key=["id"], options={"bucket": 1}))
    assert verify(made).ok


def test_a_report_names_a_bounded_number_of_differences() -> None:
    findings = Findings()
    for offset in range(DIFFERENCES_MAX + 5):
        findings.add(DifferenceKind.EXTRA, "a stranger's", offset=offset)
    report = Report("t", tuple(findings.differences), findings.more)
    assert (len(report.differences), report.more, report.ok) == (DIFFERENCES_MAX, 5, False)
    assert "and 5 more" in str(report)
