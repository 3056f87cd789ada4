"""Short runs of ``make soak``, and the cases of it that are worth a test of their own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, NotFoundError
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.rollback import rollback
from tablestore.write.writer import Writer
from tests.crash.matrix.audit import Verdict
from tests.crash.processes.batch_writer import changes_of
from tests.harness.cluster import TRANSACTIONS, LocalCluster
from tests.harness.local_writes import Archive, committed_changes, drain, make_table, publisher_of, run_here, write
from tests.harness.log_audit import verify
from tests.harness.table_audit import assert_log_is_table
from tests.soak import retention, sleepers
from tests.soak.crew import Log
from tests.soak.leaders import soak_leaders
from tests.soak.outcome import not_once
from tests.soak.readers import soak_readers
from tests.soak.retention import LARGE_ROWS, SMALL_ROWS, Overtaken, changes_after
from tests.soak.sleepers import Sleeper

pytestmark = pytest.mark.crash
PARTITIONS = 2
ROWS = 24
TIMEOUT_SECONDS = 2.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """Yield a broker that ends transactions, and removes old records, soon after their time is over."""
    with LocalKafka(properties={**sleepers.EAGER, **retention.EAGER}) as kafka:
        yield kafka


@pytest.mark.slow
def test_a_partition_and_a_coordinator_move_to_other_brokers_between_two_writes(tmp_path: Path) -> None:
    """What the soak does to brokers does happen: the leader is another one, and no change is lost or doubled."""
    with LocalCluster() as cluster:
        servers, path = cluster.bootstrap_servers, tmp_path / "t"
        table = make_table(path, servers, "moved", log__replication_factor=3)
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        settings = table.log.settings
        write(writer, changes_of(1, ROWS))
        before = [cluster.leader("moved", 0), cluster.coordinator(settings.transactional_id())]
        partition = cluster.coordinating(settings.transactional_id())
        assert partition is not None
        assert cluster.move("moved", 0, 40)
        assert cluster.move(TRANSACTIONS, partition, 40)
        after = [cluster.leader("moved", 0), cluster.coordinator(settings.transactional_id())]
        assert None not in after
        assert all(old is not new for old, new in zip(before, after, strict=True))
        write(writer, changes_of(2, ROWS))
        assert_log_is_table(path, servers, "moved", PARTITIONS)
        assert verify(table).ok
        publisher.discard()


def test_batches_that_are_lost_doubled_or_unknown_are_counted() -> None:
    log = Log("w0", batches=2, values=[0, 1])
    first, second, third = [(number + 1, (7, f"w0.{number}.7")) for number in range(3)]
    assert not_once([[first], [second]], [log]) == 0
    # One may have been under way at the end.
    assert not_once([[first, second, third], []], [log]) == 0
    assert not_once([[first], []], [log]) == 1
    assert not_once([[first, first], [second]], [log]) == 1


@pytest.mark.slow
def test_writers_and_readers_go_on_while_leaders_are_killed(tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        found = soak_leaders(tmp_path, cluster, seconds=10, seed=3, writers=2, every=5)
    assert (found.verdict, found.troubles) == (Verdict(), [])
    assert found.faults >= 1
    # However slow the machine is, writers get through between two kills.
    assert found.snapshots >= 2


@pytest.mark.slow
def test_readers_and_sinks_go_on_while_brokers_are_killed(tmp_path: Path, spark: SparkSession) -> None:
    """Streams of a table and of both connectors, exactly-once too: no query ends, nothing is lost or doubled."""
    with LocalCluster() as cluster:
        found = soak_readers(tmp_path, cluster, spark, seconds=10, seed=3, every=5)
    assert (found.verdict, found.troubles) == (Verdict(), [])
    assert found.faults >= 1


def sleep_and_wake(broker: LocalKafka, folder: Path, point: str, hit: int) -> str:
    """Stop a publisher until its transaction is over and the others have moved on; return what it says when it wakes.

    Meanwhile its snapshot is published by a recovery, rolled back, folded into the base, and expires.
    """
    path, topic = folder / point.replace(":", "-") / "t", f"asleep-{point.replace(':', '-')}-{time.monotonic_ns()}"
    path.parent.mkdir(parents=True)
    servers = broker.bootstrap_servers
    options = {"publish__driver_rows_max": 15, "log__transaction_timeout": f"{TIMEOUT_SECONDS:.0f} s"}
    table = make_table(path, servers, topic, compaction__auto=False, **options)
    archive: Archive = {}
    publisher = publisher_of(table)
    write(Writer(table, publisher), changes_of(1, ROWS))
    publisher.discard()
    zombie = Sleeper(path, 7, ROWS, point, hit)
    try:
        assert zombie.wait_until_asleep(), f"{point} was never reached"
        time.sleep(TIMEOUT_SECONDS + 0.5)
        table = TableContext.open(str(path))
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        write(writer, changes_of(2, ROWS))
        rollback(table, writer, run_here, 1)
        compact(table, run_here)
        write(writer, changes_of(3, 5))
        committed_changes(path, PARTITIONS, archive)
        expire(table, rules_of(table, "0 s", 1))
        before = drain(servers, topic, PARTITIONS)
        said = zombie.wake()
    finally:
        zombie.end()
    committed_changes(path, PARTITIONS, archive)
    after = drain(servers, topic, PARTITIONS)
    # What it had committed was published by the others; what it had not, it commits and publishes now, behind them.
    assert [new[: len(old)] for old, new in zip(before, after, strict=True)] == before
    if point not in {"stage:after", "commit:before"}:
        assert after == before
    assert_log_is_table(path, servers, topic, PARTITIONS, archive=archive)
    write(writer, changes_of(4, ROWS))
    assert_log_is_table(path, servers, topic, PARTITIONS, archive=archive)
    publisher.discard()
    return said


def test_a_publisher_that_sleeps_longer_than_its_transaction_while_others_publish_roll_back_and_expire_harms_nobody(
    broker: LocalKafka, tmp_path: Path
) -> None:
    points = {"stage:after": 1, "offsets:after": 3, "index:before": 1}
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda point: sleep_and_wake(broker, tmp_path, *point), points.items()))
    assert said == [""] * len(points)


@pytest.mark.parametrize(("rows", "lost"), [(SMALL_ROWS, (0, 1)), (LARGE_ROWS, (0,))], ids=["small-all", "large-one"])
def test_retention_compaction_and_expiry_that_come_before_recovery_lose_nothing(
    broker: LocalKafka, tmp_path: Path, rows: int, lost: tuple[int, ...]
) -> None:
    one = Overtaken(tmp_path, broker.bootstrap_servers, random.Random(1))
    one.write(3, rows)
    # One dies when its second snapshot is published and not yet in the index.
    one.write(2, rows, "index:before", 2)
    one.pass_retention(dict.fromkeys(lost, -1))
    one.fold()
    one.expire(3)
    one.recover()
    assert (one.judge(), one.loud) == (Verdict(), 0)
    one.write(2, rows)
    assert (one.judge(), one.loud) == (Verdict(), 0)


def test_a_reader_whose_changes_neither_the_log_nor_the_files_hold_is_told(broker: LocalKafka, tmp_path: Path) -> None:
    one = Overtaken(tmp_path, broker.bootstrap_servers, random.Random(1))
    one.write(4)
    one.write(2, SMALL_ROWS, "end:before", 2)
    one.pass_retention(dict.fromkeys(range(PARTITIONS), -1))
    one.expire(2)
    one.recover()
    assert (one.judge(), one.told) == (Verdict(), [])
    with pytest.raises((DataLostError, NotFoundError), match=r"expired|can be streamed from snapshot"):
        changes_after(one.path, 1)


def test_a_verify_that_retention_overtakes_says_so_and_names_no_damage(broker: LocalKafka, tmp_path: Path) -> None:
    one, seen = Overtaken(tmp_path, broker.bootstrap_servers, random.Random(1)), 0
    one.write(4)

    def progress(done: int, total: int) -> None:
        nonlocal seen
        # The first pass has said what is where, and the second is about to compare it.
        if 2 * done >= total > 0 and not seen:
            one.pass_retention(dict.fromkeys(range(PARTITIONS), -1))
            seen = done

    report = verify(one.table, progress)
    assert seen
    assert report.ok, str(report)
    assert "while they were read" in str(report)
