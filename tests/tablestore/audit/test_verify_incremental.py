"""Verify from a snapshot on: what follows is compared, and damage there is found as in the whole log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from log_system.report import Compared, DifferenceKind, Report
from snapshot.errors import NotFoundError
from tablestore import open_local
from tests.harness.damage import KINDS, PARTITIONS, Damaged, raw


@pytest.fixture
def table(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", **getattr(request, "param", {}))


every_kind = pytest.mark.parametrize("table", KINDS, indirect=True)


def compare(table: Damaged, after: Compared | None = None, through: int | None = None) -> Report:
    return table.open().log.verify(None, after, through)


def found(report: Report) -> list[tuple[Any, ...]]:
    return [(d.kind, d.snapshot, d.partition) for d in report.differences]


@every_kind
def test_the_increments_together_are_the_whole(table: Damaged) -> None:
    whole = table.verify()
    parts: list[Report] = []
    for through in (1, 2, 3, None):
        parts.append(compare(table, parts[-1].compared if parts else None, through))
    assert [part.ok for part in parts] == [True] * 4, [str(part) for part in parts]
    assert [part.snapshots for part in parts] == [1] * 4
    assert sum(part.records for part in parts) == whole.records
    assert sum(part.rows for part in parts) == whole.rows
    assert [part.after for part in parts] == [0, 1, 2, 3]
    assert parts[-1].compared == whole.compared == table.open().compared_up_to(4)


@every_kind
def test_an_increment_reads_only_what_follows(table: Damaged) -> None:
    before = table.verify().compared
    assert before is not None
    nothing = compare(table, before)
    assert (nothing.ok, nothing.snapshots, nothing.records, nothing.rows) == (True, 0, 0, 0), str(nothing)
    table.write(5)
    table.write(6, publish=False)
    report = compare(table, before)
    assert report.ok, str(report)
    assert (report.snapshots, report.pending, report.compared.snapshot) == (1, (6,), 5)
    assert report.records < table.verify().records
    again = compare(table, report.compared)
    assert (again.ok, again.pending, again.records) == (True, (6,), 0)


@every_kind
def test_a_record_of_another_producer_is_found_by_the_next_increment(table: Damaged) -> None:
    before, message = table.verify().compared, table.records(0)[0]
    offset = table.send(0, message.value(), message.key())
    at_end = compare(table, before)
    assert [(d.kind, d.partition, d.offset) for d in at_end.differences] == [(DifferenceKind.EXTRA, 0, offset)]
    table.write(5)
    inside = compare(table, at_end.compared)
    within = 5 if table.open().index.get(5).partitions[0].rows else None
    assert [(d.kind, d.snapshot, d.offset) for d in inside.differences] == [(DifferenceKind.EXTRA, within, offset)]
    assert compare(table, inside.compared).ok == (within is not None)


def test_a_lost_record_is_found_by_the_next_increment(table: Damaged) -> None:
    before = table.verify().compared
    table.write(5)
    last = len(table.records(0)) - 1
    kept: list[int] = []

    def without_last(messages: list[Any]) -> list[tuple[Any, Any, Any]]:
        kept.append(1)
        return [raw(m) for n, m in enumerate(messages) if len(kept) > 1 or n != last - 1]

    table.forge(without_last)
    report = compare(table, before)
    assert report.after == 0, "another topic: everything is compared"
    assert (DifferenceKind.MISSING, 5, 0) in found(report)


@every_kind
def test_a_commit_replaced_by_another_is_found_by_the_next_increment(table: Damaged) -> None:
    before = table.verify().compared
    table.edit_entry(4, lambda entry: None)
    folder = "_changes/_delta_log" if table.key else "_delta_log"
    file = table.path / folder / f"{4:020d}.json"
    text = file.read_text()
    file.write_text(text.replace('"timestamp":', '"timestamp": 1', 1) + "\n")
    report = compare(table, before)
    assert report.after == 0, "its basis is another commit: everything is compared"
    assert any(d.kind is DifferenceKind.HISTORY and d.snapshot == 4 for d in report.differences), str(report)


def test_a_log_that_ends_before_is_compared_whole(table: Damaged) -> None:
    before = table.verify().compared
    table.recreate_topic()
    report = compare(table, Compared(before.snapshot, before.ends))
    assert report.after == 0
    assert {d.kind for d in report.differences} >= {DifferenceKind.MISSING}


@pytest.mark.parametrize("lost", [5, 6])
def test_a_lost_entry_after_is_found(table: Damaged, lost: int) -> None:
    before = table.verify().compared
    for batch in (5, 6):
        table.write(batch)
    table.entry_file(lost).unlink()
    assert found(compare(table, before)) == [(DifferenceKind.INDEX, lost, None)]


def test_an_entry_with_a_wrong_end_is_found_on_either_side(table: Damaged) -> None:
    partition = table.partition_of(2)
    table.edit_entry(2, lambda entry: entry["partitions"][partition].update(end=1 + table.entry(2).ends[partition]))
    assert (DifferenceKind.INDEX, 2, partition) in found(compare(table, None, 2))
    assert not compare(table, table.open().compared_up_to(2)).ok, "it begins where no snapshot ends"


def test_retention_may_pass_what_was_compared(table: Damaged) -> None:
    before = compare(table, None, 2).compared
    table.truncate(dict(enumerate(table.entry(3).ends)))
    report = compare(table, before)
    assert report.ok, str(report)
    assert any("retention" in note for note in report.notes)
    assert report.compared.snapshot == 4


def test_a_register_that_is_ahead_is_found(table: Damaged) -> None:
    before = table.verify().compared
    table.forget_group()
    assert found(compare(table, before)) == [(DifferenceKind.REGISTER, None, p) for p in range(PARTITIONS)]


def test_the_user_names_a_snapshot(table: Damaged) -> None:
    with open_local(table.path) as local:
        report = local.verify(from_snapshot=3)
        assert (report.snapshots, report.after, report.ok) == (2, 2, True)
        assert local.verify(from_snapshot=1).snapshots == local.verify().snapshots == 4
        with pytest.raises(NotFoundError, match="index does not list 8"):
            local.verify(from_snapshot=9)
