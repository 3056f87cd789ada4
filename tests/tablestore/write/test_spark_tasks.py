"""What Spark tasks raise reaches the driver as our own error, and a writer whose tasks were fenced goes on."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from log_system.kafka.publisher.partition_tasks import PartitionTask
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.register import RegisterPosition
from log_system.kafka.system import in_tasks
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, error_of
from tablestore.spark.tasks import run_tasks
from tablestore.write.publish import recover
from tests.harness.table_harness import TableHarness


@pytest.fixture
def rig(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    options = {"publish__driver_rows_max": 1, "publish__transaction_rows_max": 2}
    made = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), options)
    yield made
    made.close()


def test_a_writer_whose_spark_tasks_are_fenced_leaves_the_snapshot_to_the_new_owner(
    spark: SparkSession, rig: TableHarness
) -> None:
    rig.commit(1)
    table, real = rig.table, in_tasks(partial(run_tasks, spark))

    def after_a_take_over(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        assert rig.recover() == [1]
        return real(tasks)

    publisher = KafkaPublisher(rig.log, table.index, after_a_take_over)
    assert recover(table, publisher) == []
    publisher.discard()
    rig.audit()


def test_a_change_file_that_a_spark_task_misses_is_named_as_in_the_driver(
    spark: SparkSession, rig: TableHarness
) -> None:
    rig.commit(1)
    for file in (rig.path / "_changes").glob("*.parquet"):
        file.unlink()
    table = rig.table
    publisher = KafkaPublisher(rig.log, table.index, in_tasks(partial(run_tasks, spark)))
    with pytest.raises(DataLostError, match=r"snapshot 1 is committed but not yet in the log.*a file .* is missing"):
        recover(table, publisher)


def test_an_error_is_made_again_from_its_kind() -> None:
    assert repr(error_of("data-lost", "gone")) == repr(DataLostError("gone"))
    assert type(error_of("unheard-of", "?")).kind == "error"


def test_a_worker_keeps_what_it_has_loaded_out_of_the_collection_after_each_task(spark: SparkSession) -> None:
    """From its second task on, and once: what is loaded later is collected as before."""
    kept: dict[str, list[int]] = {}

    def looked(_: int) -> str:
        return f"{os.getpid()} {gc.get_freeze_count()}"

    for _ in range(5):
        for told in run_tasks(spark, [0, 1], looked):
            worker, count = told.split()
            kept.setdefault(worker, []).append(int(count))
    often = [counts[1:] for counts in kept.values() if len(counts) > 2]
    assert often
    for counts in often:
        assert counts[0] > 10_000
        # What was set apart may be gone by now; nothing is added.
        assert counts == sorted(counts, reverse=True)
