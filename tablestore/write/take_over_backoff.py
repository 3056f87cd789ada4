"""Backoff between publishers that compete for one log, and the limits after which a publisher gives up.

The log is correct without this module, because a publisher that takes the log over fences the previous owner. The
backoff prevents publishers from fencing each other repeatedly so that none of them publishes anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from log_system.index import LogIndex

ATTEMPTS_MAX = 8
PATIENCE_SECONDS_MAX = 60.0
"""How long after a first failure a publisher retries while no snapshot gets into the log."""
_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 10.0
_DOUBLINGS_MAX = 6
_LOOK_SECONDS = 0.005


class TakeOverBackoff:
    """Makes a publisher wait before it takes the log over, as long as the log's owner makes progress.

    The owner publishes every committed snapshot together with its own next one, so it usually publishes ours too; a
    take-over would slow both down. The waiting time adapts: it is about the duration of a take-over, doubled each time
    we are fenced and halved each time we publish. A fixed time would not do: on a busy machine, a take-over and a
    publish together may take longer, and publishers that wait less than that would fence each other forever.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        count: Callable[[str], None] = lambda event: None,
    ) -> None:
        """Start without any known competitor; ``count`` gets each ``fence`` and ``retry``."""
        self.clock = clock
        self.sleep = sleep
        self._count = count
        self._fenced = 0
        self._cost = _WAIT_SECONDS_MIN

    @contextmanager
    def take_over(self) -> Iterator[None]:
        """Measure the duration of a take-over."""
        began = self.clock()
        yield
        self._cost = max(_WAIT_SECONDS_MIN, self.clock() - began)

    def fenced(self) -> None:
        """Double the waiting time, because another publisher took the log over from us."""
        self._count("fence")
        self._fenced = min(self._fenced + 1, _DOUBLINGS_MAX)

    def wait_to_retry(self, failures: int) -> None:
        """Wait after an error of the broker, the longer the more there were in a row."""
        self._count("retry")
        self.sleep(random.uniform(0, min(2.0, 0.05 * 2**failures)))

    def published(self) -> None:
        """Halve the waiting time, because we published without being fenced."""
        self._fenced = max(self._fenced - 1, 0)

    def wait(self, index: LogIndex, snapshot: int) -> int:
        """Wait while another publisher moves the log towards ``snapshot``; return at once if we were never fenced.

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
    """Decides when to stop retrying: after too many failures in a row, or too long without a published snapshot."""

    def __init__(self, clock: Callable[[], float], wait_seconds: float) -> None:
        """Start counting now.

        Args:
            clock: returns the time in seconds.
            wait_seconds: how long a broker may fail to answer, over all attempts.
        """
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._seen = -1
        self._since: float | None = None
        self._answered = clock()
        self.failures = 0

    def answered(self) -> None:
        """Restart the time limit for an answer, because the broker has answered."""
        self._answered = self._clock()

    def is_out(self, published: int, *, failed: bool = False) -> bool:
        """Count an unsuccessful attempt and return whether to give up.

        Args:
            published: the newest snapshot in the index.
            failed: the broker failed; False if another publisher fenced this one.
        """
        # Other publishers may be busy for long, so time counts from the first unsuccessful attempt. A broker that does
        # not answer has used up time before that, which counts too.
        now = self._clock()
        if published != self._seen or self._since is None:
            self._seen, self._since, self.failures = published, now, 0
        self.failures += failed
        silent = failed and now - self._answered > self._wait_seconds
        return silent or self.failures >= ATTEMPTS_MAX or now - self._since > PATIENCE_SECONDS_MAX


def newest(index: LogIndex) -> int:
    """Return the newest snapshot in the index; 0 if the index is empty."""
    latest = index.latest()
    return 0 if latest is None else latest.snapshot
