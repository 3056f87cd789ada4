"""Runs work as Spark tasks, one a Spark partition, without anything but DataFrames (so also over Spark Connect)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from log_system.kafka.register import Position
from log_system.kafka.tasks import PartitionTask, publish_partition

Task = TypeVar("Task")
_RESULT = "number long, result string"


def run_tasks(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], str]) -> list[str]:
    """Run ``work`` on each task, in Spark tasks of their own; Spark repeats those that fail.

    Returns:
        The results, in the order of the tasks.
    """
    if not tasks:
        return []
    held = list(tasks)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = work(held[number])
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    frame = spark.range(0, len(held), 1, len(held)).mapInArrow(run, _RESULT)
    found = {row.number: row.result for row in frame.collect()}
    return [found[number] for number in range(len(held))]


def publish_with_spark(spark: SparkSession) -> Callable[[Sequence[PartitionTask]], list[Position]]:
    """Publish large snapshots by Spark tasks."""

    def publish(tasks: Sequence[PartitionTask]) -> list[Position]:
        results = run_tasks(spark, tasks, lambda task: json.dumps(asdict(publish_partition(task))))
        return [Position(**json.loads(result)) for result in results]

    return publish
