"""How a part of a read travels through Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType

from snapshot.schema.spark_types import arrow_schema
from snapshot.schema.spec import TableSpec
from snapshot.schema.system_columns import conform, relabelled
from tablestore.read.splits import Split
from tablestore.spark.python_worker import begin_task


class ReadSplit(InputPartition):
    """Carries a part through Spark."""

    def __init__(self, part: Split) -> None:
        """Carry ``part``."""
        super().__init__(part)
        self.part = part


def frame_of_splits(spark: SparkSession, parts: Sequence[Split], spec: TableSpec, columns: Sequence[str]) -> DataFrame:
    """Make a frame of the rows of parts, a task each.

    A data source is planned by a Python process of its own, each time a frame of it is used; here the parts are known.

    Args:
        spark: the session.
        parts: what is read.
        spec: the table, with the columns to give.
        columns: the columns, in the order in which they are given.
    """
    held, names = list(parts), list(columns)
    wanted = StructType([spec.schema[name] for name in names])
    if not held:
        return spark.createDataFrame([], wanted)
    # Names without meaning: a dot in one would be taken for a field of a struct.
    given = StructType([StructField(f"c{number}", f.dataType) for number, f in enumerate(wanted.fields)])
    fitted, inner = arrow_schema(wanted), arrow_schema(given)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in held[number].read():
                    yield relabelled(conform(rows, fitted), inner)

    return spark.range(0, len(held), 1, len(held)).mapInArrow(read, given).toDF(*names)
