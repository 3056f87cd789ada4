"""Runs an operator with state over the rows of a continuous query, in tasks that each have one bucket of the groups.

Rows are sent to the bucket of their group's hash. Each task reads the micro-batch's id from Spark, opens its bucket's
state after the micro-batch before, computes, writes the state after this one, and then returns rows. A micro-batch
that is repeated starts from the same state with the same rows, so it writes and returns the same again.

Every bucket gets a marker row in every micro-batch: so each writes each version of its state, and a version that is
missing is noticed instead of taken for an empty one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from snapshot.errors import InvalidInputError
from snapshot.merge.bucket_hash import bucket_of
from snapshot.merge.duckdb_engine import spilling
from snapshot.storage import Storage
from tablestore.normalize.segments import HASH
from tablestore.normalize.state_upkeep import clean
from tablestore.spark.python_worker import begin_task
from tablestore.sql.operators.row_multiset import RowMultiset

_BUCKET: Final = "_bucket"
_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
_CLEANED_EVERY: Final = 16
"""After how many micro-batches a bucket removes versions of its state that are no longer needed."""
_MEMORY: Final = "1GB"


@dataclass(frozen=True)
class StatePlace:
    """Where an operator of a query keeps its state. Picklable.

    Attributes:
        folder: the folder of the states of queries.
        name: the operator's name, which is unique in its query and the same each time the query starts.
    """

    folder: Storage
    name: str


@dataclass(frozen=True)
class Task:
    """A task's view of the micro-batch.

    Attributes:
        db: DuckDB, for the task's queries.
        folder: the bucket's folder.
        batch: id of the micro-batch.
    """

    db: duckdb.DuckDBPyConnection
    folder: Storage
    batch: int

    @contextmanager
    def state(self, columns: pa.Schema, folder: Storage | None = None) -> Iterator[RowMultiset]:
        """Yield the bucket's state before the micro-batch, and save what it has become as the state after it.

        Args:
            columns: the columns of the state's rows.
            folder: where the state is, if the bucket has several.
        """
        folder = folder or self.folder
        state = RowMultiset.open(self.db, folder, columns, self.batch)
        try:
            yield state
            state.save()
        finally:
            state.discard()
        if self.batch % _CLEANED_EVERY == _CLEANED_EVERY - 1:
            # The micro-batches before this one are complete.
            clean(folder, self.batch - 1)


class StatefulStep(ABC):
    """The function of an operator that processes a bucket's rows. Picklable."""

    @abstractmethod
    def run(self, task: Task, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the operator's rows; its state is saved before the first one.

        ``rows`` has the columns of the frame and ``_hash``, the group's hash.
        """


def run_in_buckets(
    frame: DataFrame, groups: Sequence[str], place: StatePlace, step: StatefulStep, schema: StructType
) -> DataFrame:
    """Return the rows that an operator makes of a streaming frame.

    Args:
        frame: the rows. No name of a column may have a dot.
        groups: names of the columns that identify a group; none if all rows are one.
        place: where the state is.
        step: the operator.
        schema: the columns that it returns.

    Returns:
        A frame, to be run with Spark's check of operators off, since Spark does not know this one.

    Raises:
        InvalidInputError: the folder's file system cannot create a file only if it is absent.
    """
    place.folder.check_put_new()
    spark = frame.sparkSession
    buckets = int(spark.conf.get("spark.sql.shuffle.partitions") or 1) if groups else 1
    routes = _routes(buckets)
    hashed = F.xxhash64(*(_without_sign_of_zero(frame, name) for name in groups)) if groups else F.lit(0)
    rows = _kept_if_empty(frame).withColumn(HASH, hashed.cast("bigint"))
    rows = rows.withColumn(_BUCKET, F.pmod(F.col(HASH), F.lit(buckets)).cast("int"))
    markers = spark.range(0, buckets, 1, 1).select(
        *(F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema if field.name != _BUCKET),
        F.col("id").cast("int").alias(_BUCKET),
    )
    route = F.element_at(F.array(*map(F.lit, routes)), F.col(_BUCKET) + 1)
    return rows.union(markers).repartition(buckets, route).mapInArrow(_Run(place, step, buckets), schema)


def _kept_if_empty(frame: DataFrame) -> DataFrame:
    """Return a streaming frame that Spark's optimizer leaves in a union when a micro-batch has none of its rows.

    Without it the union would be that of the markers, which does not stream, so Spark would plan the aggregates over it
    without their state. Of all operators that change no rows, the optimizer does not remove this one.
    """
    return frame.select("*", F.posexplode(F.array(F.lit(0))).alias("_place", "_zero")).drop("_place", "_zero")


@dataclass(frozen=True)
class _Run:
    """The function that Spark runs in each task."""

    place: StatePlace
    step: StatefulStep
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            return
        rows = pa.Table.from_batches(held)
        (bucket,) = rows.column(_BUCKET).unique().to_pylist()
        query, batch = _micro_batch()
        rows = rows.filter(pc.is_valid(rows.column(HASH))).drop_columns([_BUCKET])
        folder = self.place.folder.child(query).child(self.place.name).child(f"{bucket}-of-{self.buckets}")
        with spilling(memory_limit=_MEMORY) as db:
            yield from self.step.run(Task(db, folder, batch), rows)


def _micro_batch() -> tuple[str, int]:
    """Return the id of the streaming query and of its micro-batch."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if query is None or batch is None:
        msg = (
            "this frame is the result of a continuous query: run it by writeStream. In foreachBatch, use its rows in "
            "the thread in which Spark calls the function."
        )
        raise InvalidInputError(msg)
    return query, int(batch)


def _routes(buckets: int) -> list[int]:
    """Return for each bucket a number that Spark's hash partitioning sends to the partition of that number."""
    found: dict[int, int] = {}
    start = 0
    while len(found) < buckets:
        numbers = pa.array(range(start, start + 4 * buckets), pa.int32())
        batch = pa.RecordBatch.from_arrays([numbers], names=["number"])
        for number, bucket in zip(numbers.to_pylist(), bucket_of(batch, ["number"], buckets).tolist(), strict=True):
            found.setdefault(bucket, number)
        start += 4 * buckets
    return [found[bucket] for bucket in range(buckets)]


def _without_sign_of_zero(frame: DataFrame, name: str) -> Column:
    """Return a column for hashing, in which values that are equal have the same bits."""
    column = F.col(name)
    return column + F.lit(0.0) if isinstance(frame.schema[name].dataType, DoubleType | FloatType) else column
