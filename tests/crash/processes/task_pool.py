"""Task processes without Spark: forked from a template before any thread starts, tried again when they die."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

ATTEMPTS_MAX = 4


class TaskPool:
    """Runs tasks in processes of their own and repeats those that die or fail, as Spark does.

    Must be made before this process has threads. It outlives its owner until the tasks under way have ended.
    """

    def __init__(self, on_first_attempt: Callable[[], None]) -> None:
        """Call ``on_first_attempt`` in each task process that is no repetition."""
        self._pipe, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            self._pipe.close()
            try:
                _serve(theirs, on_first_attempt)
            finally:
                os._exit(0)
        theirs.close()

    def run(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        """Run ``work`` on each task at once and give the results in order."""
        self._pipe.send((work, list(tasks)))
        results, error = self._pipe.recv()
        if error is not None:
            raise error
        return list(results)


def _serve(pipe: Any, on_first_attempt: Callable[[], None]) -> None:
    while True:
        try:
            work, tasks = pipe.recv()
        except EOFError:
            return
        running = [_fork(work, task, on_first_attempt) for task in tasks]
        results: list[Any] = []
        error: Exception | None = None
        for task, first in zip(tasks, running, strict=True):
            answer = _wait(first)
            for _ in range(ATTEMPTS_MAX - 1):
                if answer is not None and answer[1] is None:
                    break
                answer = _wait(_fork(work, task, lambda: None))
            result, failure = answer if answer is not None else (None, RuntimeError("the task died again and again"))
            error = error or failure
            results.append(result)
        try:
            pipe.send((results, error))
        except BrokenPipeError:
            return


def _fork(work: Callable[[Any], Any], task: Any, prepare: Callable[[], None]) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            prepare()
            answer: tuple[Any, Exception | None] = (work(task), None)
        except Exception as error:  # noqa: BLE001 - handed to the parent
            answer = (None, error)
        with os.fdopen(writer, "wb") as out:
            pickle.dump(answer, out)
        os._exit(0)
    os.close(writer)
    return pid, reader


def _wait(child: tuple[int, int]) -> tuple[Any, Exception | None] | None:
    pid, reader = child
    with os.fdopen(reader, "rb") as source:
        text = source.read()
    os.waitpid(pid, 0)
    return pickle.loads(text) if text else None
