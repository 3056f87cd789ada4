"""A broker loses the end of the log, though it had acknowledged it: nobody takes what comes next for what is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system.index import LogIndex
from log_system.kafka.publisher import partition_tasks
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from log_system.local_kafka.owned import LocalKafka
from log_system.report import DifferenceKind
from snapshot.errors import DataLostError, FencedError, OutcomeUnknownError
from tablestore import open_local
from tablestore.options.read_options import parse_read_options
from tablestore.service.attempts import Schedule
from tablestore.service.service import Service
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.normalized_stream import NormalizedStream
from tablestore.streaming.snapshot_stream import feed_schema
from tablestore.write.publish import PublishPendingError, recover
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import drain, fold, write
from tests.harness.log_audit import repair_anew, verify
from tests.harness.lost_end import ends_of, lose_all, lose_ends
from tests.harness.table_harness import PARTITIONS, TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.crash
REGISTERS = "__consumer_offsets"
QUICK = Schedule(poll=0.05, grace=0.2, maintain=0.2, verify=0.1, retry=0.1)
EVENTUAL = {"log__consistency": "eventual"}
EVENTUAL_APPENDS = {**EVENTUAL, "key": False}
LARGE = {"publish__driver_rows_max": 3, "publish__transaction_rows_max": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """Yield a broker that may be killed."""
    with LocalKafka() as kafka:
        yield kafka


@pytest.fixture
def rig(
    request: pytest.FixtureRequest, broker: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> Iterator[TableHarness]:
    made = TableHarness(tmp_path / "t", broker.bootstrap_servers, topic(), getattr(request, "param", {}))
    yield made
    made.close()


def repaired(rig: TableHarness) -> None:
    """Repair, and write once more: log and table agree, and a plain consumer is given each change once."""
    rig.close()
    assert repair_anew(rig.table).ok
    rig.write(9)
    assert verify(rig.table).ok
    rig.audit()


def repaired_beside_others(rig: TableHarness) -> bool:
    """Repair, unless others take the log over meanwhile; Kafka may answer this with an unknown error."""
    try:
        return repair_anew(rig.table).ok
    except (FencedError, OutcomeUnknownError):
        return False


def taken(write: Callable[[], object]) -> None:
    """Write to an eventual log until the broker takes it: it refuses each producer that had sent what is gone, once."""
    for _ in range(PARTITIONS):
        with suppress(OutcomeUnknownError):
            write()
            return
    write()


def read_to_end(
    rig: TableHarness, kind: type[EventualStream] = EventualStream
) -> tuple[EventualStream, dict[str, Any]]:
    """Return a stream of an eventual log from its beginning, and the offset at its end."""
    options = {"path": str(rig.path), "readChangeFeed": "true", "scan-mode": "earliest"}
    stream = kind(parse_read_options(options), feed_schema(rig.table.spec))
    return stream, stream.latestOffset(stream.initialOffset(), ReadAllAvailable())


def register_partition(group: str, partitions: int) -> int:
    """Return where the broker keeps a group's offsets: by Java's hash of its name."""
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def test_a_writer_that_runs_does_not_publish_in_the_place_of_what_is_gone(
    broker: LocalKafka, rig: TableHarness
) -> None:
    """All records of the writer are gone, so the broker accepts its next ones; they reach beyond the lost end."""
    writer = rig.writer()
    write(writer, changes(1))
    lose_ends(broker, rig.topic, dict.fromkeys(range(PARTITIONS), 0))
    with pytest.raises(PublishPendingError, match=r"the last published record.* is not there any more") as caught:
        write(writer, changes(2, rows=60))
    assert isinstance(caught.value.__cause__, DataLostError)
    rig.close()
    with pytest.raises(DataLostError, match=r"not there any more.*or the broker lost records.*log.repair\(\)"):
        rig.write(3)
    assert drain(rig.servers, rig.topic, PARTITIONS) == [[], []]
    repaired(rig)


def test_a_new_writer_notices_the_loss_though_the_log_has_grown_since(broker: LocalKafka, rig: TableHarness) -> None:
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    lose_ends(broker, rig.topic, {0: ends[0]})
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        for _ in range(30):
            producer.produce(rig.topic, b"{}", b"{}", 0)
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction()
    with pytest.raises(DataLostError, match=r"partition 0: the last published record.*log.repair\(\)"):
        rig.write(3)
    assert {d.kind for d in verify(rig.table).differences} == {DifferenceKind.MISSING, DifferenceKind.REGISTER}
    repaired(rig)


def test_a_commit_whose_marker_is_lost_is_not_undone_unnoticed(broker: LocalKafka, rig: TableHarness) -> None:
    """Records without a marker belong to the next transaction of the same id: it dies, and they are aborted with it."""
    rig.write(1)
    lose_ends(broker, rig.topic, {0: ends_of(rig.servers, rig.topic)[0] - 1})
    writer, error = rig.writer(), ValueError("the writer dies")
    with failing(Sender, "position", error), pytest.raises(PublishPendingError):
        write(writer, changes(2))
    rig.close()
    with pytest.raises(DataLostError, match=r"partition 0: the last published record.*or not committed"):
        rig.recover()
    repaired(rig)


@pytest.mark.parametrize("rig", [{}, LARGE], ids=["small", "large"], indirect=True)
def test_repair_ends_a_transaction_whose_marker_is_lost(broker: LocalKafka, rig: TableHarness) -> None:
    rig.write(1, 2)
    lose_ends(broker, rig.topic, {0: ends_of(rig.servers, rig.topic)[0] - 1})
    repaired(rig)


def test_a_reader_of_a_log_that_has_lost_its_end_says_so_soon(broker: LocalKafka, rig: TableHarness) -> None:
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    lose_ends(broker, rig.topic, ends)
    with pytest.raises(DataLostError, match=r"partition ends at offset \d+. The broker has lost.*log.repair\(\)"):
        rig.feed()
    repaired(rig)
    assert len(rig.feed()) == 30


def test_a_repair_that_dies_leaves_no_entry_of_a_lost_snapshot_behind_a_gap(
    broker: LocalKafka, rig: TableHarness
) -> None:
    """A writer that fills the gap, and dies, would leave an entry that claims a snapshot which nobody has published."""
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2, 3)
    lose_ends(broker, rig.topic, ends)
    with failing(os, "unlink", hits=range(2, 3)), pytest.raises(Crash):
        repair_anew(rig.table)
    assert rig.table.index.snapshots() == [0, 1, 2]
    with pytest.raises(DataLostError, match="published up to offset"):
        rig.write(4)
    repaired(rig)


@pytest.mark.parametrize("rig", [EVENTUAL], ids=["eventual"], indirect=True)
def test_a_stream_of_an_eventual_log_that_has_lost_its_end_says_so_and_skips_nothing(
    broker: LocalKafka, rig: TableHarness
) -> None:
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    stream, start = read_to_end(rig)
    rig.close()
    lose_ends(broker, rig.topic, ends)
    with pytest.raises(DataLostError, match=r"ends at offset \d+, before offset \d+.*new checkpoint"):
        stream.latestOffset(start, ReadAllAvailable())
    assert repair_anew(rig.table).ok
    assert fold(c for part in drain(rig.servers, rig.topic, PARTITIONS) for c in part) == dict(changes(2))


def test_a_register_that_has_lost_its_end_does_not_double_what_the_log_holds(
    broker: LocalKafka, rig: TableHarness
) -> None:
    """The index lacks the snapshot too: its publisher died before it wrote the entry."""
    rig.write(1)
    ends = ends_of(rig.servers, REGISTERS)
    with failing(LogIndex, "put"), pytest.raises(Crash):
        rig.write(2)
    rig.close()
    held = register_partition(rig.log.group, len(ends))
    lose_ends(broker, REGISTERS, {held: ends[held]})
    rig.write(3)
    assert verify(rig.table).ok
    rig.audit()


@pytest.mark.parametrize("rig", [{}, EVENTUAL], ids=["transactional", "eventual"], indirect=True)
def test_verify_finds_that_a_broker_has_lost_the_end_of_log_and_register(broker: LocalKafka, rig: TableHarness) -> None:
    """As after its data was restored from an older copy: only the index in the table knows how far the log was."""
    rig.write(1)
    ends, registers = ends_of(rig.servers, rig.topic), ends_of(rig.servers, REGISTERS)
    rig.write(2)
    rig.close()
    held = register_partition(rig.log.group, len(registers))
    lose_all(broker, {rig.topic: ends, REGISTERS: {held: registers[held]}})
    assert not verify(rig.table).ok
    assert repair_anew(rig.table).ok
    taken(lambda: rig.write(9))
    rig.close()
    assert verify(rig.table).ok


@pytest.mark.parametrize("rig", [LARGE], ids=["large"], indirect=True)
def test_a_task_whose_register_has_lost_its_end_goes_on_after_what_it_has_sent(
    broker: LocalKafka, rig: TableHarness
) -> None:
    rig.write(1)
    rig.commit(2)

    losses = 1

    def run(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        nonlocal losses
        if losses:
            losses, ends = 0, ends_of(rig.servers, REGISTERS)
            with failing(partition_tasks, "flush", hits=range(2, 3)), pytest.raises(Crash):
                publish_partition(tasks[0])
            held = register_partition(rig.log.group, len(ends))
            lose_ends(broker, REGISTERS, {held: ends[held]})
        return [publish_partition(task) for task in tasks]

    publisher = KafkaPublisher(rig.log, rig.table.index, run)
    # The broker was away for longer than publishers wait, if the machine is busy.
    with suppress(PublishPendingError):
        recover(rig.table, publisher)
    publisher.discard()
    rig.recover()
    assert verify(rig.table).ok
    rig.audit()


@pytest.mark.parametrize("kind", [EventualStream, NormalizedStream])
@pytest.mark.parametrize("rig", [EVENTUAL], ids=["eventual"], indirect=True)
def test_a_stream_of_an_eventual_log_that_has_lost_its_end_and_grown_again_says_so(
    broker: LocalKafka, rig: TableHarness, kind: type[EventualStream]
) -> None:
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    stream, start = read_to_end(rig, kind)
    rig.close()
    lose_ends(broker, rig.topic, ends)
    with rig.stranger() as producer:
        for n in range(80):
            producer.produce(rig.topic, b'{"id": %d, "v": "late"}' % n, b'{"id": %d}' % n, n % PARTITIONS)
    with pytest.raises(DataLostError, match=r"has lost what was before offset \d+.*log.repair\(\)"):
        stream.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("rig", [EVENTUAL], ids=["eventual"], indirect=True)
def test_a_stream_of_an_eventual_log_goes_on_after_its_broker_was_restarted(
    broker: LocalKafka, rig: TableHarness
) -> None:
    rig.write(1)
    stream, start = read_to_end(rig)
    rig.close()
    lose_ends(broker, rig.topic, {})
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    rig.write(2)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert sum(batch.num_rows for part in stream.partitions(start, end) for batch in stream.read(part)) == 10
    rig.close()


@pytest.mark.parametrize("is_new", [False, True], ids=["that-runs", "that-is-new"])
@pytest.mark.parametrize("rig", [EVENTUAL, EVENTUAL_APPENDS], ids=["key", "appends"], indirect=True)
def test_a_writer_of_an_eventual_log_notices_the_loss_though_the_log_has_grown_since(
    broker: LocalKafka, rig: TableHarness, *, is_new: bool
) -> None:
    """The records of the write itself reach beyond the lost end, or those of others do; the lost keys are others."""
    writer = rig.writer()
    write(writer, changes(1))
    ends = ends_of(rig.servers, rig.topic)
    write(writer, changes(2))
    lose_ends(broker, rig.topic, ends)
    if is_new:
        rig.close()
        writer = rig.writer()
        with rig.stranger() as producer:
            for n in range(100, 160):
                producer.produce(rig.topic, b'{"id": %d, "v": "late"}' % n, b'{"id": %d}' % n, n % PARTITIONS)
    with pytest.raises((PublishPendingError, DataLostError), match=r"partition \d.*log.repair\(\)"):
        taken(lambda: write(writer, [(n, "late") for n in range(100, 160)]))
    rig.close()
    assert not verify(rig.table).ok
    assert repair_anew(rig.table).ok
    taken(lambda: rig.write(9))
    rig.close()
    assert verify(rig.table).ok


@pytest.mark.parametrize(
    "rig", [{}, {"log__consistency": "eventual"}], ids=["transactional", "eventual"], indirect=True
)
def test_the_service_notices_a_loss_though_the_log_has_grown_and_nobody_commits(
    broker: LocalKafka, rig: TableHarness
) -> None:
    """It compares the whole log only once a day."""
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    rig.close()
    with Service(lambda: [str(rig.path)], schedule=QUICK) as service:
        until(lambda: service.states and service.states[0].verify.snapshot == 2)
    # A service that runs would see that the log is shorter before it has grown.
    lose_ends(broker, rig.topic, ends)
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        for n in range(60):
            producer.produce(rig.topic, b"{}", b"{}", n % PARTITIONS)
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction()
    with Service(lambda: [str(rig.path)], schedule=QUICK) as service:
        until(lambda: service.states and service.states[0].verify.count)
        until(lambda: repaired_beside_others(rig))
        until(lambda: not service.states[0].verify.count)
    assert verify(rig.table).ok


@pytest.mark.parametrize("has_grown", [False, True], ids=["shorter", "grown"])
def test_the_service_publishes_nothing_in_the_place_of_what_is_gone_and_says_so(
    broker: LocalKafka, rig: TableHarness, *, has_grown: bool
) -> None:
    """A tail that follows the log is given each change once, before and after the repair."""
    rig.write(1)
    ends = ends_of(rig.servers, rig.topic)
    rig.write(2)
    rig.close()
    seen: list[tuple[int, int]] = []
    with open_local(rig.path) as local, Service(lambda: [str(rig.path)], schedule=QUICK) as service:

        def follow() -> None:
            for batch in local.tail(scan_mode="earliest", poll_seconds=0.05):
                seen.extend((row["_commit_version"], row["id"]) for row in batch.to_pylist())
                if sum(snapshot == 4 for snapshot, _ in seen) == 10:
                    return

        reader = Thread(target=follow, daemon=True)
        reader.start()
        until(lambda: service.states and service.states[0].verify.snapshot == 2)
        until(lambda: len(seen) == 20)
        lose_ends(broker, rig.topic, ends)
        if has_grown:
            with rig.stranger(f"stranger-{rig.topic}") as producer:
                for n in range(60):
                    producer.produce(rig.topic, b"{}", b"{}", n % PARTITIONS)
                producer.flush(PATIENCE_SECONDS)
                producer.abort_transaction()
        rig.commit(3)
        until(lambda: "lost records" in service.states[0].error)
        assert service.states[0].published == 2
        until(lambda: repaired_beside_others(rig))
        until(lambda: not service.states[0].error and service.states[0].verify.snapshot == 3)
        # The service may have looked while the repair was at work.
        until(lambda: service.states[0].verify.count == 0)
        rig.write(4)
        rig.close()
        until(lambda: not reader.is_alive())
    assert sorted(seen) == [(snapshot, n) for snapshot in range(1, 5) for n in range(10)]
    assert verify(rig.table).ok
    rig.audit()
