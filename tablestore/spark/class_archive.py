"""The class data sharing archive of Spark's JVM, which needs half of the time to start with it (measured)."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from log_system.jars import Java, cache_home, pyspark_jars


def spark_archive(java: Java) -> Path:
    """Return the path of the archive for this installation of Spark and a Java; it may not exist.

    Raises:
        UnavailableError: there are neither PySpark's jars nor another Spark in `SPARK_HOME`.
    """
    # An archive is valid only for the jars at the paths of its class path.
    place = hashlib.sha256((os.environ.get("SPARK_HOME") or str(pyspark_jars())).encode()).hexdigest()[:12]
    name = f"spark-{version('pyspark')}-java-{java.version}-{platform.machine()}-{place}.jsa"
    return cache_home() / name


def java_options(options: Sequence[str]) -> str:
    """Return Java options as the text of a Spark setting; a path in them may contain spaces."""
    return " ".join(f'"{option}"' for option in options)
