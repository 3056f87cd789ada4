"""Paimon beside this program: a catalog of Flink in the Python that ``PAIMON_PYTHON`` names.

The Python has PyFlink: ``python3.11 -m venv paimon-venv && paimon-venv/bin/pip install 'apache-flink==1.20.*'``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.peers.flink import Flink, need

JAR = "org.apache.paimon:paimon-flink-1.20:1.3.1"


def need_paimon() -> str:
    """Return the Python that has PyFlink; skip the module that calls this if there is none."""
    return need("PAIMON_PYTHON", "apache-flink 1.20")


@contextmanager
def paimon(warehouse: Path) -> Iterator[Flink]:
    """Yield a catalog of Paimon in batch mode; its process ends with the block."""
    setup = [f"CREATE CATALOG p WITH ('type' = 'paimon', 'warehouse' = '{warehouse.as_uri()}')", "USE CATALOG p"]
    classes = {"HADOOP_CLASSPATH": os.pathsep.join(map(str, _jars()))}
    with closing(Flink(need_paimon(), "batch", setup, environment=classes)) as made:
        yield made


def _jars() -> list[Path]:
    """Return the jar of Paimon, and Hadoop's of PySpark, which Paimon needs."""
    from log_system.jars import cache_home, fetch_unchecked, pyspark_jars  # noqa: PLC0415 - only beside Paimon

    folder = cache_home() / JAR.replace(":", "_")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch_unchecked(folder.name, [JAR], folder)
    hadoop = [*pyspark_jars().glob("hadoop-client-*.jar"), *pyspark_jars().glob("jcl-over-slf4j-*.jar")]
    return [*folder.glob("*.jar"), *hadoop]
