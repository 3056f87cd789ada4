"""Promise 2: groups that the broker forgets while a large snapshot is published double nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from log_system.kafka.client.cluster import delete_groups
from log_system.kafka.publisher import partition_tasks as publishing_tasks
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher, run_here
from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import FencedError
from tablestore.write.publish import recover
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import publisher_of
from tests.harness.table_harness import PARTITIONS, TableHarness
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash


@pytest.fixture
def rig(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    made = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"publish__driver_rows_max": 3, **TWO_ROWS})
    yield made
    made.close()


@pytest.fixture
def mixed_rig(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    """Ten rows go out by tasks; what one partition of them lacks by the driver."""
    made = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"publish__driver_rows_max": 8, **TWO_ROWS})
    yield made
    made.close()


TWO_ROWS = {"publish__transaction_rows_max": 2}


def recover_by(rig: TableHarness, run_tasks: Callable[[Sequence[PartitionTask]], list[RegisterPosition]]) -> None:
    table = rig.table
    publisher = KafkaPublisher(rig.log, table.index, run_tasks)
    recover(table, publisher)
    publisher.discard()


def test_a_task_that_is_repeated_after_the_register_has_expired_goes_on_where_it_was(rig: TableHarness) -> None:
    rig.write(1)
    rig.commit(2)

    def die_and_repeat(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        return [repeated(task) for task in tasks]

    def repeated(task: PartitionTask) -> RegisterPosition:
        with failing(publishing_tasks, "send_offsets", hits=range(2, 3)), pytest.raises(Crash):
            publish_partition(task)
        delete_groups(rig.log.client, [rig.log.group])
        return publish_partition(task)

    recover_by(rig, die_and_repeat)
    rig.audit()


def test_a_task_that_begins_after_a_take_over_publishes_nothing(rig: TableHarness) -> None:
    """Nobody could fence it before; that its token is gone tells it."""
    rig.write(1)
    rig.commit(2)
    late: list[PartitionTask] = []

    def keep(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        late.extend(tasks)
        msg = "the driver dies"
        raise Crash(msg)

    with pytest.raises(Crash):
        recover_by(rig, keep)
    owner = publisher_of(rig.table)
    owner.take_over()
    assert len(late) == PARTITIONS
    for task in late:
        with pytest.raises(FencedError, match="another publisher has taken the log over"):
            publish_partition(task)
    owner.discard()
    assert rig.recover() == [2]
    rig.audit()


def test_tasks_are_fenced_by_a_take_over_that_finds_their_group_expired(
    mixed_rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, real, passed = mixed_rig, publishing_tasks.tasks_token, []
    # With a snapshot before it, tasks find where they are in the register, and do not look at the log for it.
    rig.write(1)
    rig.commit(2)

    def look_and_sleep(*args: Any) -> Any:
        """The second task looks for its token, sleeps for longer than the broker keeps it, and goes on."""
        told = real(*args)
        passed.append(told)
        if len(passed) == 2:
            rig.forget_groups()
            assert rig.recover() == [2]
        return told

    monkeypatch.setattr(publishing_tasks, "tasks_token", look_and_sleep)
    recover_by(rig, run_one_by_one)
    owner, *later = [token for token, _ in passed]
    assert later[0] == owner
    # The fenced task may look once more; then it sees that another publisher owns the log, and sends nothing.
    assert owner not in later[1:], "the take-over was to publish the rest by itself"
    rig.audit()


def test_a_task_that_runs_twice_has_the_same_result_whichever_attempt_ends_first(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes the result of the attempt that ends first, also if the other one has fenced it."""
    rig.write(1)
    rig.commit(2, rows=20)
    real = publishing_tasks.send_offsets
    results: dict[int, list[RegisterPosition]] = {}

    def attempts(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        return [twice(task) for task in tasks]

    def twice(task: PartitionTask) -> RegisterPosition:
        """The first attempt sleeps in its second transaction; there the second begins, and sleeps in its own second."""
        awake = [Event(), Event()]
        passed = [0]

        def asleep(*args: Any) -> None:
            passed[0] += 1
            if passed[0] == 2:
                second.append(pool.submit(publish_partition, task))
                assert awake[0].wait(PATIENCE_SECONDS)
            elif passed[0] == 4:
                awake[0].set()
                assert awake[1].wait(PATIENCE_SECONDS)
            real(*args)

        monkeypatch.setattr(publishing_tasks, "send_offsets", asleep)
        second: list[Future[RegisterPosition]] = []
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(publish_partition, task)
            assert awake[0].wait(PATIENCE_SECONDS)
            # The first one is awake and finds that it was fenced; the second one still has work to do.
            with pytest.raises(TimeoutError):
                first.result(0.5)
            awake[1].set()
            results[task.partition] = [first.result(PATIENCE_SECONDS), second[0].result(PATIENCE_SECONDS)]
        return results[task.partition][0]

    recover_by(rig, attempts)
    assert sorted(results) == list(range(PARTITIONS))
    assert all(one == other for one, other in results.values())
    rig.audit()


def test_an_attempt_goes_on_by_itself_if_the_one_that_fenced_it_has_died(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write(1)
    rig.commit(2)
    monkeypatch.setattr(publishing_tasks, "_PATIENCE_SECONDS", 0.3)
    real, fenced = publishing_tasks.send_offsets, []

    def fence_once(*args: Any) -> None:
        if not fenced:
            fenced.append(rig.log.producer(0))
            fenced[0].init_transactions(30)
        real(*args)

    monkeypatch.setattr(publishing_tasks, "send_offsets", fence_once)
    recover_by(rig, run_one_by_one)
    assert len(fenced) == 1
    rig.audit()


def run_one_by_one(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
    return [position for task in tasks for position in run_here([task])]
