"""Faults: real calls that fail, or at which the process dies, just before or just after they did their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Crash(BaseException):
    """The process dies here. No handler for ``Exception`` runs, and whoever raised it is dropped by the test."""


@contextmanager
def failing(
    owner: Any, name: str, error: BaseException | None = None, *, after: bool = False, hits: range = range(1, 2)
) -> Iterator[Callable[[], int]]:
    """Make a real method fail at some of its calls, before or after it has done its work.

    Args:
        owner: the class, or the module, that has it.
        name: its name.
        error: what it raises; a ``Crash`` by default.
        after: fail after the work is done, as when an answer is lost.
        hits: which calls fail, counted from 1.

    Yields:
        A function that tells how many calls there were.
    """
    kept, real, calls = vars(owner)[name], getattr(owner, name), 0

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls not in hits:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise error if error is not None else Crash(f"{name} {'after' if after else 'before'} call {calls}")

    setattr(owner, name, staticmethod(guarded) if isinstance(kept, classmethod | staticmethod) else guarded)
    try:
        yield lambda: calls
    finally:
        setattr(owner, name, kept)


@contextmanager
def preceded(owner: Any, name: str, act: Callable[[], object], *, at: int = 1) -> Iterator[Callable[[], bool]]:
    """Do something just before a call of a real method, as another process may at that very moment.

    Args:
        owner: the class, or the module, that has it.
        name: its name.
        act: what happens before the call; calls that it makes itself are not preceded.
        at: before which call, counted from 1.

    Yields:
        A function that tells whether it has happened.
    """
    kept, real, calls = vars(owner)[name], getattr(owner, name), 0

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            act()
        return real(*args, **kwargs)

    setattr(owner, name, guarded)
    try:
        yield lambda: calls >= at
    finally:
        setattr(owner, name, kept)
