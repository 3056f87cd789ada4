"""Outages: readers repeat a request that was answered before while brokers or stores do not answer.

A running query that follows a log has nothing better to do, and the outage ends without it. What has never been
answered, such as the first look at a wrong address, fails at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from snapshot.disk import is_refused
from snapshot.errors import OutcomeUnknownError, TableStoreError, UnavailableError

logger: Final = logging.getLogger("tablestore")
OUTAGE_SECONDS: Final = 600.0
"""How long a reader that has been answered before waits for the next answer."""
_REST_SECONDS: Final = 1.0
T = TypeVar("T")


class Outages:
    """Repeats the questions of one reader while there is no answer."""

    def __init__(self, *, was_answered: bool = False) -> None:
        """Begin as a reader that has not been answered yet, or has been."""
        self._was_answered = was_answered
        self._silent_since: float | None = None

    def outlast(self, ask: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """Return what ``ask`` returns; repeat it while it raises that there is no answer, which is logged.

        Args:
            ask: asks brokers or stores; it may be called several times, whether it had an effect or not.
            again: what is called in its place after the first time.

        Raises:
            UnavailableError: nothing has ever been answered, or nothing for ``OUTAGE_SECONDS``, or waiting cannot help.
            OutcomeUnknownError: as before.
        """
        while True:
            began = time.monotonic()
            try:
                answer = ask()
            except (UnavailableError, OutcomeUnknownError) as error:
                self._silent_since = began if self._silent_since is None else self._silent_since
                left = self._silent_since + OUTAGE_SECONDS - time.monotonic()
                if not self._was_answered or left < 0 or _lasts(error):
                    raise
                logger.warning("%s Asking again, for at most another %.0f s.", error, left)
                time.sleep(_REST_SECONDS)
                ask = again or ask
            else:
                self._was_answered, self._silent_since = True, None
                return answer


def outlasting(asked: T) -> T:
    """Return an object with the attributes of ``asked``, whose methods outlast outages (see ``Outages``)."""
    return cast("T", _Outlasting(asked))


class _Outlasting:
    def __init__(self, asked: object) -> None:
        self._asked = asked
        self._outages = Outages()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._asked, name)
        return partial(self._repeated, found) if callable(found) else found

    def _repeated(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._outages.outlast(partial(method, *args, **kwargs))


def _lasts(error: TableStoreError) -> bool:
    """Return whether an error does not end by itself: a file system refuses, or the cause is of another kind."""
    cause = error.__cause__
    is_other = isinstance(cause, TableStoreError) and not isinstance(cause, UnavailableError | OutcomeUnknownError)
    return is_refused(cause) or is_other
