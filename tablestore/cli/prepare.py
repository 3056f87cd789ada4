"""``tablestore prepare`` and ``pack``: prepare machines and executors before a program runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from log_system.class_archive import archive_classes
from log_system.jars import find_java
from log_system.local_kafka.installation import kafka_command
from snapshot.errors import UnavailableError
from tablestore.cli.console import console

_TIMEOUT_SECONDS = 600
_ARCHIVE = Path("tablestore-packages.tar.gz")


def prepare() -> None:
    """Download the jars of Delta and Kafka, and make Spark start in about half of the time.

    Takes about a minute, once per machine; run it when you build a container image. Without it, jars are downloaded
    when they are first needed.
    """
    from tablestore.session import delta_jars  # noqa: PLC0415 - PySpark takes a second to import

    delta_jars()
    # Its jars and its archive come with the command; the heap does not matter.
    kafka_command("512m")
    archive = _archive_spark()
    console.print(f"Prepared. Spark's classes are in {archive}.", highlight=False, soft_wrap=True)


def pack(
    file: Annotated[Path, Argument(help="The archive: .tar.gz, .tgz, or .tar, which is not compressed.")] = _ARCHIVE,
    extra: Annotated[
        list[str] | None, Option("--with", help="A further installed package, with what it requires. Repeatable.")
    ] = None,
) -> None:
    """Pack this program and its dependencies for the executors of a Spark cluster, and print how to use the archive.

    The session of tablestore.session(master="spark://...") does this by itself.
    """
    from tablestore.spark import packages  # noqa: PLC0415 - PySpark takes a second to import
    from tablestore.spark.masters import cluster_settings  # noqa: PLC0415 - as above

    began = time.monotonic()
    packed = packages.pack(file, extra or ())
    size, seconds = packed.path.stat().st_size / 1e6, time.monotonic() - began
    python, settings = packages.python_name(), cluster_settings(packed)
    options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    calls = "".join(f".config({name!r}, {value!r})" for name, value in settings.items())
    for line in (
        f"{packed.path}: {len(packed.names)} packages, {size:.0f} MB, {seconds:.0f} s.",
        f"Executors need the same Spark, and {python} in their PATH on the same system and processor as here.",
        "",
        "spark-submit, and where a Spark Connect server starts:",
        f"  PYSPARK_PYTHON={python} spark-submit {options} program.py",
        "tablestore.session:",
        f"  session(master=..., config={{{packages.ARCHIVES!r}: {packed.setting!r}}})",
        "SparkSession.builder:",
        f"  os.environ['PYSPARK_PYTHON'] = {python!r}",
        f"  SparkSession.builder{calls}",
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _archive_spark() -> Path:
    """Create the archive of Spark's classes, unless it exists, and return its path.

    Raises:
        UnavailableError: Spark cannot run, Java did not write the archive, or the cache folder cannot be written.
    """
    from tablestore.spark.class_archive import spark_archive  # noqa: PLC0415 - as above

    archive = spark_archive(find_java())
    try:
        archive_classes(archive, "Spark", _run_spark)
    except OSError as error:
        msg = f"{archive}: cannot be written: {error}. Set XDG_CACHE_HOME to a folder that can be written."
        raise UnavailableError(msg) from error
    if not archive.exists():
        msg = f"{archive}: Java exited without writing it. Make room in its folder, or use another Java."
        raise UnavailableError(msg)
    return archive


def _run_spark(options: list[str]) -> None:
    """Run Spark in a process of its own, because a process has only one JVM."""
    command = [sys.executable, "-m", __name__, *options]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        msg = f"prepare: Spark did not finish within {_TIMEOUT_SECONDS} s. Run it again when the machine is less busy."
        raise UnavailableError(msg) from error
    if answer.returncode != 0:
        msg = f"prepare: Spark cannot run: {(answer.stdout + answer.stderr).strip()[-500:]}"
        raise UnavailableError(msg)


def _run_queries(options: list[str]) -> int:
    """Run typical queries with these Java options, wait until the JVM has ended, and return its exit code."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    from tablestore import TableStore  # noqa: PLC0415 - as above
    from tablestore.session import session  # noqa: PLC0415 - as above
    from tablestore.spark.class_archive import java_options  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(prefix="tablestore-spark-") as folder:
        settings = {"spark.driver.extraJavaOptions": java_options(options)}
        spark = session("prepare", master="local[2]", warehouse=f"{folder}/warehouse", config=settings)
        table = TableStore.create(spark, f"{folder}/table", "id bigint, v string", primary_key=["id"])
        rows = spark.range(1_000).selectExpr("id", "string(id) AS v")
        for _ in range(2):
            table.write(rows)
        table.read().where("id > 10").groupBy("v").count().collect()
        query = table.read_stream().writeStream.format("noop").trigger(availableNow=True)
        query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to the process
        spark.stop()
    assert gateway is not None
    # Spark's JVM ends when its standard input is closed.
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


if __name__ == "__main__":
    sys.exit(_run_queries(sys.argv[1:]))
