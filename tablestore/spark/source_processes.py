"""Processes of streaming sources, forked from one that has imported this package.

Spark starts a Python process for each source of a streaming query, and without a daemon: each would import PySpark and
this package, for 0.7 s of processor time. So the daemon that creates data sources (`tablestore.python_daemon`) leaves a
process beside it that forks them:

1. `interpreter.sh` runs this file in place of a source's process. It connects to that process and sends it its
   environment, its output and its errors. If nobody answers, it becomes the process that Spark asked for.
2. The process forks, and its child takes over what was sent, connects to Spark and serves the source.
3. This file's process waits for the child, because it is the one that Spark knows and ends. If it ends first, so does
   the child.

The socket is in a folder of Spark's, and only this user may connect to it. The forking process ends with the daemon, or
with Spark.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import zlib
from contextlib import suppress

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_PRELOADED = (_RUNNER, "tablestore.datasource", "tablestore.connectors.spark.datasource")
_LENGTH_BYTES = 4


def start_forking() -> None:
    """Leave a process beside this one that forks the processes of sources, if its socket can be made."""
    listener, before = socket.socket(socket.AF_UNIX), os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(_address())  # noqa: PTH108 - pathlib is not imported where an answer is awaited
        listener.bind(_address())
    except (KeyError, OSError):
        # Not Spark's environment, or a path that is too long for a socket: sources start as Spark starts them.
        listener.close()
        return
    finally:
        os.umask(before)
    listener.listen()
    # The daemon ends its group of processes when it ends.
    os.setpgid(0, 0)
    if os.fork() == 0:
        _serve(listener)
    listener.close()


def run_source(command: list[str]) -> None:
    """Have a source's process forked and wait until it has ended, or become that process.

    Args:
        command: the arguments of Python with which Spark started the process.
    """
    if not _has_run():
        python = os.environ["TABLESTORE_PYTHON"]
        os.execv(python, [python, *command])


def _has_run() -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(_address())
            environment = json.dumps(dict(os.environ)).encode()
            socket.send_fds(connection, [len(environment).to_bytes(_LENGTH_BYTES)], [1, 2])
            connection.sendall(environment)
            if not connection.recv(1):
                return False
        except (KeyError, OSError):
            return False
        with suppress(OSError):
            connection.recv(1)
        return True


def _address() -> str:
    """Return the path of the socket; processes with another path of modules or working folder have another one."""
    same = f"{os.environ.get('PYTHONPATH')}\n{os.getcwd()}"  # noqa: PTH109 - as above
    return f"{os.environ['SPARK_LOCAL_DIRS'].split(',')[0]}/sources-{zlib.crc32(os.fsencode(same)):08x}"


def _serve(listener: socket.socket) -> None:
    """Fork a process for each connection, until Spark closes this process's standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    # What arrives there is for the daemon.
    poller.register(0, 0)
    while all(ready == listener.fileno() for ready, _ in poller.poll()):
        connection, _ = listener.accept()
        for module in _PRELOADED:
            # A module that fails to import here fails in the process that needs it, which says so.
            with suppress(ImportError):
                importlib.import_module(module)
        # A collection in a source's process would copy the shared pages.
        gc.freeze()
        if os.fork() == 0:
            listener.close()
            os._exit(_run(connection))
        connection.close()
    os._exit(0)


def _run(connection: socket.socket) -> int:
    """Take the place of the process at the other end of a connection, and return the exit code."""
    import threading  # noqa: PLC0415 - the process that waits needs none of these
    import traceback  # noqa: PLC0415

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A source ends when Spark closes its connection, and is not to be ended with the daemon.
        os.setpgid(0, 0)
        length, files, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 2, socket.MSG_WAITALL)
        with connection.makefile("rb") as sent:
            environment = json.loads(sent.read(int.from_bytes(length)))
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        connection.sendall(b".")
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        worker, runner = importlib.import_module("pyspark.worker_util"), importlib.import_module(_RUNNER)
        with worker.get_sock_file_to_executor(timeout=None) as spark:
            runner.main(spark, spark)
    except SystemExit as error:
        return error.code & 0xFF if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - Python would print it and end
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _end_with(connection: socket.socket) -> None:
    """End this process when the one at the other end of the connection has ended."""
    # The connection is reset if that process ended before it read that this one runs.
    with suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run_source(sys.argv[1:])
