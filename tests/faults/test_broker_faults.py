"""Promise 7: a broker that hangs, dies or forgets ends in recovery, or in an error in bounded time; nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from log_system.kafka.client import range_reader
from log_system.kafka.client.cluster import Cluster, Partition
from log_system.kafka.client.connect import KafkaClient
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.publisher.partition_sender import Sender
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, UnavailableError
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore import open_local
from tablestore.write import publish
from tablestore.write.publish import PublishPendingError
from tests.crash.processes.batch_writer import run
from tests.harness.faults import Crash, failing
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import drain, fold, rows_of, write
from tests.harness.log_audit import verify
from tests.harness.plain_topics import make_topic
from tests.harness.suspend import suspend
from tests.harness.table_harness import PARTITIONS, TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.crash
EAGER = {
    # How often the broker looks for transactions that have timed out, and for records to compact.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """Yield a broker that tests may stop and kill; each leaves it running."""
    with LocalKafka(properties=EAGER) as kafka:
        yield kafka


@pytest.fixture
def rig(broker: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    made = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic(), {"log__transaction-timeout": "2 s"})
    yield made
    made.close()


@pytest.fixture
def hurried(broker: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    """A table whose writers wait for two seconds where they wait for twenty by default."""
    options = {"log__transaction-timeout": "2 s", "log__request-timeout": "2 s"}
    name = topic()

    def created() -> TableHarness | None:
        """Create the table, unless a busy machine takes longer than two seconds to create the topic."""
        try:
            return TableHarness(tmp_path / "t", broker.bootstrap_servers, name, options)
        except UnavailableError:
            return None

    made = until(created)
    until(lambda: has_taken_over(made))
    yield made
    made.close()


def has_taken_over(rig: TableHarness) -> bool:
    """Take the log over. The coordinators of a new broker on a busy machine may load for longer than two seconds."""
    try:
        rig.recover()
    except UnavailableError:
        return False
    return True


def test_a_broker_that_stops_answering_within_a_transaction_is_given_up_and_nothing_is_lost(
    broker: LocalKafka, hurried: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = hurried
    writer = rig.writer()
    write(writer, changes(1))
    real = Sender.send

    def send_and_stop(self: Sender, *args: object) -> int:
        queued = real(self, *args)  # type: ignore[arg-type]
        suspend(broker.pid)
        return queued

    monkeypatch.setattr(Sender, "send", send_and_stop)
    begin = time.monotonic()
    try:
        with pytest.raises(PublishPendingError, match=r"snapshot 2 is committed but not yet in the log.*recover"):
            write(writer, changes(2))
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert time.monotonic() - begin < 12
    monkeypatch.undo()
    write(writer, changes(3))
    rig.audit()


def test_a_broker_that_refuses_connections_is_named_and_recovered_from(
    broker: LocalKafka, hurried: TableHarness
) -> None:
    rig = hurried
    writer = rig.writer()
    write(writer, changes(1))
    broker.kill()
    try:
        with pytest.raises(PublishPendingError, match=f"'{broker.bootstrap_servers}' is running"):
            write(writer, changes(2))
    finally:
        broker.start()
    assert rig.recover() == [2]
    rig.audit()


@pytest.mark.parametrize(
    "options",
    [{}, {"log__consistency": "eventual"}, {"log__consistency": "eventual", "key": False}],
    ids=["transactional", "eventual", "eventual-appends"],
)
def test_a_writer_that_runs_goes_on_after_its_broker_was_away(tmp_path: Path, options: dict[str, object]) -> None:
    """Its producer asks a coordinator in vain that it knew; no record is missed for the new leader epochs."""
    with LocalKafka() as broker:
        rig = TableHarness(tmp_path / "t", broker.bootstrap_servers, "log", options)
        writer = rig.writer()
        assert write(writer, changes(1))
        for batch in range(2, 4):
            broker.kill()
            broker.start()
            if options:
                with rig.stranger() as producer:
                    producer.produce(rig.topic, b'{"id": 1, "v": "late"}', b'{"id": 1}', 0)
            assert write(writer, changes(batch))
        rig.close()
        if "key" not in options:
            assert verify(rig.table).ok


def test_a_question_waits_for_a_leader_that_comes_back(tmp_path: Path) -> None:
    """The controller takes a broker for dead whose heart beats less often than it looks, again and again."""
    kafka = LocalKafka(data_dir=tmp_path / "kafka")
    with kafka:
        make_topic(kafka.bootstrap_servers, "moves", partitions=2)
    ill = {"broker.session.timeout.ms": "800", "broker.heartbeat.interval.ms": "1200"}
    asked: list[Partition] = [("moves", 0), ("moves", 1)]
    with LocalKafka(data_dir=tmp_path / "kafka", properties=ill) as kafka:
        cluster = Cluster(KafkaClient({"bootstrap.servers": kafka.bootstrap_servers}))
        broker_log, until = kafka.data_dir / "broker.log", time.monotonic() + PATIENCE_SECONDS
        while broker_log.read_text().count("Fencing broker 1") < 2:
            assert time.monotonic() < until, "the broker always leads"
            assert cluster.latest(asked, "read_committed") == dict.fromkeys(asked, 0)


def test_a_coordinator_that_has_forgotten_everything_is_taught_by_headers_and_index(
    broker: LocalKafka, rig: TableHarness
) -> None:
    rig.write(1, 2)
    rig.commit(3)
    with failing(type(rig.table.index), "put"), pytest.raises(Crash):
        rig.recover()
    rig.commit(4)
    # The coordinator writes the markers of a committed transaction later; without its state, nobody would.
    until(lambda: stable(rig))
    broker.kill()
    for pattern in ("__consumer_offsets-*", "__transaction_state-*"):
        for folder in (broker.data_dir / "data").glob(pattern):
            for file in folder.glob("0*"):
                file.unlink()
    broker.start()
    assert rig.recover() == [3, 4]
    rig.write(5)
    rig.audit()


def test_a_publish_that_outlasts_the_transaction_timeout_names_the_option(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "PATIENCE_SECONDS_MAX", 3.0)
    writer = rig.writer()
    write(writer, changes(1))
    real = Sender.position

    def late(self: Sender) -> object:
        time.sleep(1.5)
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "position", late)
        with pytest.raises(PublishPendingError, match=r"log\.transaction-timeout.*Nothing is lost"):
            write(writer, changes(2))
    write(writer, changes(3))
    rig.audit()


def stable(rig: TableHarness) -> bool:
    """Tell whether read-committed readers may read to the very end."""
    every, committed = (latest_offsets(rig.log.client, rig.topic, read_committed=c) for c in (False, True))
    return every == committed


@pytest.mark.parametrize("timeout", ["2 s", "10 min"])
def test_a_transaction_left_hanging_by_a_killed_writer_holds_readers_back_until_its_timeout_or_recover(
    broker: LocalKafka, tmp_path: Path, topic: Callable[[], str], timeout: str
) -> None:
    rig = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic(), {"log__transaction-timeout": timeout})
    process = CONTEXT.Process(target=run, args=(str(rig.path), "writer", range(1), 12, "flush:after", 1))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert not stable(rig)
    assert drain(rig.servers, rig.topic, PARTITIONS) == [[], []]
    if timeout != "2 s":
        rig.recover()
    until = time.monotonic() + PATIENCE_SECONDS
    while not stable(rig):
        assert time.monotonic() < until, "readers are held back for ever"
        time.sleep(0.05)
    rig.recover()
    rig.audit()


def compact_log(rig: TableHarness) -> None:
    """Let the broker compact the topic, and wait until records are gone."""
    before = sum(map(len, drain(rig.servers, rig.topic, PARTITIONS)))
    rig.set_topic({"cleanup.policy": "compact", "segment.ms": "100", "max.compaction.lag.ms": "100"})
    time.sleep(0.2)
    rig.write(4)
    until = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, drain(rig.servers, rig.topic, PARTITIONS))) >= before + 10:
        assert time.monotonic() < until, "the broker compacts nothing"
        time.sleep(0.2)


def test_a_stream_of_a_table_whose_log_is_compacted_misses_no_change_and_no_delete(
    broker: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> None:
    rig = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic(), {"log__compacted": True})
    rig.write(1, 2)
    write(rig.writer(), [(0, None), (1, "3.1")])
    compact_log(rig)
    expected = [(snapshot, *change) for snapshot, batch in enumerate((changes(1), changes(2)), 1) for change in batch]
    expected += [(3, 0, None), (3, 1, "3.1"), *((4, *change) for change in changes(4))]
    with open_local(str(rig.path)) as table:
        read = [row for batch in table.tail(scan_mode="earliest", follow=False) for row in batch.to_pylist()]
    assert sorted((row[COMMIT_VERSION], row["id"], row["v"]) for row in read) == expected
    rig.close()


def test_records_that_a_changed_policy_compacted_away_are_missed_by_readers_and_the_rest_folds_to_the_table(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write(1, 2, 3)
    compact_log(rig)
    monkeypatch.setattr(range_reader, "ANSWER_SECONDS", 5.0)
    with pytest.raises(DataLostError, match="deleted or compacted"):
        rig.feed(through=3)
    rig.write(5)
    log = drain(rig.servers, rig.topic, PARTITIONS)
    assert fold(c for partition in log for c in partition) == rows_of(rig.table)
