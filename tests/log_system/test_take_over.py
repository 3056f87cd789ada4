"""A producer takes a transactional id over once it is connected to a broker; those it fences leave nothing behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from log_system.kafka import published_positions
from log_system.kafka.client import connect
from log_system.kafka.client.connect import PRODUCER_DEFAULTS, KafkaClient, take_over
from log_system.kafka.client.process_bound import BoundProducer
from log_system.kafka.publisher import eager_producer, partition_tasks
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import free_port
from tablestore.context import TableContext
from tablestore.write.publish import PublishPendingError, recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table, publisher_of, write
from tests.harness.plain_topics import make_topic
from tests.harness.table_harness import TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS


class Heard(BoundProducer):
    """Keeps which broker answered each question; -1 is an address of ``bootstrap.servers``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.answered_by: list[int] = []

    def list_topics(self, *given: Any, **named: Any) -> Any:
        found = super().list_topics(*given, **named)
        self.answered_by.append(found.orig_broker_id)
        return found


class Late(BoundProducer):
    """A producer whose first calls of ``poll`` serve nothing."""

    polls = 0

    def poll(self, *given: Any) -> int:
        self.polls += 1
        return 0 if self.polls <= 3 else super().poll(*given)


def producers() -> list[confluent_kafka.Producer]:
    """Return the producers of this process that something still holds."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, confluent_kafka.Producer)]


def left_since(before: list[confluent_kafka.Producer]) -> list[confluent_kafka.Producer]:
    """Return the producers that something holds and that were not there before."""
    return [each for each in producers() if not any(each is other for other in before)]


def test_the_last_answer_before_a_take_over_is_of_a_broker_that_is_known(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BoundProducer", Heard)
    answers: list[list[int]] = []
    # As a rule some first answer comes from an address soon.
    while len(answers) < 10 or (max(map(len, answers)) == 1 and len(answers) < 200):
        producer = KafkaClient({"bootstrap.servers": kafka.bootstrap_servers}).producer("take-over")
        take_over(producer, 30)
        assert isinstance(producer, Heard)
        answers.append(producer.answered_by)
    assert all(before == -1 for *others, _ in answers for before in others)
    assert [last for *_, last in answers if last < 0] == []
    assert max(map(len, answers)) > 1


def test_taking_over_an_open_transaction_takes_less_than_the_half_second_of_the_client(
    kafka: Any, topic: Callable[[], str]
) -> None:
    name, client = topic(), KafkaClient({"bootstrap.servers": kafka.bootstrap_servers})
    make_topic(kafka.bootstrap_servers, name)
    taken = []
    for _ in range(5):
        with (
            connect.discarding(client.producer(name)) as crashed,
            connect.discarding(client.producer(name)) as next_one,
        ):
            take_over(crashed, 30)
            crashed.begin_transaction()
            crashed.produce(name, b"open")
            crashed.flush(PATIENCE_SECONDS)
            began = time.monotonic()
            take_over(next_one, 30)
            taken.append(time.monotonic() - began)
    # A busy machine may delay some of them.
    assert min(taken) < 0.4


def test_publishers_that_were_fenced_leave_no_client_behind(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    path, before = tmp_path / "t", producers()
    make_table(path, kafka.bootstrap_servers, topic())
    publishers = [publisher_of(TableContext.open(str(path))) for _ in range(2)]
    writers = [Writer(TableContext.open(str(path)), publisher) for publisher in publishers]
    for batch in range(3):
        for writer in writers:
            write(writer, changes(batch))
    for writer in writers:
        writer.discard()
    del publishers, writers, writer
    assert left_since(before) == []


def test_a_publisher_whose_broker_is_away_leaves_no_client_behind(tmp_path: Path, topic: Callable[[], str]) -> None:
    before = producers()
    with LocalKafka() as broker:
        rig = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic(), {"log__request-timeout": "2 s"})
        writer = rig.writer()
        write(writer, changes(1))
    with pytest.raises(PublishPendingError):
        write(writer, changes(2))
    rig.close()
    del writer
    assert left_since(before) == []


def test_a_publisher_that_is_idle_while_its_broker_restarts_publishes_at_once(
    tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits in vain for a group's coordinator that was restarted since it was used (librdkafka #5511)."""
    threads = set(threading.enumerate())
    folder, port = tmp_path / "kafka", free_port()
    with LocalKafka(folder, port) as broker:
        rig = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic())
        writer = rig.writer()
        write(writer, changes(1))
        used = time.monotonic()
    with LocalKafka(folder, port):
        remembered = float(str(PRODUCER_DEFAULTS["metadata.max.age.ms"])) / 1000
        time.sleep(max(0.0, used + remembered + 2 - time.monotonic()))
        write(writer, changes(2))
        rig.audit()
        rig.close()
    assert "publishing to the log failed" not in caplog.text
    assert "send-offsets" not in {thread.name for thread in set(threading.enumerate()) - threads}


def test_tasks_that_fail_with_records_under_way_leave_no_client_behind(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    before = producers()
    rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"publish__driver_rows_max": 3})
    rig.write(1)
    rig.commit(2)

    def fail(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        with failing(partition_tasks, "flush"):
            return [publish_partition(task) for task in tasks]

    with pytest.raises(Crash):
        recover(rig.table, KafkaPublisher(rig.log, rig.table.index, fail))
    assert rig.recover() == [2]
    rig.close()
    del rig
    assert left_since(before) == []


def test_sinks_that_fail_with_records_under_way_leave_no_client_behind(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    before = producers()
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    with failing(eager_producer, "flush"), pytest.raises(Crash):
        write(Writer(table, None), changes(0))
    assert left_since(before) == []


def test_reports_that_come_late_leave_no_client_behind(
    kafka: Any, topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the client's threads wait for a processor: there is nothing to serve at first."""
    before, name = producers(), topic()
    make_topic(kafka.bootstrap_servers, name)
    monkeypatch.setattr(connect, "BoundProducer", Late)
    producer = KafkaClient({"bootstrap.servers": kafka.bootstrap_servers}).producer(None)
    producer.produce(name, b"late", on_delivery=lambda *_, held=producer: None)
    connect.discard(producer)
    del producer
    assert left_since(before) == []


def test_a_fenced_producer_with_unserved_reports_is_discarded_without_an_error(
    kafka: Any, topic: Callable[[], str]
) -> None:
    before, name = producers(), topic()
    client = KafkaClient({"bootstrap.servers": kafka.bootstrap_servers})
    make_topic(kafka.bootstrap_servers, name)
    first, second = (client.producer(name) for _ in range(2))
    take_over(first, 30)
    first.begin_transaction()
    take_over(second, 30)
    first.produce(name, b"late", on_delivery=lambda *_: None)
    # By then the broker has rejected the record: its report and the fatal error wait to be served.
    time.sleep(2)
    connect.discard(first)
    connect.discard(second)
    del first, second
    assert left_since(before) == []


def test_partitions_that_hold_only_aborted_records_are_looked_at_together(rig: TableHarness) -> None:
    """Each scan would take some 50 ms, in as many partitions as the table has buckets."""
    rig.write(1)
    rig.commit(2)
    publisher = publisher_of(rig.table)
    with failing(KafkaPublisher, "_send_offsets"), pytest.raises(Crash):
        recover(rig.table, publisher)
    with failing(published_positions, "last_position"):
        publisher.take_over()
    publisher.discard()
    rig.recover()
    rig.audit()
