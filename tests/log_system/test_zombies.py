"""Promise 2: a publisher that sleeps within a transaction while another takes over publishes nothing when it wakes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from tablestore.context import TableContext
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.crash.processes.batch_writer import changes_of, run
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import drain, make_table, publisher_of, write
from tests.harness.suspend import wait_until_suspended
from tests.harness.table_audit import assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash
PARTITIONS = 2
ROWS = 24
SMALL: dict[str, Any] = {}
FORGETFUL = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
LARGE: dict[str, Any] = {"publish__driver_rows_max": 5, "publish__transaction_rows_max": 4}


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("point", ["begin:after", "produce:after", "flush:after", "offsets:after", "end:before"])
def test_a_zombie_publishes_nothing(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], point: str, size: dict[str, Any]
) -> None:
    zombie_publishes_nothing(kafka, tmp_path / "t", topic(), point, size)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_zombie_whose_transactional_id_the_broker_has_forgotten_publishes_nothing(
    tmp_path: Path, topic: Callable[[], str], size: dict[str, Any]
) -> None:
    """Its transaction has timed out, and neither coordinator nor partitions know its epoch any more."""
    with LocalKafka(properties=FORGETFUL) as kafka:
        timeout = {"log__transaction_timeout": "1 s"}
        zombie_publishes_nothing(kafka, tmp_path / "t", topic(), "flush:after", size | timeout, seconds=3.5)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_publisher_whose_transaction_the_broker_has_aborted_publishes_when_it_wakes(
    tmp_path: Path, topic: Callable[[], str], size: dict[str, Any]
) -> None:
    """The machine may have slept; nobody else has taken over."""
    cleanup = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with LocalKafka(properties=cleanup) as kafka:
        path, name = tmp_path / "t", topic()
        with asleep(kafka, path, name, "produce:after", size | {"log__transaction_timeout": "1 s"}):
            time.sleep(2)
        assert_log_is_table(path, kafka.bootstrap_servers, name, PARTITIONS)


def zombie_publishes_nothing(
    kafka: LocalKafka, path: Path, name: str, point: str, size: dict[str, Any], seconds: float = 0.0
) -> None:
    """Let a publisher sleep at a point while another takes over after some seconds, and wake it."""
    with asleep(kafka, path, name, point, size):
        time.sleep(seconds)
        table = TableContext.open(str(path))
        publisher = publisher_of(table)
        published = recover(table, publisher)
        assert [entry.snapshot for entry in published] == [1]
        write(Writer(table, publisher), changes_of(7, ROWS))
        before = drain(kafka.bootstrap_servers, name, PARTITIONS)
    assert drain(kafka.bootstrap_servers, name, PARTITIONS) == before
    assert_log_is_table(path, kafka.bootstrap_servers, name, PARTITIONS)
    # The owner was not disturbed. Where ids expire, it has to take over again to write.
    assert publisher.owns_log
    write(Writer(table, publisher), changes_of(8, ROWS))
    publisher.discard()
    assert_log_is_table(path, kafka.bootstrap_servers, name, PARTITIONS)


@contextmanager
def asleep(kafka: LocalKafka, path: Path, name: str, point: str, size: dict[str, Any]) -> Iterator[None]:
    """Make a table, and let a publisher of its first snapshot sleep at a point within the block, and then finish."""
    make_table(path, kafka.bootstrap_servers, name, **size)
    # Two transactions of a new table say first that there are no tasks; for a large snapshot a third, whose they are.
    hit = {"produce": 3, "flush": 1}.get(point.partition(":")[0], 3) + ("publish__driver_rows_max" in size)
    zombie = CONTEXT.Process(target=run, args=(str(path), "zombie", range(1), ROWS, point, hit), kwargs={"stop": True})
    zombie.start()
    try:
        wait_until_suspended(zombie.pid)
        assert TableContext.open(str(path)).files.latest() == 1, "the zombie was to fall asleep while it publishes"
        yield
    finally:
        if zombie.is_alive() and zombie.pid is not None:
            os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(PATIENCE_SECONDS)
    assert zombie.exitcode == 0, "the zombie was to find its snapshot published, or to publish it"
