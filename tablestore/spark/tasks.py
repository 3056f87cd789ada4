"""Runs work as Spark tasks, using only DataFrames, so that it works over Spark Connect too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from snapshot.errors import TableStoreError, error_of
from tablestore.spark.connect import AGAIN, is_remote, running
from tablestore.spark.error_messages import full_disks_named
from tablestore.spark.python_worker import begin_task
from tablestore.spark.shipped import shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
_TASKS_PER_CORE = 4
"""Spark tasks per core among which work is divided: a Spark task costs 10 to 20 ms, and shares of equal size rarely
take equally long."""
_CORES_UNKNOWN = 8
"""Cores assumed over Spark Connect, which does not say how many there are."""
_RESULT = "number long, result string, kind string, message string"
_ARROW = pa.schema([("number", pa.int64()), ("result", pa.string()), ("kind", pa.string()), ("message", pa.string())])


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the session runs at the same time, as far as it says so."""
    for setting in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
        if (given := spark.conf.get(setting, None)) is not None:
            return int(given)
    return _CORES_UNKNOWN if is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def shares(spark: SparkSession, count: int) -> int:
    """Return into how many Spark tasks a number of pieces of work, such as buckets, should be divided."""
    return min(count, _TASKS_PER_CORE * parallelism(spark))


@full_disks_named()
def run_tasks(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], str]) -> list[str]:
    """Run ``work`` on each task, several of them in one Spark task if there are many; Spark retries tasks that die.

    A ``TableStoreError`` is returned as data. If it were raised, Spark would wrap it in its own exception and retry the
    task; the retry of a task that another publisher has fenced would fence that publisher's tasks in turn.

    Returns:
        The results in the order of the tasks.

    Raises:
        TableStoreError: the error of the first task that failed, raised after all tasks have ended.
    """
    if not tasks:
        return []
    held, spark = list(tasks), running(spark, "a table", AGAIN)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    answer: tuple[str | None, ...] = (work(held[number]), None, None)
                except TableStoreError as error:
                    answer = (None, error.kind, str(error))
                names = ("number", "result", "kind", "message")
                yield pa.RecordBatch.from_pylist([dict(zip(names, (number, *answer), strict=True))], schema=_ARROW)

    frame = spark.range(0, len(held), 1, shares(spark, len(held))).mapInArrow(shipped(run), _RESULT)
    found = {row.number: row for row in frame.collect()}
    in_order = [found[number] for number in range(len(held))]
    for row in in_order:
        if row.kind is not None:
            raise error_of(row.kind, row.message)
    return [row.result for row in in_order]
