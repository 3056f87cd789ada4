"""A cache that outlives Spark tasks: Spark reuses its Python workers, and connecting takes longer than a small task."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_KEPT_MAX: Final = 4


class ThreadLocalCache(threading.local, Generic[K, V]):
    """A small LRU cache per thread, so that no cached object is shared between threads."""

    def __init__(self, close: Callable[[V], Any] = lambda _: None) -> None:
        """Create an empty cache; ``close`` is called on each evicted object."""
        self._close = close
        self._held: OrderedDict[K, V] = OrderedDict()

    def take(self, key: K, make: Callable[[], V]) -> V:
        """Return the object for a key; create and cache it if it is missing."""
        if key not in self._held:
            self._held[key] = make()
            while len(self._held) > _KEPT_MAX:
                self._close(self._held.popitem(last=False)[1])
        self._held.move_to_end(key)
        return self._held[key]

    def borrow(self, key: K) -> V | None:
        """Remove and return the object for a key, so that no other caller can get it; None if there is none."""
        return self._held.pop(key, None)

    def give_back(self, key: K, value: V) -> None:
        """Cache a borrowed or new object; if the key already has an object, keep that one and close this one."""
        if key in self._held:
            self._close(value)
        else:
            self.take(key, lambda: value)

    def clear(self) -> None:
        """Close and remove all objects of this thread."""
        while self._held:
            self._close(self._held.popitem()[1])

    def forget(self, key: K) -> None:
        """Close and remove the object for a key, after it has failed."""
        if key in self._held:
            self._close(self._held.pop(key))
