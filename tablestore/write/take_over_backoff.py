"""How publishers of one log keep out of each other's way, and when one of them gives up.

Nothing here is needed for the log to be right: whoever takes it over fences the owner before. It keeps them from doing
that to each other again and again, so that nobody gets to publish anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from log_system.index import LogIndex

ATTEMPTS_MAX = 8
PATIENCE_SECONDS_MAX = 60.0
"""For how long after a first failure it is tried again while nobody gets a snapshot into the log."""
_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 10.0
_DOUBLINGS_MAX = 6
_LOOK_SECONDS = 0.005


class TakeOverBackoff:
    """Lets a publisher that does not own the log leave it to the owner, while that makes progress.

    The owner publishes every committed snapshot with its own next one, so it usually publishes ours too, and a
    take-over would cost both. How long to wait for it is learnt: about what a take-over takes us, doubled each time we
    are fenced, halved each time we publish. On a busy machine a take-over and a publish may together take longer than
    any fixed time, and then publishers that wait no longer than that would fence each other for ever.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Know of nobody else yet."""
        self.clock = clock
        self.sleep = sleep
        self._fenced = 0
        self._cost = _WAIT_SECONDS_MIN

    @contextmanager
    def take_over(self) -> Iterator[None]:
        """Learn what a take-over takes."""
        began = self.clock()
        yield
        self._cost = max(_WAIT_SECONDS_MIN, self.clock() - began)

    def fenced(self) -> None:
        """Somebody has taken the log over from us."""
        self._fenced = min(self._fenced + 1, _DOUBLINGS_MAX)

    def published(self) -> None:
        """We have published something undisturbed."""
        self._fenced = max(self._fenced - 1, 0)

    def wait(self, index: LogIndex, snapshot: int) -> int:
        """Wait while the log moves towards ``snapshot`` without us; not at all while nobody has ever fenced us.

        Returns:
            The newest snapshot in the index.
        """
        seen, since = newest(index), self.clock()
        patience = self._cost * 2**self._fenced * random.uniform(0.5, 1.5) if self._fenced else 0.0
        patience = min(patience, _WAIT_SECONDS_MAX)
        while seen < snapshot and self.clock() - since < patience:
            self.sleep(_LOOK_SECONDS)
            now = newest(index)
            if now != seen:
                seen, since = now, self.clock()
        return seen


class Patience:
    """Says when to stop trying: too many failures in a row, or too long without a snapshot getting into the log."""

    def __init__(self, clock: Callable[[], float], wait_seconds: float) -> None:
        """Begin to count now.

        Args:
            clock: tells the time.
            wait_seconds: how long a broker may fail to answer, all tries together.
        """
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._seen = -1
        self._since: float | None = None
        self._answered = clock()
        self.failures = 0

    def answered(self) -> None:
        """The broker has answered: what it does from here on may take its time."""
        self._answered = self._clock()

    def is_out(self, published: int, *, failed: bool = False) -> bool:
        """Count a try that did not succeed; ``failed`` where the broker did, not another publisher was faster."""
        # Others may be at work for long, so time counts from the first try that did not succeed; a broker that does not
        # answer has used up time before that.
        now = self._clock()
        if published != self._seen or self._since is None:
            self._seen, self._since, self.failures = published, now, 0
        self.failures += failed
        silent = failed and now - self._answered > self._wait_seconds
        return silent or self.failures >= ATTEMPTS_MAX or now - self._since > PATIENCE_SECONDS_MAX


def newest(index: LogIndex) -> int:
    """Give the newest snapshot in the index; 0 for none."""
    latest = index.latest()
    return 0 if latest is None else latest.snapshot
