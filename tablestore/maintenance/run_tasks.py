"""Run the tasks of maintenance: on Spark, or in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class RunTasks(Protocol):
    """A function that runs ``work`` on each task at least once and returns the results in the order of the tasks."""

    def __call__(self, tasks: Sequence[T], work: Callable[[T], str], /) -> list[str]:
        """Run the tasks."""
        ...
