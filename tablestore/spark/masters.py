"""Where executors run, by a Spark master's URL, and the settings that follow from it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tablestore.spark.interpreter import PYTHON, worker_interpreter
from tablestore.spark.packages import ARCHIVES, FOLDER, Packed, cached_pack, python_name

PYTHON_PATH: Final = "spark.executorEnv.PYTHONPATH"
_DAEMON_MODULE = "spark.python.daemon.module"
_DAEMON = "tablestore.python_daemon"
_EXECUTORS_PYTHON = "spark.pyspark.python"
_ENVIRONMENT = "PYSPARK_PYTHON"
LOOPBACK = "127.0.0.1"
_LOCAL = re.compile(r"local(\[.*\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\s*\[")
_STANDALONE_LOOPBACK = re.compile(r"spark://(127\.[\d.]+|localhost|\[::1\])(:\d+)?$")


@dataclass(frozen=True)
class Master:
    """A Spark master.

    Attributes:
        url: the master URL, such as ``local[*]``, ``spark://host:7077``, ``yarn`` or ``k8s://...``.
    """

    url: str

    @property
    def in_driver(self) -> bool:
        """Whether tasks run in the driver's JVM."""
        return _LOCAL.match(self.url) is not None

    @property
    def on_this_machine(self) -> bool:
        """Whether executors run with the driver's files: in its JVM, or in processes that Spark starts beside it."""
        return self.in_driver or _LOCAL_CLUSTER.match(self.url) is not None

    @property
    def on_loopback(self) -> bool:
        """Whether the master, and therefore every executor, is reached over loopback."""
        return self.on_this_machine or _STANDALONE_LOOPBACK.match(self.url) is not None

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's settings for this master.

        Where executors are elsewhere, they get this program's packages in an archive, unless the user names a Python
        that has them.

        Raises:
            InvalidInputError: packages that executors need cannot be packed.
            UnavailableError: the cache folder cannot be written.
        """
        settings = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if self.on_loopback else {}
        if not self.on_this_machine:
            return settings | self._packages(given)
        return settings | {
            # Spark's JVM may have been started before this program set its environment.
            f"spark.executorEnv.{PYTHON}": sys.executable,
            _DAEMON_MODULE: _DAEMON,
        }

    def _packages(self, given: Mapping[str, str]) -> dict[str, str]:
        is_packed = FOLDER in given.get(ARCHIVES, "")
        if _users_python(given) is not None and not is_packed:
            # Whether that Python has this package is not known here.
            return {}
        return cluster_settings(None if is_packed else cached_pack(compressed=not self.on_loopback))


def cluster_settings(packed: Packed | None) -> dict[str, str]:
    """Return the settings with which executors use an archive of packages; None if it is already in the settings."""
    archives = {} if packed is None else {ARCHIVES: packed.setting}
    return {**archives, PYTHON_PATH: FOLDER, _DAEMON_MODULE: _DAEMON}


@contextmanager
def python_environment(master: Master, given: Mapping[str, str]) -> Iterator[None]:
    """Set the environment by which Spark finds the Python of its tasks, while a session is built.

    Spark runs the same command in executors and, to plan data sources, beside the driver. On a cluster that is a name
    without a folder, which each machine looks up in its own ``PATH``; beside the driver it must be this interpreter.
    """
    os.environ[PYTHON] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = worker_interpreter(in_driver=master.in_driver)
    if master.on_this_machine:
        os.environ[_ENVIRONMENT] = worker_interpreter(in_driver=master.in_driver)
        yield
        return
    users = _users_python(given)
    os.environ[_ENVIRONMENT] = python_name() if users is None else users
    before = os.environ.get("PATH", "")
    folder = Path(sys.executable).parent
    if users is None and (folder / python_name()).exists():
        os.environ["PATH"] = os.pathsep.join([str(folder), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _users_python(given: Mapping[str, str]) -> str | None:
    """Return the command that the user wants executors to run as Python, if any."""
    named = given.get(_EXECUTORS_PYTHON)
    if named is not None:
        return named
    found = os.environ.get(_ENVIRONMENT)
    # These are set by an earlier session of this program, or of the program that started it.
    ours = (sys.executable, worker_interpreter(in_driver=True), os.environ.get(PYTHON), python_name())
    return None if found in ours else found
