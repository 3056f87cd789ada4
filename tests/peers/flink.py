"""Flink beside this program: starts ``flink_runner.py`` with the Python that ``FLINK_PYTHON`` names.

The Python has apache-flink: ``python3.11 -m venv flink-venv && flink-venv/bin/pip install 'apache-flink==2.2.*'``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FLINK_PYTHON = "FLINK_PYTHON"
STATEMENTS_MAX = 200
"""The classes that Flink generates for each query fill its memory, so a process answers no more statements."""
RELEASE = "2.2"
JARS = ("flink-sql-connector-kafka:5.0.0-2.2", "flink-sql-avro-confluent-registry:2.2.0")
CONFIGURATION = {
    "parallelism.default": "1",
    "table.local-time-zone": "UTC",
    "restart-strategy.type": "disable",
}


class FlinkError(Exception):
    """Flink cannot run a statement."""


def need(variable: str, what: str) -> str:
    """Return the Python that an environment variable names; skip the module that calls this if it is not set."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} is not set: it names a Python that has {what}", allow_module_level=True)
    return python


def need_flink() -> str:
    """Return the Python that has PyFlink; skip the module that calls this if there is none."""
    return _checked(need(FLINK_PYTHON, "apache-flink"))


@cache
def _checked(python: str) -> str:
    from benchmarks.flink import pyflink_version  # noqa: PLC0415 - only where there may be a Flink

    found = pyflink_version(python)
    if found != RELEASE:
        pytest.fail(f"{FLINK_PYTHON}={python}: expected apache-flink {RELEASE}, got {found}", pytrace=False)
    return python


@cache
def _jars() -> str:
    from log_system.jars import cache_home, fetch_unchecked  # noqa: PLC0415 - only where there is a Flink

    found = []
    for artifact, release in (each.split(":") for each in JARS):
        folder = cache_home() / f"{artifact}-{release}"
        if not folder.is_dir():
            fetch_unchecked(folder.name, [f"org.apache.flink:{artifact}:{release}"], folder)
        found.append((folder / f"{artifact}-{release}.jar").as_uri())
    return ";".join(found)


class Flink:
    """Flink in one mode, whose tables are those of a few statements.

    Attributes:
        setup: the statements that create the tables; each process runs them first.
    """

    def __init__(
        self,
        python: str,
        mode: str,
        setup: Sequence[str],
        *,
        configuration: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.setup = list(setup)
        self._python = python
        self._configuration = {"execution.runtime-mode": mode, **CONFIGURATION, **(configuration or {})}
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._answered = 0

    def sql(self, statement: str) -> list[list[Any]]:
        """Run a statement to its end and return its rows.

        Args:
            statement: a query, an INSERT or a CREATE.

        Returns:
            the values of each row, without row kinds.

        Raises:
            FlinkError: it cannot run.
        """
        if self._process is None or self._answered >= STATEMENTS_MAX:
            self.close()
            self._start()
        return [values for _, values in self._ask(statement)]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _start(self) -> None:
        runner = Path(__file__).with_name("flink_runner.py")
        self._process = subprocess.Popen(
            [self._python, str(runner)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answered = 0
        self._send(self._configuration)
        for statement in self.setup:
            try:
                self._ask(statement)
            except FlinkError as error:
                msg = f"Flink cannot run {statement}"
                raise RuntimeError(msg) from error

    def _send(self, message: object) -> None:
        assert self._process is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def _ask(self, statement: str) -> list[tuple[str, list[Any]]]:
        self._send(statement)
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            msg = f"Flink has ended with exit code {self._process.wait()} instead of an answer to {statement}"
            raise RuntimeError(msg)
        self._answered += 1
        found = json.loads(line)
        if "error" in found:
            raise FlinkError(found["error"])
        return [(kind, values) for kind, values in found["rows"]]


@contextmanager
def flink(mode: str, setup: Sequence[str] = ()) -> Iterator[Flink]:
    """Yield Flink with tables; its process ends with the block."""
    with closing(Flink(need_flink(), mode, setup, configuration={"pipeline.jars": _jars()})) as made:
        yield made
