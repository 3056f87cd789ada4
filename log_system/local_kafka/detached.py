"""A local broker that outlives the command that started it, for ``tablestore kafka``.

Each user has at most one such broker, described by a small state file. The process id in the file is used only if that
process is still the broker of that data folder, so a process that reuses the id is never killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from log_system.jars import cache_home, exclusive
from log_system.local_kafka.installation import kafka_command
from log_system.local_kafka.server import Broker, check_port, free_port, port_is_open
from snapshot.errors import AlreadyExistsError, NotFoundError

DEFAULT_PORT = 9092
HEAP = "512m"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Detached:
    """The detached broker, as recorded in the state file.

    Attributes:
        pid: process id of the broker.
        port: the broker's port on 127.0.0.1.
        data_dir: the folder of its data, configuration and ``broker.log``.
        started: when it was started, seconds since the epoch.
    """

    pid: int
    port: int
    data_dir: str
    started: float

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def answers(self) -> bool:
        """Whether something listens on the broker's port."""
        return port_is_open(self.port)


def default_data_dir() -> Path:
    """Return the default data folder of the detached broker."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "tablestore" / "kafka"


def start(data_dir: Path | None = None, port: int = DEFAULT_PORT) -> Detached:
    """Start the broker and return when it responds. Its data survives `stop`, and the next start uses it again.

    Raises:
        AlreadyExistsError: the broker is already running.
        UnavailableError: Java or the jars are missing, the port is taken, or the broker did not start.
    """
    with exclusive(_state_file().with_suffix(".lock")):
        running = status()
        if running is not None:
            msg = (
                f"local Kafka: your broker is already running on {running.bootstrap_servers} "
                f"(process {running.pid}, data in {running.data_dir}). Use it, or run 'tablestore kafka stop' first."
            )
            raise AlreadyExistsError(msg)
        check_port(port)
        java = kafka_command(HEAP)
        folder = (data_dir or default_data_dir()).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        broker = Broker(folder, port, free_port(avoid=port), {})
        command = broker.prepare(java)
        with broker.log.open("wb") as log:
            # A new session protects the broker from Ctrl-C and from the terminal closing.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            broker.wait_until_ready(lambda: process.poll() is None, timeout_s=START_TIMEOUT_S)
            state = Detached(process.pid, port, str(folder), time.time())
            _write(state)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return state


def stop() -> Detached:
    """Stop the broker cleanly and return its last state. Its data is kept.

    Raises:
        NotFoundError: no detached broker is running.
    """
    state = status()
    if state is None:
        msg = "local Kafka: there is nothing to stop: no broker of 'tablestore kafka start' is running."
        raise NotFoundError(msg)
    os.kill(state.pid, signal.SIGTERM)
    if not _gone(lambda: not _is_ours(state), STOP_TIMEOUT_S):
        os.kill(state.pid, signal.SIGKILL)
    _state_file().unlink(missing_ok=True)
    return state


def status() -> Detached | None:
    """Return the running broker, or None."""
    try:
        state = Detached(**json.loads(_state_file().read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return state if _is_ours(state) else None


def _gone(is_gone: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if is_gone():
            return True
        time.sleep(LOOK_EVERY_S)
    return is_gone()


def _is_ours(state: Detached) -> bool:
    return str(Path(state.data_dir) / "server.properties") in _command_line(state.pid)


def _command_line(pid: int) -> str:
    """Return the command line of a running process; empty if there is no such process."""
    of_linux = Path(f"/proc/{pid}/cmdline")
    if of_linux.parent.parent.joinpath("self").exists():
        try:
            return of_linux.read_bytes().replace(b"\0", b" ").decode("utf-8", errors="replace")
        except OSError:
            return ""
    answer = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout


def _state_file() -> Path:
    return cache_home() / "kafka-local.json"


def _write(state: Detached) -> None:
    unfinished = _state_file().with_suffix(".unfinished")
    unfinished.write_text(json.dumps(asdict(state)), encoding="utf-8")
    unfinished.replace(_state_file())
