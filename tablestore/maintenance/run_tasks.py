"""The tasks of maintenance, which run on Spark or in threads of this process, and the results of those that write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Protocol, TypeVar

from snapshot.delta.log import DataFile

T = TypeVar("T")


class RunTasks(Protocol):
    """A function that runs ``work`` on each task at least once and returns the results in the order of the tasks."""

    def __call__(self, tasks: Sequence[T], work: Callable[[T], str], /) -> list[str]:
        """Run the tasks."""
        ...


def as_result(files: Iterable[DataFile]) -> str:
    """Return files that a task has written as its result."""
    return json.dumps([asdict(file) for file in files])


def files_in(results: Iterable[str]) -> list[DataFile]:
    """Return the files in the results of tasks."""
    return [DataFile(**each) for result in results for each in json.loads(result)]
