"""Paimon beside this program: starts ``paimon_runner.py`` with the Python that ``PAIMON_PYTHON`` names.

The Python has PyFlink: ``python3.11 -m venv paimon-venv && paimon-venv/bin/pip install 'apache-flink==1.20.*'``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PAIMON_PYTHON = "PAIMON_PYTHON"
JAR = "org.apache.paimon:paimon-flink-1.20:1.3.1"


class PaimonError(Exception):
    """Paimon cannot run a statement."""


def need_paimon() -> str:
    """Return the Python that has PyFlink; skip the module that calls this if there is none.

    Returns:
        its path.
    """
    python = os.environ.get(PAIMON_PYTHON)
    if not python:
        pytest.skip(f"{PAIMON_PYTHON} is not set: it names a Python with apache-flink 1.20", allow_module_level=True)
    return python


class Paimon:
    """A catalog of Paimon in batch mode."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def sql(self, statement: str) -> list[list[Any]]:
        """Run a statement to its end and return its rows.

        Raises:
            PaimonError: it cannot run.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statement), file=self._process.stdin, flush=True)
        found = json.loads(self._process.stdout.readline())
        if "error" in found:
            raise PaimonError(found["error"])
        rows: list[list[Any]] = found["rows"]
        return rows


@contextmanager
def paimon(warehouse: Path) -> Iterator[Paimon]:
    """Yield Paimon; its process ends with the block."""
    runner = Path(__file__).with_name("paimon_runner.py")
    command = [need_paimon(), str(runner), str(warehouse)]
    environment = {**os.environ, "HADOOP_CLASSPATH": os.pathsep.join(map(str, _jars()))}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            yield Paimon(process)
        finally:
            process.kill()


def _jars() -> list[Path]:
    """Return the jar of Paimon, and Hadoop's of PySpark, which Paimon needs."""
    from log_system.jars import cache_home, fetch_unchecked, pyspark_jars  # noqa: PLC0415 - only beside Paimon

    folder = cache_home() / JAR.replace(":", "_")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch_unchecked(folder.name, [JAR], folder)
    hadoop = [*pyspark_jars().glob("hadoop-client-*.jar"), *pyspark_jars().glob("jcl-over-slf4j-*.jar")]
    return [*folder.glob("*.jar"), *hadoop]
