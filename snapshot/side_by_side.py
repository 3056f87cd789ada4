"""Calls that wait for answers of an object store, all at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from snapshot.storage import Storage
from snapshot.threads import Threads

_THREADS_MAX: Final = 16
Found = TypeVar("Found")


def side_by_side(storage: Storage, *calls: Callable[[], Found]) -> Iterator[Found]:
    """Return an iterator over what calls return, in their order; it raises what they raise.

    They run at the same time if the folder is in an object store. On a local disk each runs when its result is asked
    for, since starting a thread would take longer than most calls.
    """
    if storage.is_local or len(calls) < 2:
        return (call() for call in calls)
    with Threads(min(len(calls), _THREADS_MAX), "tablestore-ask") as pool:
        futures = [pool.submit(call) for call in calls]
    return (future.result() for future in futures)
