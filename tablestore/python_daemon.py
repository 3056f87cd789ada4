"""Spark's Python daemon, whose workers acknowledge the first packet of a task at once.

Spark sends a task to its Python worker in several small packets. By Nagle's algorithm the second waits until the first
is acknowledged, and Linux keeps an acknowledgement back for 40 ms where there is nothing to send along with it. So each
task would begin 40 ms late (measured). Over Unix domain sockets, which Spark can use in place of TCP, nothing waits,
but idle workers print a traceback whenever Spark hangs up on them. Spark starts this module by its setting
`spark.python.daemon.module`.
"""

from __future__ import annotations

import select
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task as Spark's own daemon does, and give its exit code; acknowledge what has come when it begins."""
    if sock.family != socket.AF_UNIX:
        # Said any earlier, it would be forgotten until the task comes.
        begun = select.poll()
        begun.register(sock, select.POLLIN)
        begun.poll()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
