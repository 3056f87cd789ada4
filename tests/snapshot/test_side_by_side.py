"""Calls run at the same time where each waits for an object store, and only when needed where none does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Barrier

import pytest

from snapshot.side_by_side import side_by_side
from snapshot.storage import Storage


def test_calls_on_an_object_store_run_at_the_same_time() -> None:
    storage, meeting = Storage.at("memory://side-by-side"), Barrier(3)

    def call(number: int) -> Callable[[], int]:
        def run() -> int:
            meeting.wait(timeout=30)
            return number

        return run

    assert list(side_by_side(storage, *map(call, range(3)))) == [0, 1, 2]


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    found = side_by_side(Storage.at("memory://side-by-side"), lambda: 1, lambda: 1 // 0, lambda: 3)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_a_local_call_runs_when_its_result_is_asked_for(tmp_path: Path) -> None:
    ran = list[int]()
    found = side_by_side(Storage.at(tmp_path), lambda: ran.append(1), lambda: ran.append(2))
    next(found)
    assert ran == [1]
