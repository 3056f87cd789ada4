"""The service compares the log with the table as both grow: from where it stopped, at a limited rate, and all of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from log_system.index import INDEX
from log_system.kafka.client.consumers import CONSUMERS
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from snapshot.errors import NotFoundError, UnavailableError
from snapshot.storage import Storage
from tablestore import create_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.service.attempts import Schedule
from tablestore.service.verifier import TableVerifier, Throttle
from tablestore.service.verify_position import FILE, Verified, VerifiedFile
from tests.harness.damage import Damaged
from tests.harness.waiting import until

HOUR = 3_600.0


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t")


def verifier_of(
    table: Damaged, *, every: float = 0.0, whole: float = HOUR, throttle: Throttle | None = None
) -> TableVerifier:
    return TableVerifier(str(table.path), {}, Schedule(verify=every, verify_whole=whole), throttle)


def finish(verifier: TableVerifier) -> None:
    while verifier.round():
        pass


def stored(table: Damaged) -> Verified:
    return Verified.from_json((table.path / INDEX / FILE).read_bytes())


def clients() -> int:
    """Return how many clients librdkafka has in this process, by their main threads."""
    return [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")].count("rdk:main")


def kinds(verifier: TableVerifier) -> list[tuple[Any, ...]]:
    return [(d.kind, d.snapshot) for d in verifier.state.differences]


def test_a_restarted_service_goes_on_where_the_last_one_stopped(table: Damaged) -> None:
    first = verifier_of(table)
    finish(first)
    whole = first.state.records
    assert (first.state.snapshot, first.state.count, first.state.whole_ms > 0) == (4, 0, True)
    table.write(5)
    second = verifier_of(table)
    finish(second)
    assert second.state.snapshot == 5
    assert 0 < second.state.records < whole
    assert second.state.whole_ms == first.state.whole_ms


def test_the_position_of_a_table_that_is_dropped_meanwhile_is_not_in_the_way_of_the_next_one(
    table: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = VerifiedFile.write

    def late(file: VerifiedFile, state: Verified) -> Verified:
        create_drop.drop(TableContext.open(str(table.path)))
        return write(file, state)

    monkeypatch.setattr(VerifiedFile, "write", late)
    with pytest.raises(NotFoundError):
        finish(verifier_of(table))
    create_local(table.path, "id int", primary_key="id")


def test_a_whole_comparison_that_was_dated_by_a_clock_ahead_is_made_again(table: Damaged) -> None:
    finish(verifier_of(table))
    in_a_year = int(time.time() + 365 * 24 * HOUR) * 1000
    (table.path / INDEX / FILE).write_bytes(replace(stored(table), whole_ms=in_a_year).to_json())
    again = verifier_of(table)
    finish(again)
    assert again.state.whole_ms <= time.time() * 1000
    assert stored(table).whole_ms == again.state.whole_ms


@pytest.mark.parametrize("text", [b"", b"{}", b'{"table": 1', b"[]"])
def test_a_damaged_position_begins_anew(table: Damaged, text: bytes) -> None:
    finish(verifier_of(table))
    (table.path / INDEX / FILE).write_bytes(text)
    again = verifier_of(table)
    finish(again)
    assert (again.state.snapshot, again.state.count) == (4, 0)
    assert stored(table).latest.snapshot == 4


def test_a_stop_between_steps_loses_one_step_only(table: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.service.verifier._STEP_SNAPSHOTS", 1)
    put, puts = Storage.put, []

    def failing(storage: Storage, name: str, data: bytes, folder: int | None = None) -> None:
        if name == f"{INDEX}/{FILE}":
            puts.append(name)
            if len(puts) == 3:
                message = "the disk is full"
                raise UnavailableError(message)
        put(storage, name, data, folder)

    monkeypatch.setattr(Storage, "put", failing)
    with pytest.raises(UnavailableError, match="full"):
        finish(verifier_of(table))
    assert stored(table).latest.snapshot == 2
    second = verifier_of(table)
    finish(second)
    assert second.state.snapshot == 4
    assert stored(table).latest.compared == table.open().compared_up_to(4)


def test_an_extra_record_is_found_at_once_and_a_repaired_entry_is_forgotten(table: Damaged) -> None:
    verifier = verifier_of(table)
    finish(verifier)
    message = table.records(0)[0]
    table.send(0, message.value(), message.key())
    table.write(5)
    lost = table.entry_file(5)
    kept = lost.read_bytes()
    lost.unlink()
    finish(verifier)
    assert set(kinds(verifier)) == {(DifferenceKind.EXTRA, 5), (DifferenceKind.INDEX, 5)}
    # What a service knows, the next one does.
    other = verifier_of(table)
    finish(other)
    assert set(kinds(other)) == set(kinds(verifier))
    lost.write_bytes(kept)
    finish(other)
    assert kinds(other) == [(DifferenceKind.EXTRA, 5)], "it stays in the log"
    assert (other.state.snapshot, other.state.count) == (5, 1)


@pytest.mark.parametrize("steps", [1, 1_000])
def test_damage_to_what_was_compared_is_found_by_the_next_whole_comparison(
    table: Damaged, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr("tablestore.service.verifier._STEP_SNAPSHOTS", steps)
    finish(verifier_of(table))
    table.change_file(2, table.partition_of(2)).unlink()
    wrong = table.entry_file(2).read_text().replace('"kind": "upsert"', '"kind": "delete"')
    table.entry_file(2).write_text(wrong)
    early = verifier_of(table)
    finish(early)
    assert kinds(early) == [], "nothing after it has changed"
    verifier = verifier_of(table, whole=0.0)
    rounds = 1
    while verifier.round():
        rounds += 1
        assert stored(table).whole is not None
    assert set(kinds(verifier)) == {(DifferenceKind.FILES, 2), (DifferenceKind.INDEX, 2)}
    assert rounds == (4 if steps == 1 else 1)
    assert verifier.state.whole_ms > early.state.whole_ms


def test_a_whole_comparison_is_resumed_too(table: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablestore.service.verifier._STEP_SNAPSHOTS", 2)
    finish(verifier_of(table))
    assert verifier_of(table, whole=0.0).round()
    assert stored(table).whole.snapshot == 2
    assert not verifier_of(table, whole=0.0).round()
    assert stored(table).whole is None


def test_a_lost_topic_is_found_and_compared_again_when_it_is_back(table: Damaged) -> None:
    verifier = verifier_of(table)
    finish(verifier)
    table.recreate_topic()
    verifier.round()
    assert {kind for kind, _ in kinds(verifier)} >= {DifferenceKind.MISSING}
    table.repair()
    finish(again := verifier_of(table))
    assert again.state.count == 0, again.state.differences
    assert again.state.snapshot == table.open().files.latest() >= 4


def test_services_share_the_work(table: Damaged) -> None:
    one, other = verifier_of(table, every=HOUR), verifier_of(table, every=HOUR)
    finish(one)
    finish(other)
    assert (one.state.snapshot, other.state.snapshot) == (4, 4)
    assert (one.state.records > 0, other.state.records) == (True, 0)


def test_another_table_at_the_path_begins_anew(tmp_path: Path) -> None:
    state = Verified("another")
    (tmp_path / "t" / INDEX).mkdir(parents=True)
    (tmp_path / "t" / INDEX / FILE).write_bytes(state.to_json())
    assert Verified.from_json(replace(state, whole_ms=5).to_json()).whole_ms == 5


def test_of_an_eventual_log_the_keys_that_changed_are_compared(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    table = Damaged(kafka.bootstrap_servers, topic(), tmp_path / "e", log__consistency="eventual")
    first = verifier_of(table)
    finish(first)
    assert (first.state.snapshot, first.state.count, first.state.whole_ms > 0) == (4, 0, True)
    table.write_rows([(1, "later")])
    second = verifier_of(table)
    finish(second)
    assert (second.state.snapshot, second.state.count, second.state.records) == (5, 0, 1)
    assert second.state.whole_ms == first.state.whole_ms
    table.settle_past(0, table.send(0, b'{"id": 77, "v": "x"}', b'{"id": 77}') + 1)
    finish(second)
    assert kinds(second) == [(DifferenceKind.EXTRA, None)]
    # What a service knows, the next one does, and it vanishes once it is repaired.
    finish(other := verifier_of(table))
    assert kinds(other) == [(DifferenceKind.EXTRA, None)]
    table.repair()
    finish(other)
    assert other.state.count == 0, other.state.differences


def test_the_rate_is_limited_and_a_stop_is_not_delayed(table: Damaged) -> None:
    """All records are read twice, and half of what the limit allows for a second is there."""
    stop = Event()
    fast = verifier_of(table, throttle=Throttle(1e9))
    finish(fast)
    (table.path / INDEX / FILE).unlink()
    slow = verifier_of(table, throttle=Throttle(2 * fast.state.records))
    began = time.monotonic()
    finish(slow)
    assert time.monotonic() - began > 0.8
    (table.path / INDEX / FILE).unlink()
    stuck = verifier_of(table, throttle=Throttle(0.001))
    thread = Thread(target=stuck.run, args=(stop,))
    thread.start()
    while not stuck.state.running:
        time.sleep(0.01)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert not (table.path / INDEX / FILE).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_verifier_that_waits_keeps_no_client(table: Damaged) -> None:
    finish(verifier_of(table))
    CONSUMERS.close()
    # A service leaves the round to another one that has just made it.
    (table.path / INDEX / FILE).unlink()
    before, verifier, stop = clients(), verifier_of(table, every=HOUR), Event()
    thread = Thread(target=verifier.run, args=(stop,))
    thread.start()
    try:
        until(lambda: verifier.state.snapshot == 4, 60)
        until(lambda: clients() <= before, 60)
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join()


def test_the_position_is_no_entry_of_the_index(table: Damaged) -> None:
    finish(verifier_of(table))
    assert json.loads((table.path / INDEX / FILE).read_text())["latest"]["compared"]["snapshot"] == 4
    assert table.open().index.snapshots() == [0, 1, 2, 3, 4]
    report = table.verify()
    assert report.ok, str(report)
