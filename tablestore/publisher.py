"""Opens the publisher of a table's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from log_system.kafka.publish import KafkaPublisher, run_here
from log_system.kafka.settle import EventualPublisher
from tablestore.mend import Repairs
from tablestore.opened import OpenedTable
from tablestore.spark_tasks import publish_with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_publisher(table: OpenedTable, spark: SparkSession | None) -> KafkaPublisher | None:
    """Make a publisher of the table's log; large snapshots go through Spark tasks where there is a session.

    Returns:
        The publisher, connected to nothing yet; None for a table without a log.
    """
    if table.log is None:
        return None
    if table.is_eventual:
        return EventualPublisher(table.log, table.index, Repairs(table.files, table.log))
    return KafkaPublisher(table.log, table.index, run_here if spark is None else publish_with_spark(spark))
