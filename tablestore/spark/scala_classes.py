"""The classes of this program that run in Spark's JVM, compiled once by the Scala compiler that Spark brings.

``S3LogStore.scala`` is a Delta log store that never replaces a commit; ``CreateTableCheck.scala`` refuses tables of
Spark's catalog that Spark could not read again; ``CurrentReads.scala`` lets each query of a frame read current rows,
and ``PrunedReads.scala`` the columns that it uses; ``CheckpointFiles.scala`` writes the files of local checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from log_system.jars import cache_home, exclusive, find_java, pyspark_jars, waiting
from snapshot.errors import UnavailableError

PRUNED_READS: Final = "tablestore.PrunedReads"
EXTENSIONS: Final = ("tablestore.CreateTableCheck", "tablestore.CurrentReads", PRUNED_READS)
"""The extensions of Spark among them."""
_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.scala")))
_COMPILE_TIMEOUT_S = 300.0


def prunes_reads(spark: SparkSession) -> bool:
    """Return whether the tasks of a read return only the columns that a query uses."""
    return PRUNED_READS in (spark.conf.get("spark.sql.extensions", None) or "")


def classes_jar(delta: Path) -> Path:
    """Return the jar of the classes.

    Raises:
        UnavailableError: Java or Spark's jars are missing, or the cache folder cannot be written.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:12]
    jar = cache_home() / f"spark-classes-{digest}-{delta.name}-{version('pyspark')}.jar"
    if not jar.exists():
        try:
            with exclusive(cache_home() / "spark-classes.lock"):
                if not jar.exists():
                    _compile(delta, jar)
        except OSError as error:
            msg = f"{jar}: cannot be written: {error}. Set XDG_CACHE_HOME to a folder that can be written."
            raise UnavailableError(msg) from error
    return jar


def _compile(delta: Path, jar: Path) -> None:
    spark = pyspark_jars()

    def paths(folder: Path, *names: str) -> list[str]:
        return [str(path) for name in names for path in sorted(folder.glob(f"{name}-*.jar"))]

    compiler = paths(spark, "scala-compiler", "scala-library", "scala-reflect")
    used = paths(spark, "scala-library", "hadoop-client-api", "jackson", "slf4j-api", "spark")
    used += paths(delta, "delta-storage")
    draft = jar.with_name(f".{jar.stem}-{os.getpid()}.jar")
    command = [find_java().command, "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(compiler)]
    command += ["scala.tools.nsc.Main", "-classpath", os.pathsep.join(used), "-d", str(draft), *map(str, _SOURCES)]
    what = f"{jar.name} ({', '.join(source.name for source in _SOURCES)})"
    try:
        with waiting("Compiling classes for Spark (once) ..."):
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S)
        if answer.returncode != 0 or not draft.exists():
            msg = f"{what}: cannot be compiled: {(answer.stdout + answer.stderr).strip()[-500:]}"
            raise UnavailableError(msg)
        draft.rename(jar)
    except subprocess.TimeoutExpired as error:
        msg = f"{what}: not compiled after {_COMPILE_TIMEOUT_S:.0f} s. Try again when the machine is less busy."
        raise UnavailableError(msg) from error
    finally:
        draft.unlink(missing_ok=True)
