"""The tasks of maintenance, which run on Spark or in threads of this process, and the files of those that write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from log_system.base import TaskRunner
from snapshot.delta.log import DataFile
from snapshot.errors import TableStoreError, UnavailableError, error_of
from snapshot.storage import Storage

T = TypeVar("T")


def written_by(
    run_tasks: TaskRunner, tasks: Sequence[T], work: Callable[[T], Sequence[DataFile]], storage: Storage
) -> list[DataFile]:
    """Run tasks that write files into a folder and return the files; if a task fails, none of them stays.

    Raises:
        TableStoreError: the error of the first task that failed.
    """
    outcomes = [json.loads(each) for each in run_tasks(tasks, partial(outcome_of, work))]
    files = [DataFile(**each) for outcome in outcomes for each in outcome["files"]]
    for outcome in outcomes:
        if outcome["error"] is not None:
            # Removing may fail too; then an orphan file is left.
            with suppress(UnavailableError):
                storage.delete(*(file.path for file in files))
            raise error_of(*outcome["error"])
    return files


def outcome_of(work: Callable[[T], Sequence[DataFile]], task: T) -> str:
    """Run a task and return its files or its error as JSON."""
    try:
        return json.dumps({"files": [asdict(file) for file in work(task)], "error": None})
    except TableStoreError as error:
        return json.dumps({"files": [], "error": [error.kind, str(error)]})
