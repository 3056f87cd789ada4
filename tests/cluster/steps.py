"""What drivers do on the cluster: steps by name, so that they can be sent to a driver's process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tablestore import TableStore, when_matched, when_not_matched
from tablestore.connectors import read as read_topic
from tablestore.connectors import write as write_topic
from tablestore.session import delta_jars, register
from tablestore.spark.packages import python_name
from tablestore.sql import Catalog
from tests.crash.processes.ledger import Ledger
from tests.harness.spark_tables import AVAILABLE, Follower, fold, make, rows

PLACES = "host_home string, interpreter string, prefix string, path string, daemon string"


def sources(spark: SparkSession) -> list[dict[str, Any]]:
    """Return, of each executor, where its Python is and whence it imports the store."""

    def look(batches: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - of the executor

        import snapshot  # noqa: PLC0415 - of the executor

        for _ in batches:
            time.sleep(1)
            place = [os.environ.get("HOME", ""), sys.executable, sys.prefix, snapshot.__file__]
            place.append(sys.modules["__main__"].__spec__.name)
            names = [each.split()[0] for each in PLACES.split(", ")]
            yield pa.RecordBatch.from_pylist([dict(zip(names, place, strict=True))])

    return [row.asDict() for row in spark.range(0, 2, 1, 2).mapInArrow(look, PLACES).collect()]


def make_table(spark: SparkSession, path: str, servers: str, topic: str, options: Mapping[str, Any]) -> None:
    given = {"key": True, **options}
    make(spark, Path(path), servers, topic, key=bool(given.pop("key")), **given)


def write_range(spark: SparkSession, path: str, first: int, last: int, value: str) -> None:
    """Write the rows of a range of keys, made by tasks."""
    made = spark.range(first, last, 1, 2).select("id", F.concat(F.lit(value), F.col("id")).alias("v"))
    TableStore.open(spark, path).write(made)


def write_slowly(spark: SparkSession, path: str, count: int, value: str, started: str) -> None:
    """Write rows that arrive one batch after another, so that tasks stage for seconds; say when they have begun."""

    def arrive(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            Path(started, f"{os.getpid()}-{number}").touch()
            time.sleep(0.3)
            yield batch

    made = spark.range(0, count, 1, 2).select("id", F.concat(F.lit(value), F.col("id")).alias("v"))
    TableStore.open(spark, path).write(made.mapInArrow(arrive, "id bigint, v string"))


def key_table(spark: SparkSession, path: str, checkpoint: str, servers: str, topic: str) -> dict[str, Any]:
    """Do what users do with a table with a key, and return what was read on the way."""
    found: dict[str, Any] = {}
    make_table(
        spark,
        path,
        servers,
        topic,
        {"changelog_producer": "lookup", "log__format": "arrow", "publish__driver_rows_max": 100},
    )
    table, follower = TableStore.open(spark, path), Follower(Path(checkpoint), lambda: _opened(spark, path))
    write_range(spark, path, 0, 1000, "a")
    write_range(spark, path, 500, 1500, "b")
    changes = follower.rows()
    table.delete("id < 100")
    table.update("id >= 1400", {"v": "'u'"})
    source = spark.range(90, 110).select("id", F.lit("m").alias("v"))
    table.merge(source, ["id"], [when_matched().update(), when_not_matched().insert()])
    changes += follower.rows()
    found["before"] = sorted(rows(table.read()).items())
    table.compact()
    source = spark.createDataFrame([(1, "new"), (1400, "new")], "id bigint, v string")
    source.write.format("tablestore").mode("append").save(path)
    changes += follower.rows()
    found["rows"] = sorted(rows(table.read()).items())
    found["format"] = sorted(rows(spark.read.format("tablestore").load(path)).items())
    found["fold"] = sorted(fold(changes).items())
    report = table.verify()
    found["ok"], found["report"] = report.ok, str(report)
    found["vacuum"] = len(spark.sql(f"VACUUM delta.`{path}` DRY RUN").collect())
    return found


def _opened(spark: SparkSession, path: str) -> DataFrame:
    return TableStore.open(spark, path).read_stream()


def append_table(spark: SparkSession, path: str, checkpoint: str, servers: str, topic: str) -> dict[str, Any]:
    """Stream a key table's changes into an append table by ``write_stream``, and rewrite files by verbs."""
    make_table(spark, path, servers, topic, {"key": False, "log__format": "arrow"})
    table = TableStore.open(spark, path)
    source = Path(checkpoint).with_name("input")
    for number in range(2):
        spark.range(number * 50, number * 50 + 50).select("id", F.lit("s").alias("v")).write.mode("append").json(
            str(source)
        )
        stream = spark.readStream.schema("id bigint, v string").json(str(source))
        table.write_stream(stream, checkpoint=checkpoint, trigger=AVAILABLE).awaitTermination()
    table.delete("id < 10")
    table.update("id = 10", {"v": "'u'"})
    report = table.verify()
    return {"rows": sorted(rows(table.read()).items()), "ok": report.ok, "report": str(report)}


