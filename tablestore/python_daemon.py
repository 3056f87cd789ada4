"""Spark's Python daemon, with workers that start with the package loaded and acknowledge a task's first packet at once.

The daemon forks a worker for each task that runs at the same time, and again after a pause of a minute. Importing the
package takes a worker about a second, so the daemon imports it once and its workers share the memory.

Spark sends a task to its Python worker in several small packets. By Nagle's algorithm, the second packet waits until
the first is acknowledged, and Linux delays an acknowledgement by 40 ms if there is no data to send with it. So each
task would start 40 ms late (measured). Unix domain sockets, which Spark can use in place of TCP, have no such delay,
but idle workers then print a traceback whenever Spark closes their connection.

Spark starts this module for tasks because of the setting `spark.python.daemon.module`. It has no such setting for the
daemons that plan the reads and writes of a data source; `spark/interpreter.sh` replaces those.
"""

from __future__ import annotations

import gc
import importlib
import select
import socket
import sys
from contextlib import suppress

from pyspark import daemon

from tablestore.spark.source_processes import start_forking

_worker = daemon.worker
_CREATOR = "pyspark.sql.worker.create_data_source"
"""The module of the processes that Spark runs before it starts a source."""


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Acknowledge the first packet of a task, run the task as Spark's own daemon does, and return its exit code."""
    if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):
        # TCP_QUICKACK does not persist: set before the first packet arrives, it would no longer be in effect.
        begun = select.poll()
        begun.register(sock, select.POLLIN)
        begun.poll()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    # A module that fails to import here fails in the task that needs it, which says so.
    with suppress(ImportError):
        importlib.import_module("tablestore.datasource")
    # A collection in a worker would copy the shared pages.
    gc.freeze()
    if sys.argv[1:] == [_CREATOR]:
        start_forking()
    daemon.worker = worker
    daemon.manager()
