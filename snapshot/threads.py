"""Threads for calls that run at the same time.

`ThreadPoolExecutor` takes no calls once the main thread has ended. A program may leave its work to other threads, for
which Python waits, so the threads here take calls as long as the program runs. They end when there is no call left:
Python would wait for them too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, Generic, Self, TypeVar

Result = TypeVar("Result")


class Threads:
    """Runs calls in threads; the end of the ``with`` block waits for all of them."""

    def __init__(self, threads_max: int, name: str) -> None:
        """Take calls for up to ``threads_max`` threads at a time, which have this name."""
        self._threads_max = threads_max
        self._name = name
        self._lock = Lock()
        self._calls: deque[_Call[Any]] = deque()
        self._running = 0
        self._started: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._started:
            thread.join()

    def submit(self, call: Callable[..., Result], *values: Any) -> Future[Result]:
        """Call a function with these values in a thread that is free."""
        future: Future[Result] = Future()
        with self._lock:
            self._calls.append(_Call(future, call, values))
            if self._running < self._threads_max:
                thread = Thread(target=self._run, name=f"{self._name}_{len(self._started)}", daemon=False)
                thread.start()
                self._running += 1
                self._started.append(thread)
        return future

    def map(self, call: Callable[..., Result], *values: Iterable[Any]) -> list[Result]:
        """Call a function with the values of each place and return the results; raise the first error.

        Calls that have not begun when an earlier one has failed are left out.
        """
        futures = [self.submit(call, *each) for each in zip(*values, strict=True)]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running -= 1
                    return
                call = self._calls.popleft()
            call.run()


class _Call(Generic[Result]):
    def __init__(self, future: Future[Result], call: Callable[..., Result], values: tuple[Any, ...]) -> None:
        self._future = future
        self._call = call
        self._values = values

    def run(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            result = self._call(*self._values)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._future.set_exception(error)
            # The error holds this frame.
            del self
        else:
            self._future.set_result(result)
