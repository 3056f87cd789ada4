"""Promise 7: a fault of the topic ends in recovery, or in an error that says what is lost and what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from log_system.kafka.audit import log_scan
from log_system.kafka.client import range_reader
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from snapshot.errors import CorruptedError, DataLostError, NotFoundError, UnavailableError
from tablestore.write.publish import PublishPendingError
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, publisher_of, write
from tests.harness.log_audit import verify
from tests.harness.spark_tables import delete_records
from tests.harness.table_harness import PARTITIONS, TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash
LARGE = {"publish__driver_rows_max": 3, "publish__transaction_rows_max": 2}


def test_a_deleted_topic_is_named_and_nothing_is_written(rig: TableHarness) -> None:
    rig.write(1, 2)
    rig.delete_topic()
    with pytest.raises(NotFoundError, match=f"no topic '{rig.topic}'.*files hold every row"):
        rig.write(3)
    assert rig.table.files.latest() == 2


def test_a_topic_deleted_under_a_writer_that_runs_is_named_and_the_snapshot_is_said_to_be_committed(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"log__request-timeout": "2 s"})
    writer = rig.writer()
    write(writer, changes(1))
    rig.delete_topic()
    pending = f"snapshot 2 is committed but not yet in the log.*{rig.topic}"
    with pytest.raises(PublishPendingError, match=pending) as caught:
        write(writer, changes(2))
    assert isinstance(caught.value.__cause__, NotFoundError)


def test_a_topic_made_anew_is_lost_data_for_new_writers_and_gets_no_records(rig: TableHarness) -> None:
    rig.write(1, 2)
    rig.remake_topic()
    for _ in range(2):
        with pytest.raises(DataLostError, match=r"published up to offset .*but it ends at 0.*repair\(\) publishes"):
            rig.write(3)
    assert rig.table.files.latest() == 2
    assert drain(rig.servers, rig.topic, PARTITIONS) == [[], []]


@pytest.mark.parametrize("rig", [{}, LARGE], ids=["small", "large"], indirect=True)
def test_a_topic_made_anew_under_a_writer_that_runs_shows_none_of_its_records(rig: TableHarness) -> None:
    writer = rig.writer()
    write(writer, changes(1))
    write(writer, changes(2))
    rig.remake_topic()
    pending = r"snapshot 3 is committed but not yet in the log.*was recreated"
    with pytest.raises(PublishPendingError, match=pending) as caught:
        write(writer, changes(3))
    assert isinstance(caught.value.__cause__, DataLostError)
    rig.close()
    with pytest.raises(DataLostError, match="was recreated"):
        rig.recover()
    assert drain(rig.servers, rig.topic, PARTITIONS) == [[], []]


def test_a_topic_made_anew_with_fewer_partitions_is_refused(rig: TableHarness) -> None:
    rig.write(1)
    rig.remake_topic(partitions=1)
    with pytest.raises(DataLostError, match="was recreated"):
        rig.recover()


def test_more_partitions_change_nothing_and_are_noticed(rig: TableHarness, caplog: pytest.LogCaptureFixture) -> None:
    writer = rig.writer()
    write(writer, changes(1))
    made = rig.admin.create_partitions([NewPartitions(rig.topic, 4)])
    made[rig.topic].result()
    write(writer, changes(2))
    rig.write(3)
    rig.audit()
    assert drain(rig.servers, rig.topic, 4)[2:] == [[], []]
    assert f"topic '{rig.topic}' has 4 partitions, the table 2 buckets" in caplog.text


@pytest.mark.parametrize("forgotten", [False, True], ids=["register", "index-only"])
def test_after_retention_has_emptied_the_log_it_goes_on_where_it_was(rig: TableHarness, forgotten: bool) -> None:
    rig.write(1, 2)
    delete_records(rig.servers, rig.topic, dict.fromkeys(range(PARTITIONS), -1))
    if forgotten:
        rig.forget_groups()
    publisher = publisher_of(rig.table)
    publisher.take_over()
    assert publisher.newest == 2
    publisher.discard()
    assert rig.recover() == []
    rig.write(3)
    log = drain(rig.servers, rig.topic, PARTITIONS)
    assert sorted(c for partition in log for c in partition) == sorted(changes(3))
    with pytest.raises(DataLostError, match=r"log.retention"):
        rig.feed(0)


def test_a_strangers_records_are_never_read_as_ours(rig: TableHarness) -> None:
    rig.write(1)
    key, value = json.dumps({"id": 1}).encode(), json.dumps({"id": 1, "v": "stranger"}).encode()
    with rig.stranger() as producer:
        for partition in range(PARTITIONS):
            producer.produce(rig.topic, value, key, partition)
    rig.write(2)
    rig.forget_groups()
    rig.table.index.delete([1, 2])
    rig.recover()
    log = drain(rig.servers, rig.topic, PARTITIONS)
    assert sorted(c for p in log for c in p if c[1] != "stranger") == sorted([*changes(1), *changes(2)])
    assert rig.feed(through=1) == [(1, *change) for change in changes(1)]
    with pytest.raises(CorruptedError, match=r"Another producer writes to this topic.*ACL"):
        rig.feed(1)


def test_verify_finds_strangers_in_a_compacted_topic(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    rig = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"log__compacted": True})
    rig.write(1)
    with rig.stranger() as producer:
        producer.produce(rig.topic, json.dumps({"id": 1, "v": "stranger"}).encode(), b'{"id": 1}', 0)
    rig.write(2)
    assert {difference.kind for difference in verify(rig.table).differences} == {DifferenceKind.EXTRA}
    rig.close()


def test_a_record_that_the_broker_rejects_for_its_time_names_the_clock(rig: TableHarness) -> None:
    rig.set_topic({"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"})
    with pytest.raises(PublishPendingError, match=r"clock of this machine.*message\.timestamp\.before\.max\.ms"):
        rig.write(1)
    rig.close()
    rig.set_topic({"message.timestamp.before.max.ms": "3600000"})
    assert rig.recover() == [1]
    rig.audit()


def test_the_broker_dates_the_records_of_machines_whose_clocks_are_wrong(rig: TableHarness) -> None:
    """By the writer's clock, it would reject records or remove them early."""
    rig.set_topic({"message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "0"})
    assert [snapshot.id for snapshot in rig.write(1)] == [1]
    rig.audit()


def test_a_strangers_open_transaction_hides_nothing_from_recovery(rig: TableHarness) -> None:
    rig.write(1)
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        for partition in range(PARTITIONS):
            producer.produce(rig.topic, b"{}", b"{}", partition)
        producer.flush(PATIENCE_SECONDS)
        rig.commit(2)
        with failing(type(rig.table.index), "put"), pytest.raises(Crash):
            rig.recover()
        rig.forget_groups()
        end_it = threading.Timer(1.5, producer.abort_transaction)
        end_it.start()
        assert rig.recover() == [2]
        end_it.join()
    rig.audit()


def test_verify_concludes_nothing_while_an_open_transaction_hides_what_is_published(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "_SETTLE_SECONDS", 0.5)
    rig.write(1)
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        producer.produce(rig.topic, b"{}", b"{}", 0)
        producer.flush(PATIENCE_SECONDS)
        rig.write(2)
        with pytest.raises(UnavailableError, match=r"partition 0.*Nothing was concluded.*--find-hanging"):
            verify(rig.table)
        producer.abort_transaction()
    assert verify(rig.table).ok
    rig.audit()


def test_an_open_transaction_that_never_ends_is_an_error_that_says_how_to_end_it(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("tablestore.write.publish.ATTEMPTS_MAX", 2)
    rig.write(1)
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        producer.produce(rig.topic, b"{}", b"{}", 0)
        producer.flush(PATIENCE_SECONDS)
        rig.write(2)
        rig.forget_groups()
        rig.table.index.delete([2])
        with pytest.raises(UnavailableError, match=r"transaction may be open.*--find-hanging"):
            rig.recover()
        producer.abort_transaction()
    assert rig.recover() == [2]
    rig.audit()
