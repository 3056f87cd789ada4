"""How often the service works on a table, and the attempts at that, which it repeats until they succeed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from snapshot.errors import TableStoreError

logger = logging.getLogger("tablestore")


@dataclass(frozen=True)
class Schedule:
    """How often the service looks at a table and works on it, in seconds.

    Attributes:
        poll: between looks at a table.
        grace: how long the log may stay behind without progress before the watcher publishes: a live writer's own
            publishing takes less. It is doubled, up to four times as long, where a writer was slow but alive.
        maintain: between checks whether compaction or expiry is due.
        verify: between comparisons of new snapshots in log and table; None for never.
        verify_whole: between comparisons of the whole log with the table.
        retry: before the next attempt after an error.
    """

    poll: float = 0.2
    grace: float = 0.5
    maintain: float = 30.0
    verify: float | None = None
    verify_whole: float = 86_400.0
    retry: float = 2.0


@dataclass(frozen=True)
class Attempts:
    """The outcome of the attempts at some work.

    Attributes:
        error: why the last attempt failed; empty after a success.
        errors: how many attempts failed, by kind of error.
    """

    error: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)

    def failed(self, error: Exception, what: str) -> Self:
        """Return the outcome after another failure, and log it unless the last attempt failed in the same way.

        ``what`` is the work, for the message, such as ``table /data/orders: verify``.
        """
        kind = error.kind if isinstance(error, TableStoreError) else type(error).__name__
        text = str(error) or kind
        if text != self.error:
            unexpected = not isinstance(error, TableStoreError)
            logger.warning("%s: %s: %s", what, kind, text, exc_info=unexpected)
        return replace(self, error=text, errors={**self.errors, kind: self.errors.get(kind, 0) + 1})

    def succeeded(self) -> Self:
        """Return the outcome after a success."""
        return replace(self, error="")

    def beside(self, other: Attempts) -> Attempts:
        """Return the outcome of two kinds of work."""
        return Attempts(self.error or other.error, Counter(self.errors) + Counter(other.errors))
