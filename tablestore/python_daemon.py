"""Spark's Python daemon, whose workers end without a word when Spark hangs up on them.

Spark hangs up on a worker of which it wants no more rows, as after a LIMIT, and on all of them when it stops. Over a
Unix domain socket a worker's last write then fails at once, and Spark's daemon would print a traceback into the
terminal; over TCP that write mostly goes through, unread. Spark starts this module by `spark.python.daemon.module`.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task, as Spark's own daemon does; give its exit code, which is 1 where Spark has hung up."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
