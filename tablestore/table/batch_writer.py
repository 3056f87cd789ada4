"""The function that a streaming query calls per micro-batch: in the driver or, over Spark Connect, on the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from log_system.kafka.client.access_policy import Allowed
from log_system.kafka.client.secrets import ClientValue
from log_system.outages import Outages
from tablestore.context import TableContext
from tablestore.spark.connect import micro_batch
from tablestore.spark.query_checkpoint import check_table, commit_id_of, note_landed
from tablestore.table.spark_handle import SparkHandle
from tablestore.write.frame_input import stage_frame


class BatchWriter:
    """Writes each micro-batch of a query as one snapshot, through a handle of its own.

    Spark Connect pickles it and calls the copy in a Python process of the server, once per micro-batch. So it holds
    what opens the table, never the open table, and opens it in the process in which it is called first.
    """

    def __init__(
        self, table: TableContext, checkpoint: str, transform: Callable[[DataFrame], DataFrame] | None
    ) -> None:
        """Write into a table.

        Args:
            table: the table.
            checkpoint: the query's checkpoint folder.
            transform: applied to the rows of each batch before they are written.
        """
        self._path, self._table_id = table.path, table.spec.table_id
        self._runtime: Mapping[str, ClientValue] = table.runtime
        self._allowed: Allowed = table.allowed
        self._checkpoint = checkpoint
        self._transform = transform
        self._handle: SparkHandle | None = None
        self._outages = Outages()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write the rows of a micro-batch, unless they have already landed."""
        with micro_batch(batch):
            if self._handle is None:
                self._handle = self._opened(batch.sparkSession)
            rows = batch if self._transform is None else self._transform(batch)
            # A micro-batch that has landed is not written again; what is missing of it in the log is published.
            commit_id = commit_id_of(self._checkpoint, number, self._table_id)
            if self._outages.outlast(partial(self._handle.write, partial(stage_frame, rows), commit_id)) is not None:
                note_landed(self._checkpoint, number, self._table_id)

    def _opened(self, spark: SparkSession) -> SparkHandle:
        table = TableContext.open(self._path, self._runtime, self._allowed, self._table_id)
        check_table(self._checkpoint, self._path, self._table_id)
        return SparkHandle(spark, table)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; the copy opens the table itself."""
        return {**self.__dict__, "_handle": None}
