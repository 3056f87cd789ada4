"""A task's context, as Spark sets it up in a Python worker, and what kills one."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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


def mark_of(topic: str) -> Path:
    """Name the file whose presence makes ``DiesOnce`` die."""
    return Path(tempfile.gettempdir()) / f"dies-{topic}"


class DiesOnce:
    """A partitioner that kills the process which writes, in the midst of a task."""

    def partition(self, key: bytes | None, value: bytes | None, topic: str, partitions: Sequence[int]) -> int:
        if mark_of(topic).exists() and json.loads(value or b"")["n"] == 23:
            mark_of(topic).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return partitions[0]
