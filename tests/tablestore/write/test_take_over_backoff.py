"""Publishers keep out of each other's way: who was fenced leaves its snapshot to an owner that makes progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from log_system.index import IndexEntry, LogIndex
from log_system.kafka import published_positions
from log_system.kafka.log import KafkaLog
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from snapshot.records import ChangeSet
from snapshot.storage import Storage
from tablestore.write.publish import TakeOverBackoff, recover
from tablestore.write.writer import Writer
from tests.harness.local_writes import publisher_of, write
from tests.harness.table_harness import TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS


class Clock:
    """A clock that only waiting moves; somebody else may do something at each tick."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tick: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.tick()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(tmp_path: Path) -> LogIndex:
    return LogIndex(Storage.at(tmp_path))


def waited(turns: TakeOverBackoff, clock: Clock, index: LogIndex, snapshot: int = 9) -> float:
    began = clock.now
    turns.wait(index, snapshot)
    return clock.now - began


def test_nobody_waits_who_was_never_fenced(clock: Clock, index: LogIndex) -> None:
    assert waited(TakeOverBackoff(clock, clock.sleep), clock, index) == 0


def test_the_wait_grows_with_each_fencing_and_shrinks_with_each_publish(clock: Clock, index: LogIndex) -> None:
    turns = TakeOverBackoff(clock, clock.sleep)
    for doublings in range(1, 5):
        turns.fenced()
        assert 0.1 * 2**doublings * 0.5 <= waited(turns, clock, index) <= 0.1 * 2**doublings * 1.5 + 0.01
    for _ in range(4):
        turns.published()
    assert waited(turns, clock, index) == 0


def test_where_a_take_over_is_slow_the_wait_is_longer_up_to_a_bound(clock: Clock, index: LogIndex) -> None:
    turns = TakeOverBackoff(clock, clock.sleep)
    with turns.take_over():
        clock.now += 2
    turns.fenced()
    assert 2 <= waited(turns, clock, index) <= 6.01
    for _ in range(20):
        turns.fenced()
    assert waited(turns, clock, index) <= 10.01


def test_one_take_over_that_a_broker_has_delayed_makes_no_later_wait_longer(clock: Clock, index: LogIndex) -> None:
    turns = TakeOverBackoff(clock, clock.sleep)
    for seconds in (0.1, 5, 5):
        with turns.take_over():
            clock.now += seconds
    turns.fenced()
    assert waited(turns, clock, index) <= 0.1 * 2 * 1.5 + 0.01
    with turns.take_over():
        clock.now += 5
    assert waited(turns, clock, index) >= 5


def test_it_waits_as_long_as_the_log_moves_and_no_longer_than_needed(clock: Clock, index: LogIndex) -> None:
    turns, seen = TakeOverBackoff(clock, clock.sleep), [0]
    turns.fenced()

    def publish_now_and_then() -> None:
        # Every 40 ms, which is less than the shortest wait.
        if clock.now > 0.04 * (seen[0] + 1):
            seen[0] += 1
            index.put(IndexEntry(seen[0], 0, "append", ()))

    clock.tick = publish_now_and_then
    assert turns.wait(index, 30) == 30
    assert clock.now < 1.3


def test_an_owner_that_publishes_late_is_not_waited_for_again_and_again(clock: Clock, index: LogIndex) -> None:
    """A publisher service publishes what others leave, half a second after their commits."""
    turns, seen = TakeOverBackoff(clock, clock.sleep), 0
    for _ in range(4):
        turns.fenced()
    waits = []
    for snapshot in range(1, 8):
        due = clock.now + 0.5

        def publish_late(snapshot: int = snapshot, due: float = due) -> None:
            nonlocal seen
            if clock.now > due and seen < snapshot:
                seen = snapshot
                index.put(IndexEntry(snapshot, 0, "append", ()))

        clock.tick = publish_late
        waits.append(waited(turns, clock, index, snapshot))
    assert [wait > 0 for wait in waits] == [True, True, False, False, False, False, False]


@pytest.mark.crash
def test_a_fenced_writer_is_published_by_the_owner_without_taking_the_log_over(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablestore.write.publish._WAIT_SECONDS_MIN", 10.0)
    fenced, owner = rig.writer(), rig.writer()
    write(fenced, changes(1))
    write(owner, changes(2))
    taken = []
    real = KafkaPublisher.take_over
    monkeypatch.setattr(KafkaPublisher, "take_over", lambda self: (taken.append(self), real(self))[1])
    # It learns from its next write that it was fenced, and waits; the owner publishes both snapshots.
    thread = threading.Thread(target=write, args=(fenced, changes(3)))
    thread.start()
    while rig.table.files.latest() < 3:
        thread.join(0.01)
    write(owner, changes(4))
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert taken == []
    rig.audit()


def before_it_takes_over(
    publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch, others_act: Callable[[], object]
) -> list[int]:
    """Let others act each time a publisher is about to take the log over; return the count of these times."""
    real, taken = KafkaPublisher.take_over, [0]

    def take_over(taking: KafkaPublisher) -> None:
        if taking is publisher:
            taken[0] += 1
            others_act()
        real(taking)

    monkeypatch.setattr(KafkaPublisher, "take_over", take_over)
    return taken


@pytest.mark.crash
def test_what_others_publish_during_a_take_over_is_not_looked_up_in_the_log(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, others = publisher_of(rig.table), rig.writer()
    slow = Writer(rig.table, publisher)
    write(slow, changes(1))
    write(others, changes(2))
    scanned: list[int] = []
    real = published_positions.scan_ends

    def scan(log: KafkaLog, partition: int, start: int, last: int) -> Mapping[int, RegisterPosition]:
        scanned.append(last)
        return real(log, partition, start, last)

    monkeypatch.setattr(published_positions, "scan_ends", scan)
    taken = before_it_takes_over(publisher, monkeypatch, lambda: [write(others, changes(n)) for n in (4, 5, 6)])
    write(slow, changes(3))
    slow.discard()
    assert (taken, scanned) == ([1], [])
    rig.audit()


@pytest.mark.crash
def test_a_recovery_that_is_fenced_leaves_the_log_to_its_new_owner(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, others = publisher_of(rig.table), rig.writer()
    write(others, changes(1))
    real = KafkaPublisher.publish

    def fenced(publishing: KafkaPublisher, found: Sequence[ChangeSet]) -> list[IndexEntry]:
        # A writer at work takes over whenever this process is about to publish.
        if publishing is publisher:
            write(others, changes(3))
        return real(publishing, found)

    taken = before_it_takes_over(publisher, monkeypatch, lambda: rig.commit(2))
    monkeypatch.setattr(KafkaPublisher, "publish", fenced)
    recover(rig.table, publisher)
    assert taken == [1]
    rig.audit()
