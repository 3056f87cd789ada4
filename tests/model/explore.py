"""Breadth-first search over all states of a model, with the shortest way to a state that breaks a promise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
STATES_MAX = 2_000_000


@dataclass(frozen=True)
class Found(Generic[State]):
    """What a search has found.

    Attributes:
        states: how many states it has visited.
        violation: what is wrong in the last state; None when nothing is wrong anywhere.
        path: the steps to that state, one line each; as few as there can be.
    """

    states: int
    violation: str | None = None
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Tell the story."""
        if self.violation is None:
            return f"{self.states} states, no promise broken"
        lines = [f"  {number:2d}. {line}" for number, line in enumerate(self.path, 1)]
        return "\n".join([f"{self.violation} ({self.states} states; the shortest way there:)", *lines])


def explore(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    broken: Callable[[State], Sequence[str]],
    *,
    states_max: int = STATES_MAX,
) -> Found[State]:
    """Visit every state that can be reached, nearest first, until one is broken.

    Args:
        start: the first state.
        steps: gives each step that is possible in a state, as a line to read and the state after it.
        broken: says what is wrong with a state, then the steps from there that show it; empty when all is well.
        states_max: the search fails when there are more states.

    Raises:
        RuntimeError: there are more than ``states_max`` states, so the search proves nothing.
    """
    collecting = gc.isenabled()
    # Nothing here has cycles, and looking for them among a million tuples takes a quarter of the time.
    gc.disable()
    try:
        return _explore(start, steps, broken, states_max)
    finally:
        if collecting:
            gc.enable()


def _explore(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    broken: Callable[[State], Sequence[str]],
    states_max: int,
) -> Found[State]:
    came: dict[State, tuple[State, str] | None] = {start: None}
    layer = [start]
    if violation := broken(start):
        return Found(1, violation[0], tuple(violation[1:]))
    while layer:
        following: list[State] = []
        for state in layer:
            for line, after in steps(state):
                known = len(came)
                came.setdefault(after, (state, line))
                if len(came) == known:
                    continue
                if violation := broken(after):
                    return Found(len(came), violation[0], (*_path(came, after), *violation[1:]))
                following.append(after)
        if len(came) > states_max:
            msg = f"the model has more than {states_max} states; make the scenario smaller."
            raise RuntimeError(msg)
        layer = following
    return Found(len(came))


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    lines: list[str] = []
    while (step := came[state]) is not None:
        state, line = step
        lines.append(line)
    return tuple(reversed(lines))
