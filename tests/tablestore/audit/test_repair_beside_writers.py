"""Repair beside others at work, and repairs that die: nothing is lost, doubled or early, whatever comes when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from log_system.index import LogIndex
from log_system.kafka.audit import repair as repair_module
from log_system.kafka.audit import verify_eventual
from log_system.kafka.client.admin_requests import describe_topic
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.topic_storage import TopicStorage
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.errors import DataLostError, FencedError, NotFoundError, TableStoreError, UnavailableError
from tablestore.ddl import create_drop
from tablestore.write import writer as writer_module
from tests.harness.damage import PARTITIONS, Damaged, lose_end, lose_index, lose_register, lose_topic
from tests.harness.faults import Crash, failing, preceded
from tests.harness.local_writes import drain, fold, make_table, rows_of
from tests.harness.table_audit import assert_index_is_true, audit
from tests.harness.waiting import PATIENCE_SECONDS

Point = tuple[Any, str, int]
POINTS: list[Point] = [
    (KafkaPublisher, "abort_hanging", 1),
    (repair_module, "inspect_log", 1),
    (LogIndex, "delete", 1),
    (LogIndex, "delete", 2),
    (KafkaPublisher, "restore", 1),
    (LogIndex, "put", 1),
    (KafkaPublisher, "take_over", 2),
    (KafkaPublisher, "publish", 1),
]
"""Steps of a repair: who has the method, its name, and the number of the call."""
DAMAGES = {lose_end: POINTS, lose_register: POINTS[4:6], lose_index: POINTS[5:6], lose_topic: POINTS[4:6]}
STEPS = [
    pytest.param(damage, point, id=f"{damage.__name__}-{point[1]}-{point[2]}")
    for damage, points in DAMAGES.items()
    for point in points
]


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Damaged:
    return Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t")


def finish(table: Damaged) -> None:
    """Repair until it is done, and write: nothing is lost, doubled, early or out of order."""
    for _ in range(3):
        with suppress(FencedError, UnavailableError):
            done = table.repair()
            break
    assert done.ok, str(done)
    table.write(9)
    report = table.verify()
    assert report.ok, str(report)
    assert not report.pending
    audit(table.path, table.servers, table.topic, PARTITIONS)
    assert_index_is_true(table.path, PARTITIONS)


@pytest.mark.parametrize("other", [lambda table: table.write(7), Damaged.repair], ids=["write", "repair"])
@pytest.mark.parametrize(("damage", "point"), STEPS)
def test_others_write_or_repair_at_any_step(
    table: Damaged, damage: Callable[[Damaged], None], point: Point, other: Callable[[Damaged], object]
) -> None:
    damage(table)

    def act() -> None:
        with suppress(TableStoreError):
            other(table)

    owner, name, at = point
    with suppress(FencedError, UnavailableError), preceded(owner, name, act, at=at):
        table.repair()
    finish(table)


def test_a_repair_is_not_disturbed_by_those_who_find_the_log_damaged(table: Damaged) -> None:
    """A service tries every two seconds to publish, and a repair of a long log takes longer."""
    lose_end(table)

    def find_out() -> None:
        with pytest.raises(DataLostError):
            table.write(7)

    with preceded(repair_module, "inspect_log", find_out):
        assert table.repair().ok
    audit(table.path, table.servers, table.topic, PARTITIONS)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("damage", "point"), STEPS)
def test_a_repair_that_dies_at_any_step_lets_nobody_publish_behind_what_is_lost(
    table: Damaged, damage: Callable[[Damaged], None], point: Point, *, after: bool
) -> None:
    damage(table)
    owner, name, at = point
    # Not each damage has something to do in each step.
    with suppress(Crash), failing(owner, name, after=after, hits=range(at, at + 1)):
        table.repair()
    with suppress(TableStoreError):
        table.write(7)
    finish(table)


@pytest.mark.parametrize(
    ("owner", "name", "is_lost"),
    [(repair_module, "describe_topic", False), (TopicStorage, "ensure", True), (DeltaLog, "alter", True)],
    ids=["before it looks for the topic", "before it creates the topic", "before it stores the topic's id"],
)
def test_a_repair_beside_a_drop_leaves_no_topic(table: Damaged, owner: Any, name: str, is_lost: bool) -> None:
    client = table.open().log.settings.client
    if is_lost:
        table.drop_topic()
    # Another table may already be created with a topic of the same name.
    never = nullcontext() if is_lost else failing(TopicStorage, "ensure")
    dropping = preceded(owner, name, lambda: create_drop.drop(table.open()))
    with never, dropping, pytest.raises(NotFoundError):
        table.repair()
    assert describe_topic(client, table.topic) is None
    assert make_table(table.path, table.servers, table.topic).spec.owns_topic


def test_a_repair_of_an_eventual_log_does_not_list_what_was_committed_since(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    """The repair undoes the records of a write that is under way, as those of a failed one; then the write commits."""
    table = Damaged(kafka.bootstrap_servers, topic(), tmp_path / "t", log__consistency="eventual")
    settled, committed = Event(), Event()

    def rebuild() -> None:
        settled.set()
        assert committed.wait(PATIENCE_SECONDS)

    def repair() -> None:
        with preceded(verify_eventual, "_rebuild", rebuild):
            table.repair()

    thread = Thread(target=repair)

    def start() -> None:
        thread.start()
        assert settled.wait(PATIENCE_SECONDS)

    def end() -> None:
        committed.set()
        thread.join(PATIENCE_SECONDS)

    with preceded(DeltaLog, "commit", start), preceded(writer_module, "publish_through", end):
        table.write(7)
    report = table.verify()
    assert report.ok, str(report)
    log = drain(table.servers, table.topic, PARTITIONS)
    assert fold(change for partition in log for change in partition) == rows_of(table.open())
