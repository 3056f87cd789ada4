"""Writers that stage and publish by Spark tasks, beside repairs and recoveries: nothing is lost, doubled or early."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from log_system.index import LogIndex
from log_system.kafka.audit import repair as repair_module
from log_system.kafka.publisher import partition_tasks
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.errors import TableStoreError
from tablestore import TableStore
from tablestore.spark import tasks as spark_tasks
from tablestore.write import frame_input
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.damage import PARTITIONS, ROWS, Damaged, lose_end, lose_index, lose_register, lose_topic
from tests.harness.faults import Crash, preceded
from tests.harness.local_writes import recover_at
from tests.harness.table_audit import assert_index_is_true, audit

LARGE = {"publish__driver_rows_max": 2, "publish__transaction_rows_max": 2}
"""Each snapshot is published by tasks, in several transactions."""
Point = tuple[Any, str, int]
WRITING: list[Point] = [
    (Writer, "recover_once", 1),
    (frame_input, "run_staging", 1),
    (DeltaLog, "commit", 1),
    (KafkaPublisher, "take_over", 1),
    (KafkaPublisher, "publish", 1),
    (spark_tasks, "parallelism", 2),
    (LogIndex, "put", 1),
]
"""Steps of a write by tasks: who has the method, its name, and the number of the call. ``parallelism`` is asked just
before tasks begin."""
REPAIRING: list[Point] = [
    (KafkaPublisher, "abort_hanging", 1),
    (repair_module, "inspect_log", 1),
    (LogIndex, "delete", 1),
    (KafkaPublisher, "restore", 1),
    (LogIndex, "put", 1),
    (KafkaPublisher, "publish", 1),
]
DAMAGES = {lose_end: REPAIRING, lose_register: REPAIRING[3:5], lose_index: REPAIRING[4:5], lose_topic: REPAIRING[3:5]}


class SparkWritten(Damaged):
    """A table of large snapshots that Spark writes."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, path: Path) -> None:
        super().__init__(servers, topic, path, **LARGE)
        self.spark = spark

    def write_by_tasks(self, batch: int) -> None:
        """Write one more snapshot: tasks stage its rows and publish them."""
        rows = [(n, f"{batch}.{n}") for n in range(ROWS)]
        frame = self.spark.createDataFrame(rows, "id bigint, v string").repartition(2)
        store = TableStore.open(self.spark, self.path)
        try:
            store.write(frame)
        finally:
            store._handle.writer.discard()

    def recover(self) -> None:
        """Recover as another process does."""
        recover_at(self.path, PARTITIONS)

    def finish(self) -> None:
        """Repair until that is done, and write: nothing is lost, doubled, early or out of order."""
        for _ in range(3):
            with suppress(TableStoreError):
                done = self.repair()
                break
        assert done.ok, str(done)
        self.write_by_tasks(9)
        report = self.verify()
        assert report.ok, str(report)
        assert not report.pending
        audit(self.path, self.servers, self.topic, PARTITIONS)
        assert_index_is_true(self.path, PARTITIONS)


@pytest.fixture
def table(spark: SparkSession, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> SparkWritten:
    return SparkWritten(spark, kafka.bootstrap_servers, topic(), tmp_path / "t")


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("other", [SparkWritten.repair, SparkWritten.recover], ids=["repair", "recover"])
@pytest.mark.parametrize("point", WRITING, ids=lambda point: point[1])
def test_others_repair_or_recover_at_any_step_of_a_write_by_tasks(
    table: SparkWritten, point: Point, other: Callable[[SparkWritten], object], *, dies: bool
) -> None:
    owner, name, at = point

    def act() -> None:
        other(table)
        if dies:
            raise Crash

    table.write(5, publish=False)
    with preceded(owner, name, act, at=at) as happened, suppress(Crash):
        table.write_by_tasks(7)
    assert happened()
    table.finish()


@pytest.mark.parametrize(
    ("damage", "point"), [(damage, point) for damage, points in DAMAGES.items() for point in points],
    ids=lambda given: given[1] if isinstance(given, tuple) else given.__name__,
)  # fmt: skip
def test_tasks_write_at_any_step_of_a_repair(
    table: SparkWritten, damage: Callable[[Damaged], None], point: Point
) -> None:
    damage(table)
    owner, name, at = point

    def act() -> None:
        with suppress(TableStoreError):
            table.write_by_tasks(7)

    with suppress(TableStoreError), preceded(owner, name, act, at=at):
        table.repair()
    table.finish()


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("other", [SparkWritten.repair, SparkWritten.recover], ids=["repair", "recover"])
def test_tasks_whose_driver_is_gone_publish_on_beside_a_repair(
    table: SparkWritten, other: Callable[[SparkWritten], object], hit: int
) -> None:
    """A repair begins while tasks of a dead driver are between two of their transactions."""
    table.write(5, publish=False)
    opened = table.open()

    def run(tasks: Any) -> Any:
        with preceded(partition_tasks, "flush", lambda: other(table), at=hit):
            return [partition_tasks.publish_partition(task) for task in tasks]

    publisher = KafkaPublisher(opened.log.settings, opened.index, run)
    with suppress(TableStoreError):
        recover(opened, publisher)
    publisher.discard()
    table.finish()
