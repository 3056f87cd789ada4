"""Refuses processes that were forked from one that has used a table."""

from __future__ import annotations

import os

from snapshot.errors import InvalidInputError

_users: set[int] = set()
"""The id of the process that uses delta-rs: this one, or one that it was forked from."""


def is_forked() -> bool:
    """Return whether this process was forked from one that has used a table."""
    return bool(_users) and os.getpid() not in _users


def check_process() -> None:
    """Refuse a process that was forked from one that has used a table.

    The threads of delta-rs and of the Kafka client are not in it, locks may be held forever, and what a handle knows
    of its own commits is known to both: each would take the other's commits for its own.

    Raises:
        InvalidInputError: this is such a process.
    """
    if not _users:
        _users.add(os.getpid())
    elif is_forked():
        msg = (
            f"process {os.getpid()} was forked from process {min(_users)} after that one had used a table. Open the "
            "table in a new process instead, such as one of multiprocessing.get_context('spawn') or 'forkserver'."
        )
        raise InvalidInputError(msg)
