"""What outlives a task: Spark reuses its Python workers, and connecting takes longer than a small task."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_KEPT_MAX: Final = 4


class ThreadLocalCache(threading.local, Generic[K, V]):
    """The few that were used last, for each thread its own: none of them is used by two at a time."""

    def __init__(self, close: Callable[[V], Any] = lambda _: None) -> None:
        """Hold none yet; ``close`` ends one that is no longer kept."""
        self._close = close
        self._held: OrderedDict[K, V] = OrderedDict()

    def take(self, key: K, make: Callable[[], V]) -> V:
        """Give the one of this key, made when it is asked for first."""
        if key not in self._held:
            self._held[key] = make()
            while len(self._held) > _KEPT_MAX:
                self._close(self._held.popitem(last=False)[1])
        self._held.move_to_end(key)
        return self._held[key]

    def borrow(self, key: K) -> V | None:
        """Take the one of this key out, so that nobody else is given it; None where none is kept."""
        return self._held.pop(key, None)

    def give_back(self, key: K, value: V) -> None:
        """Keep one that was borrowed or is new. Where one of its key is kept, that one stays and this one ends."""
        if key in self._held:
            self._close(value)
        else:
            self.take(key, lambda: value)

    def forget(self, key: K) -> None:
        """Close the one of this key, which has failed."""
        if key in self._held:
            self._close(self._held.pop(key))
