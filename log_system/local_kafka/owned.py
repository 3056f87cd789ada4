"""A real Kafka broker on loopback for development, tests and the demo; it dies with the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from log_system.local_kafka import watchdog as _watchdog
from log_system.local_kafka.installation import kafka_command
from log_system.local_kafka.server import Broker, check_port, free_port
from snapshot.errors import InvalidInputError, UnavailableError

STOP_TIMEOUT_S = 15.0
# Another process may take a port that we chose before the broker binds it.
TRIES_MAX = 3


class LocalKafka:
    """A Kafka 4.1 broker (KRaft, one process) that listens on loopback only.

    ::

        with LocalKafka() as kafka:
            Producer({"bootstrap.servers": kafka.bootstrap_servers})

    The jars are downloaded from Maven Central on first use, or taken from the folder in ``TABLESTORE_KAFKA_JARS``.
    The broker dies with the process that started it, even if that process is killed; its data survives if ``data_dir``
    is given. Topics are not created automatically.

    Args:
        data_dir: the folder for the broker's data, configuration and ``broker.log``; created if missing. None means a
            temporary folder, removed by `stop`.
        port: the port of the listener on 127.0.0.1; None means a free port.
        heap: Java's heap limit.
        startup_timeout_s: how long `start` waits for the broker to respond, in seconds.
        properties: additional broker properties. ``listeners``, ``advertised.listeners`` and
            ``listener.security.protocol.map`` are added to those of the plain listener; all others override defaults.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        *,
        heap: str = "512m",
        startup_timeout_s: float = 60,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Store the settings without starting the broker."""
        if data_dir is not None and "," in os.fspath(data_dir):
            msg = f"local Kafka: data_dir must not contain a comma, since Kafka splits it there; got '{data_dir}'."
            raise InvalidInputError(msg)
        self._given_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._given_port = port
        self._heap = heap
        self._startup_timeout_s = startup_timeout_s
        self._properties = dict(properties or {})
        self._broker: Broker | None = None
        self._watchdog: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self._owner = os.getpid()

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients connect to; unchanged by `kill` and `restart`."""
        return self._started().bootstrap_servers

    @property
    def data_dir(self) -> Path:
        """The folder of the broker's data and ``broker.log``."""
        return self._started().data_dir

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        if self._pid is None or not self.running:
            msg = "local Kafka is not running. Call start() or restart()."
            raise UnavailableError(msg)
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the broker's process is running."""
        return self._watchdog is not None and self._watchdog.poll() is None

    def start(self) -> Self:
        """Start the broker and return when it responds.

        Raises:
            UnavailableError: Java or the jars are missing, the port is taken, or the broker did not start.
        """
        if self.running:
            return self
        java = kafka_command(self._heap)
        if self._broker is not None:
            self._launch(self._broker, java)
            return self
        data_dir = self._given_dir or Path(tempfile.mkdtemp(prefix="tablestore-kafka-"))
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self._broker = self._launch_somewhere(data_dir, java)
        except BaseException:
            if self._given_dir is None:
                shutil.rmtree(data_dir, ignore_errors=True)
            raise
        return self

    def stop(self) -> None:
        """Stop the broker cleanly and remove its data if the folder is temporary; idempotent."""
        if os.getpid() != self._owner:
            # A forked child of the owner has a copy of this object but must not stop the owner's broker.
            return
        self._end(signal.SIGTERM)
        if self._broker is not None and self._given_dir is None:
            shutil.rmtree(self._broker.data_dir, ignore_errors=True)
            self._broker = None

    def kill(self) -> None:
        """Kill the broker immediately (SIGKILL), like a crash. Its data is kept, and `restart` starts it again."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Restart the broker on the same data and port; stop it cleanly first if it is running."""
        self._started()
        self._end(signal.SIGTERM)
        return self.start()

    def __enter__(self) -> Self:
        """Start the broker."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the broker."""
        self.stop()

    def __repr__(self) -> str:
        """Show the broker's address, never its properties: they may hold a password."""
        where = self._broker.bootstrap_servers if self._broker else "not started"
        return f"LocalKafka({where})"

    def _started(self) -> Broker:
        if self._broker is None:
            msg = "local Kafka has not been started. Use 'with LocalKafka() as kafka:', or call start()."
            raise UnavailableError(msg)
        return self._broker

    def _launch_somewhere(self, data_dir: Path, java: list[str]) -> Broker:
        for left in reversed(range(TRIES_MAX)):
            broker = self._broker_in(data_dir)
            try:
                self._launch(broker, java)
            except UnavailableError as error:
                if left and self._given_port is None and "Address already in use" in str(error):
                    continue
                raise
            return broker
        raise AssertionError

    def _broker_in(self, data_dir: Path) -> Broker:
        """Return the settings of a broker with its data in a folder and newly chosen ports."""
        port = free_port() if self._given_port is None else self._given_port
        return Broker(data_dir, port, free_port(avoid=port), self._properties)

    def _launch(self, broker: Broker, java: list[str]) -> None:
        check_port(broker.port)
        command = broker.prepare(java)
        remove_dir = str(broker.data_dir) if self._given_dir is None else ""
        watchdog = [sys.executable, "-I", "-S", _watchdog.__file__, str(os.getpid()), str(broker.log), remove_dir]
        # A new process group, so that Ctrl-C in a terminal reaches only the owner, which then stops the broker or dies.
        # Not a new session: Linux shares processors out by session, and may leave one that is mostly idle waiting for
        # many seconds while others are busy.
        self._watchdog = subprocess.Popen(
            [*watchdog, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
        )
        assert self._watchdog.stdout is not None
        self._pid = int(self._watchdog.stdout.readline())
        try:
            broker.wait_until_ready(lambda: self.running, timeout_s=self._startup_timeout_s)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _end(self, how: signal.Signals) -> None:
        watchdog, pid = self._watchdog, self._pid
        if watchdog is None or pid is None:
            return
        if watchdog.poll() is None:
            _send(pid, how)
            try:
                watchdog.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _send(pid, signal.SIGKILL)
                watchdog.wait(STOP_TIMEOUT_S)
        if watchdog.stdout is not None:
            watchdog.stdout.close()
        self._watchdog = self._pid = None


def _send(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return
