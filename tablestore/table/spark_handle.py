"""The handle behind ``TableStore``: tasks and verbs run on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from snapshot.quoting import backquoted
from snapshot.records import CommitId, Snapshot
from snapshot.staging.stage import StagedFile, Stager
from tablestore.context import TableContext
from tablestore.dml.run import Verbs
from tablestore.maintenance.expire_partitions import PartitionValues
from tablestore.read import batch
from tablestore.spark.connect import AGAIN, running
from tablestore.spark.error_messages import plain_queries
from tablestore.spark.object_stores import warn_of_overwrites
from tablestore.spark.tasks import run_tasks
from tablestore.table.handle import TableHandle


class SparkHandle(TableHandle):
    """An open table that a Spark session works on."""

    def __init__(self, spark: SparkSession, table: TableContext) -> None:
        plain_queries(spark)
        warn_of_overwrites(spark, table.path)
        self._spark = spark
        tasks = partial(run_tasks, spark)
        super().__init__(table, tasks, tasks)

    def _open_writer(self, table: TableContext) -> None:
        super()._open_writer(table)
        self._verbs = Verbs(self._spark, self.writer)

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises:
            InvalidInputError: It was stopped.
        """
        return running(self._spark, f"table {self.table.path!r}", AGAIN)

    @property
    def verbs(self) -> Verbs:
        """What deletes, updates, overwrites and merges rows, if the session runs."""
        _ = self.spark
        return self._verbs

    def write(
        self, stage: Callable[[Stager], Sequence[StagedFile]], commit_id: CommitId | None = None
    ) -> Snapshot | None:
        """Write rows as one snapshot; see ``TableHandle.write``."""
        _ = self.spark
        return super().write(stage, commit_id)

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
