"""A Spark standalone cluster on loopback whose workers share no environment with the driver.

Each worker has a home, a temporary folder, a work folder and a Python virtual environment of its own. The environments
are empty: what executors import beyond PySpark is what a session ships to them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyspark

from log_system.class_archive import sharing
from log_system.jars import find_java
from log_system.local_kafka import watchdog
from log_system.local_kafka.server import LOOPBACK, free_port
from tablestore.spark.class_archive import java_options, spark_archive
from tests.harness.started import Started

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2
START_SECONDS = 90.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
SYSTEM_PATH = "/usr/bin:/bin"
_MEMORY = "1g"
_REGISTERED = "Registering worker"
_CLEANUP_SECONDS = 5
_CLEANUP = {"enabled": "true", "interval": _CLEANUP_SECONDS, "appDataTtl": _CLEANUP_SECONDS}
"""Workers remove what ended applications have left: each executor unpacks half a gigabyte of packages."""
JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options(sharing(spark_archive(find_java())))}"
"""The classes of daemons and executors come from the archive of ``tablestore prepare``, if it has been run."""


@dataclass
class Daemon:
    """A master or worker: a JVM that a watchdog ends if this process dies."""

    folder: Path
    watcher: subprocess.Popen[str]
    pid: int

    @property
    def log(self) -> str:
        """What the JVM has printed."""
        return (self.folder / "daemon.log").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Kill the JVM (SIGKILL), as a lost machine."""
        if self.watcher.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.watcher.wait(timeout=30)
        if self.watcher.stdout is not None:
            self.watcher.stdout.close()


@dataclass
class StandaloneCluster(Started):
    """A master and workers of one core each.

    Attributes:
        root: an existing folder for everything the daemons write.
        url: the master's address.
    """

    root: Path
    url: str = ""
    _master: Daemon | None = None
    _workers: dict[int, Daemon] = field(default_factory=dict)

    def start(self) -> Self:
        """Start the master and its workers, and return when all have registered."""
        port = free_port()
        self.url = f"spark://{LOOPBACK}:{port}"
        try:
            self._master = self._launch("master", "master.Master", "--port", str(port), "--webui-port", "0")
            for number in range(WORKERS):
                self.start_worker(number)
            self._wait_for(WORKERS)
        except BaseException:
            self.stop()
            raise
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker; a second one of the same number takes the place of one that was killed."""
        folder = self.root / f"worker-{number}"
        shutil.rmtree(folder / "local", ignore_errors=True)
        if not (folder / "venv").exists():
            venv.create(folder / "venv", symlinks=True, with_pip=False)
        work = str(folder / "work")
        words = ["--cores", "1", "--memory", _MEMORY, "--work-dir", work, "--webui-port", "0", self.url]
        self._workers[number] = self._launch(folder.name, "worker.Worker", *words)

    def restore(self) -> None:
        """Start the workers that were killed, and wait until all are there."""
        assert self._master is not None
        registered = self._master.log.count(_REGISTERED)
        lost = [number for number, worker in self._workers.items() if worker.watcher.poll() is not None]
        for number in lost:
            self.start_worker(number)
        self._wait_for(registered + len(lost))

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, as a machine that is lost."""
        executors = self.executors(number)
        self._workers[number].kill()
        for pid in executors:
            _kill(pid)

    def executors(self, number: int | None = None) -> list[int]:
        """Return the process ids of the executors' JVMs: those of one worker, or all."""
        numbers = self._workers if number is None else [number]
        roots = [self.root / f"worker-{each}" / "work" for each in numbers]
        return [pid for pid, folder, command in _processes() if command.startswith("java") and _inside(folder, roots)]

    def kill_executor(self, number: int | None = None) -> int:
        """Kill the JVM of an executor (SIGKILL), of a worker or of any; return its process id. One must be running."""
        pid = self.executors(number)[0]
        _kill(pid)
        return pid

    def stop(self) -> None:
        """End every process of the cluster, including those that start while others are killed."""
        for daemon in [*self._workers.values(), *([self._master] if self._master else [])]:
            daemon.kill()
        end = time.monotonic() + STOP_SECONDS
        while (left := self.leftovers()) and time.monotonic() < end:
            for pid in left:
                _kill(pid)
            time.sleep(LOOK_SECONDS)

    def leftovers(self) -> list[int]:
        """Return the ids of processes that run in the cluster's folders."""
        return [pid for pid, folder, _ in _processes() if _inside(folder, [self.root])]

    def _launch(self, name: str, kind: str, *words: str) -> Daemon:
        folder = self.root / name
        folders = {each: folder / each for each in ("home", "tmp", "local", "conf")}
        for each in ("home", "tmp", "local"):
            folders[each].mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": f"{folder / 'venv' / 'bin'}:{SYSTEM_PATH}",
            "HOME": str(folders["home"]),
            "TMPDIR": str(folders["tmp"]),
            "SPARK_LOCAL_DIRS": str(folders["local"]),
            "SPARK_CONF_DIR": str(folders["conf"]),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_NO_DAEMONIZE": "true",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{JAVA} -Djava.io.tmpdir={folders['tmp']}",
            "SPARK_WORKER_OPTS": " ".join(f"-Dspark.worker.cleanup.{name}={value}" for name, value in _CLEANUP.items()),
            "LANG": "C.UTF-8",
        }
        java = shutil.which("java")
        home = os.environ.get("JAVA_HOME") or (str(Path(java).resolve().parent.parent) if java else "")
        environment["JAVA_HOME"] = home
        spark = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", LOOPBACK, *words]
        # The watchdog ends the JVM if this process dies, however it dies.
        watch = [
            sys.executable,
            "-I",
            "-S",
            watchdog.__file__,
            str(os.getpid()),
            str(folder / "daemon.log"),
            "",
            *spark,
        ]
        watcher = subprocess.Popen(
            watch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment
        )
        assert watcher.stdout is not None
        return Daemon(folder, watcher, int(watcher.stdout.readline()))

    def _wait_for(self, workers: int) -> None:
        """Wait until so many registrations have reached the master."""
        assert self._master is not None
        end = time.monotonic() + START_SECONDS
        while self._master.log.count(_REGISTERED) < workers:
            for daemon in [self._master, *self._workers.values()]:
                assert daemon.watcher.poll() is None, daemon.log[-2000:]
            assert time.monotonic() < end, self._master.log[-2000:]
            time.sleep(LOOK_SECONDS)


def _processes() -> Iterator[tuple[int, Path, str]]:
    """Yield the id, working folder and command name of this user's processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cwd").readlink(), (entry / "comm").read_text()
            except OSError:
                # It has ended, or is another user's.
                continue


def _inside(folder: Path, roots: list[Path]) -> bool:
    return any(folder == root or root in folder.parents for root in roots)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
