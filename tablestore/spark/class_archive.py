"""The class data sharing archive of Spark's JVM, which needs half of the time to start with it (measured)."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

from log_system.jars import cache_home, find_java, pyspark_jars


def spark_archive() -> Path:
    """Return the path of the archive for this installation of Spark and this Java; it may not exist.

    Raises:
        UnavailableError: Java or PySpark's jars are missing.
    """
    # An archive is valid only for the jars at the paths of its class path.
    place = hashlib.sha256(str(pyspark_jars()).encode()).hexdigest()[:12]
    name = f"spark-{version('pyspark')}-java-{find_java().version}-{platform.machine()}-{place}.jsa"
    return cache_home() / name
