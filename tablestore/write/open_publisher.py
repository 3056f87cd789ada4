"""Opens the publisher of a table's log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from log_system.base import LogPublisher
from tablestore.context import TableContext
from tablestore.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_publisher(table: TableContext, spark: SparkSession | None) -> LogPublisher | None:
    """Return a publisher of the table's log; with a session, it publishes large snapshots in Spark tasks.

    Returns:
        The publisher, not yet connected; None if a commit is all that makes a snapshot visible.
    """
    return table.log.publisher(None if spark is None else partial(run_tasks, spark))
