"""Opens the publisher of a table's log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.partition_tasks import PartitionTask, publish_partition
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher, run_here
from log_system.kafka.register import RegisterPosition
from tablestore.context import TableContext
from tablestore.spark.tasks import run_tasks
from tablestore.write.reconcile import Repairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_publisher(table: TableContext, spark: SparkSession | None) -> KafkaPublisher | None:
    """Return a publisher of the table's log; with a session, it publishes large snapshots in Spark tasks.

    Returns:
        The publisher, not yet connected; None for a table without a log.
    """
    if table.log is None:
        return None
    if table.is_eventual:
        return EventualPublisher(table.log, table.index, Repairs(table.files, table.log))
    return KafkaPublisher(table.log, table.index, run_here if spark is None else publish_with_spark(spark))


def publish_with_spark(spark: SparkSession) -> Callable[[Sequence[PartitionTask]], list[RegisterPosition]]:
    """Return a function that publishes partitions in Spark tasks."""

    def publish(tasks: Sequence[PartitionTask]) -> list[RegisterPosition]:
        results = run_tasks(spark, tasks, lambda task: json.dumps(asdict(publish_partition(task))))
        return [RegisterPosition(**json.loads(result)) for result in results]

    return publish
