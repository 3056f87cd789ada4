"""A task's context, as Spark sets it up in a Python worker, and what kills one."""

from __future__ import annotations

import json
import os
import signal
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


class DiesOnce:
    """A partitioner that kills the process it runs in, in the midst of a task, while the file `MARK` names is there."""

    MARK = "TEST_WORKER_DIES"

    def partition(self, key: bytes | None, value: bytes | None, topic: str, partitions: Sequence[int]) -> int:
        number: int = json.loads(value or b"")["n"]
        mark = Path(os.environ[self.MARK])
        if number == 23 and mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return partitions[number % len(partitions)]
