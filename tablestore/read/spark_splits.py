"""Runs splits in Spark tasks: as partitions of a data source, and as a data frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType

from snapshot.errors import DataLostError
from snapshot.records import Split
from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import conform, relabelled
from tablestore.spark.error_messages import traceback_hidden
from tablestore.spark.python_worker import begin_task
from tablestore.spark.shipped import shipped


class FrameError(DataLostError):
    """Data that a frame of ``TableStore.read`` needs is lost; ``spark/lost_files.py`` shows it as ``DataLostError``.

    Reads of the data source raise ``DataLostError`` in a task, which stays an error of Spark.
    """


class ReadSplit(InputPartition):
    """A split as a partition of a Spark data source."""

    def __init__(self, part: Split) -> None:
        """Wrap ``part``."""
        super().__init__(part)
        self.part = part


def frame_of_splits(spark: SparkSession, parts: Sequence[Split], spec: TableSpec, columns: Sequence[str]) -> DataFrame:
    """Return a frame of the rows of splits with these columns, in this order; each split is one task.

    This is cheaper than a data source, which Spark plans in a separate Python process each time its frame is used.
    """
    held, names = list(parts), list(columns)
    wanted = StructType([spec.schema[name] for name in names])
    if not held:
        return spark.createDataFrame([], wanted)
    # Neutral names, because Spark takes a dot in a name for a struct field access.
    given = StructType([StructField(f"c{number}", f.dataType) for number, f in enumerate(wanted.fields)])
    fitted, inner = arrow_schema(wanted), arrow_schema(given)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        with traceback_hidden():
            try:
                for rows in chain.from_iterable(held[number].read() for number in numbers):
                    yield relabelled(conform(rows, fitted), inner)
            except DataLostError as error:
                raise FrameError(str(error)) from error

    return spark.range(0, len(held), 1, len(held)).mapInArrow(shipped(read), given).toDF(*names)
