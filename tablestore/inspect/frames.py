"""``TableStore.inspect``: what is inside a table, as Spark frames."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import inspected


class Inspector:
    """Makes frames of a table's metadata, as it is at the call. ``inspect_tables`` makes them without Spark."""

    def __init__(self, spark: SparkSession, table: Callable[[], TableContext]) -> None:
        """Inspect the table that ``table`` returns at each call."""
        self._spark = spark
        self._table = table

    def snapshots(self) -> DataFrame:
        """List the snapshots that have not expired, newest first; columns as ``inspect_tables.snapshots`` says."""
        return self.of("snapshots")

    def files(self) -> DataFrame:
        """List the data files of the newest snapshot; columns as ``inspect_tables.files`` says."""
        return self.of("files")

    def partitions(self) -> DataFrame:
        """List the partitions; columns as ``inspect_tables.partitions`` says."""
        return self.of("partitions")

    def buckets(self) -> DataFrame:
        """List the buckets; columns as ``inspect_tables.buckets`` says."""
        return self.of("buckets")

    def schemas(self) -> DataFrame:
        """List the columns of the table; columns as ``inspect_tables.schemas`` says."""
        return self.of("schemas")

    def options(self) -> DataFrame:
        """List the options; columns as ``inspect_tables.options`` says."""
        return self.of("options")

    def log(self) -> DataFrame:
        """List the log's partitions and their lag; columns as ``inspect_tables.log`` says."""
        return self.of("log")

    def consumers(self) -> DataFrame:
        """List the named consumers and their lag; columns as ``inspect_tables.consumers`` says."""
        return self.of("consumers")

    def tags(self) -> DataFrame:
        """List the tags; columns as ``inspect_tables.tags`` says."""
        return self.of("tags")

    def of(self, name: str) -> DataFrame:
        """Make the frame of this name.

        Raises:
            InvalidInputError: there is none of this name.
        """
        return self._spark.createDataFrame(inspected(self._table(), name))
