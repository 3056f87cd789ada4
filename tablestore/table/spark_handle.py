"""The handle behind ``TableStore``: tasks and verbs run on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from snapshot.quoting import backquoted
from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.dml.run import Verbs
from tablestore.maintenance.expire_partitions import PartitionValues
from tablestore.read import batch
from tablestore.spark.error_messages import plain_queries
from tablestore.spark.object_stores import warn_of_overwrites
from tablestore.spark.tasks import run_tasks
from tablestore.table.handle import TableHandle


class SparkHandle(TableHandle):
    """An open table that a Spark session works on.

    Attributes:
        spark: The session.
        verbs: Deletes, updates, overwrites and merges rows.
    """

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        plain_queries(spark)
        warn_of_overwrites(spark, table.path)
        self.spark = spark
        tasks = partial(run_tasks, spark)
        super().__init__(table, tasks, tasks)

    def _open_writer(self, table: TableContext) -> None:
        super()._open_writer(table)
        self.verbs = Verbs(self.spark, self.writer)

    def _partitions(self) -> list[PartitionValues]:
        columns = self.table.spec.partition_by
        rows = batch.read(self.spark, self.table, snapshot=None, timestamp=None, columns=columns)
        return [row.asDict() for row in rows.select(*map(backquoted, columns)).distinct().collect()]

    def _delete_partitions(self, partitions: Sequence[PartitionValues]) -> Snapshot | None:
        return self.finish(self.verbs.delete(reduce(Column.__or__, map(_is_in, partitions)), None))


def _is_in(partition: PartitionValues) -> Column:
    return reduce(
        Column.__and__, [F.col(backquoted(name)).eqNullSafe(F.lit(value)) for name, value in partition.items()]
    )
