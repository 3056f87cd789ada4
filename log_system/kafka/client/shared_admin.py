"""Admin clients that all callers in a process share: connecting takes longer than most requests."""

from __future__ import annotations

import atexit
import logging
import os
import re
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from log_system.kafka.client.errors import codes
from log_system.kafka.client.process_bound import ProcessBound
from log_system.kafka.client.secrets import ClientValue, redact

logger: Final = logging.getLogger("tablestore.kafka")
# If a program configures no logging, Python prints warnings to the terminal; our errors contain what matters of these.
logger.addHandler(logging.NullHandler())

_IDLE_SECONDS_MAX: Final = 30.0
"""An older connection is not used again. librdkafka reports the loss of one that was idle for up to a minute."""
_OPEN_MAX: Final = 4
_ALL_BROKERS_DOWN: Final = codes("_ALL_BROKERS_DOWN")
_VARYING: Final = re.compile(r", \d+ identical error\(s\) suppressed|\d+")
"""The parts in which repetitions of the same log line may differ."""
_TROUBLE_AGE_SECONDS_MAX: Final = 60.0


@dataclass
class Watch:
    """Receives librdkafka's log lines, and its connection errors that no call returns."""

    config: Mapping[str, ClientValue]
    trouble: KafkaError | None = None
    trouble_at: float = 0.0
    was_hurried: bool = False
    _last_line: str = ""

    def log(self, level: int, text: str, *args: object) -> None:
        """Log a line of librdkafka with credentials masked; repetitions and retries are logged at debug level."""
        line = redact(text % args if args else text, self.config)
        same = _VARYING.sub("", line)
        minor = same == self._last_line or line.endswith("retrying")
        self._last_line = same
        logger.log(logging.DEBUG if minor else level, "%s", line)

    def error(self, error: KafkaError) -> None:
        """Store a connection error; "all brokers down" does not replace the more specific error of a broker."""
        if error.code() not in _ALL_BROKERS_DOWN or self.trouble is None:
            self.trouble, self.trouble_at = error, time.monotonic()

    def recent(self) -> KafkaError | None:
        """Return the last connection error if it is recent enough to explain a current failure."""
        young = time.monotonic() - self.trouble_at < _TROUBLE_AGE_SECONDS_MAX
        return self.trouble if young else None


class SharedAdmin(ProcessBound, AdminClient):
    """An admin client with what it has reported and when it was last lent. Its methods are thread-safe."""

    def __init__(self, config: Mapping[str, Any], watch: Watch) -> None:
        """Create a client with librdkafka options; nothing waits for a broker."""
        options: dict[str, Any] = {**config, "error_cb": watch.error}
        super().__init__(options, logger=watch)
        self.watch = watch
        self.lent_at = time.monotonic()

    def has_failed(self) -> bool:
        """Return whether a connection has failed, so that a new client finds the right broker sooner."""
        self.poll(0)
        return self.watch.trouble is not None


_open: dict[tuple[int, Hashable], SharedAdmin] = {}
"""The client for each process and set of options.

There is no lock, which a fork might copy while it is held: each step is atomic, and a second client does no harm.
"""


def lend(options: Hashable, make: Callable[[], SharedAdmin]) -> SharedAdmin:
    """Return this process's client for some options; make one if there is none, or if it has failed or was idle.

    A client that is replaced closes when its last caller has finished with it.
    """
    key = os.getpid(), options
    admin = _open.get(key)
    if admin is None or _is_idle(admin) or admin.has_failed():
        admin = _open[key] = make()
    admin.lent_at = time.monotonic()
    mine = [held for (process, _), held in list(_open.items()) if process == os.getpid()]
    mine.sort(key=lambda held: held.lent_at, reverse=True)
    for number, held in enumerate(mine):
        if number >= _OPEN_MAX or _is_idle(held):
            forget(held)
    return admin


def forget(admin: SharedAdmin) -> None:
    """Stop lending a client, because it has failed or may use a broker that is no longer the leader."""
    for key, held in list(_open.items()):
        if held is admin:
            _open.pop(key, None)


def _is_idle(admin: SharedAdmin) -> bool:
    return time.monotonic() - admin.lent_at > _IDLE_SECONDS_MAX


@atexit.register
def _close() -> None:
    """Close the clients of this process, but not those of the process that forked it."""
    for key in list(_open):
        if key[0] == os.getpid():
            _open.pop(key, None)
