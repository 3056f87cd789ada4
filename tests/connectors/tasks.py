"""A task's context, as Spark sets it up in a Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def as_task(number: int, **properties: str) -> Iterator[None]:
    """Be the task of this number; dots of properties are written ``__``."""
    before = TaskContext._taskContext
    TaskContext._setTaskContext(
        TaskContext(
            partitionId=number,
            taskAttemptId=number,
            attemptNumber=0,
            stageId=0,
            cpus=1,
            resources={},
            localProperties={name.replace("__", "."): value for name, value in properties.items()},
        )
    )
    try:
        yield
    finally:
        TaskContext._taskContext = before
