"""``tablestore prepare``: downloads and archives what a machine needs only once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from typer import Typer

from log_system.class_archive import archiving
from log_system.jars import find_java
from log_system.local_kafka.installation import kafka_command
from snapshot.errors import UnavailableError
from tablestore.cli.console import console

_TIMEOUT_SECONDS = 600


def prepare() -> None:
    """Download the jars of Delta and Kafka, and make Spark start in about half of the time.

    Takes about a minute, once per machine; run it when you build a container image. Without it, jars are downloaded
    when they are first needed.
    """
    from tablestore.session import delta_jars  # noqa: PLC0415 - PySpark takes a second to import

    delta_jars()
    kafka_command("512m")
    archive = _archive_spark()
    console.print(f"Prepared. Spark's classes are in {archive}.", highlight=False, soft_wrap=True)


def add_to(app: Typer) -> None:
    """Add the command to the application."""
    app.command()(prepare)


def _archive_spark() -> Path:
    """Create the archive if it does not exist, by running Spark once, and return its path.

    Raises:
        UnavailableError: Spark cannot run, or Java did not write the archive.
    """
    from tablestore.spark.class_archive import spark_archive  # noqa: PLC0415 - as above

    archive = spark_archive(find_java())
    with archiving(archive, "Spark") as options:
        if options is None:
            return archive
        command = [sys.executable, "-m", __name__, *options]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS)
            printed, failed = answer.stdout + answer.stderr, answer.returncode != 0
        except subprocess.TimeoutExpired:
            printed, failed = f"no end after {_TIMEOUT_SECONDS} s", True
        if failed:
            msg = f"{archive}: Spark cannot archive its classes: {printed.strip()[-500:]}"
            raise UnavailableError(msg)
    if not archive.exists():
        msg = f"{archive}: Java wrote no archive: {printed.strip()[-500:]}"
        raise UnavailableError(msg)
    return archive


def _run(options: list[str]) -> None:
    """Run typical queries with these Java options, then stop the JVM and wait until it has written its archive."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    from tablestore import TableStore  # noqa: PLC0415 - as above
    from tablestore.session import session  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(prefix="tablestore-spark-") as folder:
        settings = {"spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in options)}
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
    gateway.proc.wait()


if __name__ == "__main__":
    _run(sys.argv[1:])
