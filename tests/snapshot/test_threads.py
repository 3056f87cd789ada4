"""Threads that run calls: results in order, the first error, and nothing left behind."""

from __future__ import annotations

import threading

import pytest

from snapshot.threads import Threads
from tests.harness.waiting import PATIENCE_SECONDS


def test_calls_run_side_by_side_and_results_are_in_their_order() -> None:
    together = threading.Barrier(3)

    def work(number: int, text: str) -> str:
        together.wait(PATIENCE_SECONDS)
        return f"{number}{text}"

    with Threads(3, "side") as threads:
        assert threads.map(work, range(6), "abcdef") == ["0a", "1b", "2c", "3d", "4e", "5f"]
    assert not [each for each in threading.enumerate() if each.name.startswith("side_")]


def test_no_more_threads_than_were_asked_for_run_at_once() -> None:
    names: set[str] = set()
    with Threads(2, "few") as threads:
        waiting = [threads.submit(lambda: names.add(threading.current_thread().name)) for _ in range(50)]
        assert sum(each.name.startswith("few_") for each in threading.enumerate()) <= 2
    assert all(each.done() for each in waiting)
    assert names


def test_the_first_error_is_raised_and_calls_that_have_not_begun_are_left_out() -> None:
    begun: list[int] = []
    over = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise KeyError(number)
        over.wait(PATIENCE_SECONDS)

    with Threads(1, "one") as threads:
        with pytest.raises(KeyError, match="0"):
            threads.map(work, range(9))
        over.set()
    assert begun in ([0], [0, 1])


def test_the_end_of_the_block_waits_for_calls_also_after_an_error() -> None:
    go, ended = threading.Event(), threading.Event()

    def fail(threads: Threads) -> None:
        with threads:
            threads.submit(lambda: go.wait(PATIENCE_SECONDS) and ended.set())
            threading.Timer(0.2, go.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(Threads(2, "late"))
    assert ended.is_set()