def merge_engine(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    """Aggregate by key."""
    options = {"bucket": 2, "merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    table = TableStore.create(spark, path, "id bigint, n bigint", primary_key=["id"], options=options)
    for _ in range(2):
        table.write(spark.range(0, 100, 1, 2).select("id", F.lit(1).cast("long").alias("n")))
    return [tuple(row) for row in table.read().groupBy("n").count().collect()]


def connector_and_sql(spark: SparkSession, folder: str, servers: str, topic: str) -> dict[str, Any]:
    """Write a topic by the connector, read it back, and query it by SQL."""
    options = {
        "properties.bootstrap.servers": servers,
        "topic": topic,
        "format": "json",
        "scan.startup.mode": "earliest-offset",
    }
    write_topic(spark.range(0, 100, 1, 2).select("id", F.lit("k").alias("v")), "kafka", options)
    back = read_topic(spark, "kafka", "id BIGINT, v STRING", options)
    catalog = Catalog(spark, folder)
    named = ", ".join(f"'{name}' = '{value}'" for name, value in {"connector": "kafka", **options}.items())
    catalog.sql(f"CREATE TABLE t (id BIGINT, v STRING) WITH ({named})")
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    frame = catalog.sql("SELECT v, COUNT(*) AS n, MAX(id) AS m FROM t GROUP BY v").frame
    assert frame is not None
    return {"rows": back.count(), "sql": [tuple(row) for row in frame.collect()]}


def normalize(spark: SparkSession, path: str, checkpoint: str, ledger: str) -> None:
    """Follow an eventual log to its end through the normalize operator."""
    writer = TableStore.open(spark, path).read_stream(max_rows=40_000).writeStream
    writer = writer.foreachBatch(Ledger(Path(ledger)).put).trigger(**AVAILABLE)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


def recover(spark: SparkSession, path: str) -> None:
    TableStore.open(spark, path).recover()


def compact(spark: SparkSession, path: str) -> None:
    TableStore.open(spark, path).compact()


def verified(spark: SparkSession, path: str) -> tuple[bool, str, dict[int, str]]:
    """Return whether log and table agree, what ``verify()`` says, and the table's rows."""
    table = TableStore.open(spark, path)
    report = table.verify()
    return report.ok and not report.pending, str(report), rows(table.read())


def bare_session(url: str, config: Mapping[str, str]) -> SparkSession:
    """Make a session as somebody does who has not read how to ship the package."""
    os.environ["PYSPARK_PYTHON"] = python_name()
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    builder = SparkSession.builder.master(url).config("spark.jars", ",".join(delta_jars()))
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder = builder.config("spark.sql.catalog.spark_catalog", catalog)
    # A module that is missing stays so.
    builder = builder.config("spark.task.maxFailures", "1")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return builder.config(map=dict(config)).getOrCreate()


def without_packages(spark: SparkSession, path: str, arrow: str) -> list[str]:
    """Return the errors of a write, a read and a read as a data source; the last with a folder that holds pyarrow."""
    table = TableStore.open(spark, path)

    def load() -> None:
        # Spark's own part of a data source needs pyarrow.
        spark.sparkContext.environment["PYTHONPATH"] = arrow
        register(spark)
        spark.read.format("tablestore").load(path).collect()

    def write() -> None:
        table.write(spark.range(0, 5000, 1, 2).selectExpr("id", "string(id) AS v"))

    said = []
    for act in (write, lambda: table.read().collect(), load):
        try:
            act()
            said.append("")
        except PySparkException as error:
            said.append(str(error))
    return said
