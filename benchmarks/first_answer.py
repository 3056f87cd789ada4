"""From the start of Python until the first row is written and read back, compared with plain PySpark and Delta.

Each round is a new process. Both programs append the same row to a new table and read it back, on two cores and with
the jars downloaded; PySpark gets their paths and so does without Ivy. ``tablestore prepare`` is measured apart, by a
cache folder with the class archive and one without. What Spark itself needs is reported, too: PySpark's session alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import CORES, Bench, Result, at_most, main, timed
from log_system.jars import cache_home, find_java
from tablestore.cli.prepare import prepare
from tablestore.session import delta_jars
from tablestore.spark.class_archive import spark_archive

_ROW = "spark.createDataFrame([(1, 'first')], 'id bigint, note string')"

_PYSPARK = f"""
import sys
from pyspark.sql import SparkSession
jars, path = sys.argv[1:]
builder = SparkSession.builder.master("local[{CORES}]").config("spark.jars", jars)
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "4")
spark = builder.getOrCreate()
if path:
    {_ROW}.write.format("delta").mode("append").save(path)
    assert spark.read.format("delta").load(path).collect()[0].note == "first"
"""

_OURS = f"""
import sys
from tablestore import TableStore, session
path, servers = sys.argv[1:]
spark = session("first answer", master="local[{CORES}]")
log = {{"kafka.bootstrap.servers": servers, "kafka.topic": path.rpartition("/")[2]}} if servers else None
columns = "id bigint, note string"
table = TableStore.create(spark, path, columns, log_system="kafka" if servers else None, options=log)
table.write({_ROW})
assert table.read().collect()[0].note == "first"
"""


def run(bench: Bench) -> list[Result]:
    """Measure both programs from start to end."""
    bench.say("preparing")
    jars = ",".join(delta_jars())
    prepare()
    bare = _cache_without_archive(bench)
    servers = bench.kafka.bootstrap_servers

    def ours(servers: str = "", cache: Path | None = None) -> float:
        env = {"XDG_CACHE_HOME": str(cache)} if cache else {}
        return _started(_OURS, bench.path("ours"), servers, **env)

    turns = bench.take_turns(
        "first answer",
        {
            "PySpark, session only": lambda: _started(_PYSPARK, jars, ""),
            "PySpark and Delta": lambda: _started(_PYSPARK, jars, bench.path("plain")),
            "without prepare": lambda: ours(cache=bare),
            "prepared": ours,
            "prepared, with a log": lambda: ours(servers),
        },
        rounds=bench.size(5, 2),
    )
    plain = turns["PySpark and Delta"]
    name = "PySpark and Delta"
    what = "from `python` to the first row read back"
    return [
        at_most(f"{what}, after `tablestore prepare`", turns["prepared"], plain, 1.2, name),
        at_most(f"{what}, without `prepare`", turns["without prepare"], plain, 1.2, name),
        at_most(f"{what}, after `prepare`, with a log", turns["prepared, with a log"], plain, 1.2, name),
        Result("PySpark's session alone", str(turns["PySpark, session only"])),
    ]


def _started(program: str, *words: str, **env: str) -> float:
    command = [sys.executable, "-c", program, *words]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True, env=os.environ | env))


def _cache_without_archive(bench: Bench) -> Path:
    """Return a cache folder with the downloaded jars, but without the archive of Spark's classes."""
    folder = bench.folder / "cache" / cache_home().name
    folder.mkdir(parents=True)
    archive = spark_archive(find_java())
    for entry in cache_home().iterdir():
        if entry != archive:
            (folder / entry.name).symlink_to(entry)
    return folder.parent


if __name__ == "__main__":
    main(run)
