"""``TableStore.inspect``: a table's metadata tables as Spark frames."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from tablestore.context import TableContext
from tablestore.inspect.metadata_tables import inspected
from tablestore.read import batch
from tablestore.spark.connect import arrow_frame


class Inspector:
    """Returns a table's metadata tables as Spark frames; each call reads the current metadata.

    The module ``metadata_tables`` makes them without Spark, and documents their columns.
    """

    def __init__(self, spark: Callable[[], SparkSession], table: Callable[[], TableContext]) -> None:
        """Inspect the table that ``table`` returns at each call, in the session that ``spark`` returns."""
        self._spark = spark
        self._table = table

    def snapshots(self) -> DataFrame:
        """Return the snapshots that have not expired, newest first. Columns: see ``metadata_tables.snapshots``."""
        return self.of("snapshots")

    def files(self) -> DataFrame:
        """Return the data files of the newest snapshot. Columns: see ``metadata_tables.files``."""
        return self.of("files")

    def partitions(self) -> DataFrame:
        """Return the partitions. Columns: see ``metadata_tables.partitions``."""
        return self.of("partitions")

    def buckets(self) -> DataFrame:
        """Return the buckets. Columns: see ``metadata_tables.buckets``."""
        return self.of("buckets")

    def schemas(self) -> DataFrame:
        """Return the table's current and past columns. Columns: see ``metadata_tables.schemas``."""
        return self.of("schemas")

    def options(self) -> DataFrame:
        """Return the options. Columns: see ``metadata_tables.options``."""
        return self.of("options")

    def log(self) -> DataFrame:
        """Return the log's partitions and their lag. Columns: see ``metadata_tables.log``."""
        return self.of("log")

    def consumers(self) -> DataFrame:
        """Return the named consumers and their lag. Columns: see ``metadata_tables.consumers``."""
        return self.of("consumers")

    def tags(self) -> DataFrame:
        """Return the tags. Columns: see ``metadata_tables.tags``."""
        return self.of("tags")

    def compacted(self) -> DataFrame:
        """Return the rows of the last compaction, without the changes since then; of a table without a key, all rows.

        These are the rows that other Delta readers see. Nothing has to be merged to read them.
        """
        return batch.read_compacted(self._spark(), self._table())

    def of(self, name: str) -> DataFrame:
        """Return the metadata table with this name.

        Raises:
            InvalidInputError: there is no metadata table with this name.
        """
        return arrow_frame(self._spark(), inspected(self._table(), name))
