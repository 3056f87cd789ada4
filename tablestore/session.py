"""A Spark session with Delta and the table store in it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from log_system.jars import fetch_jars, find_java, waiting
from log_system.kafka.client.secrets import REDACTION
from tablestore.connectors.spark.datasource import KafkaDataSource, UpsertKafkaDataSource
from tablestore.datasource import TableStoreDataSource
from tablestore.spark.interrupts import interrupt_quietly

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_SETTINGS = {
    # Keys of a normalized stream, on disk and not in the heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch writes what it has changed, in place of flushing RocksDB and copying its files: half the time.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""How streaming queries keep their state, in sessions in which nothing else is said."""
# What Delta depends on and Spark has already.
IN_SPARK = (
    "com.fasterxml.jackson.core",
    "com.fasterxml.jackson.datatype",
    "com.github.luben",
    "com.google.code.findbugs",
    "commons-logging",
    "commons-pool",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.roaringbitmap",
    "org.scala-lang",
    "org.slf4j",
    "org.xerial.snappy",
)

_STACK = "32m"
"""Of each thread of Spark's JVM, as far as it is used. When a query is stopped in the midst of a batch, Spark searches
the error of its ``foreachBatch`` by a regular expression that takes about a kilobyte for each character of the message:
with the default of 1 MB, 2,000 characters end in a StackOverflowError; with this, 20,000 do not (measured)."""
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow's Java library checks for each value that its buffer is long enough and that it is there. Spark knows both."""


def session(
    app_name: str = "tablestore",
    *,
    master: str = "local[*]",
    warehouse: str | os.PathLike[str] | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Build a Spark session that knows Delta tables and the table store, or return the one that runs.

    Delta's jars are fetched from Maven Central at the first use. Of a session that runs already, Spark changes only the
    settings that can change; use `register` for one that you built yourself.

    Args:
        app_name: name shown by Spark.
        master: Spark's master URL. A local one listens on loopback only.
        warehouse: folder of the tables that Spark manages.
        config: further Spark settings; they win over the ones set here, except that jars and extensions are added up.

    Raises:
        UnavailableError: Java 17 or newer is missing, or Delta's jars cannot be fetched.
    """
    given = {key: _text(value) for key, value in (config or {}).items()}
    find_java()
    # An executor with another interpreter would not find this program's packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = _settings(master, delta_jars())
    if warehouse is not None:
        settings["spark.sql.warehouse.dir"] = os.fspath(warehouse)
    builder = SparkSession.builder.appName(app_name).master(master)
    with waiting("Starting Spark ..."):
        spark = builder.config(map=dict(merged(settings, given))).getOrCreate()
    interrupt_quietly(spark)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("tablestore")``, ``format("kafka-table")`` and ``format("upsert-kafka")`` known to a session.

    The same names work after ``USING``. Filters are pushed down to the table store. Credentials in options are left out
    of what Spark shows (plans, its UI and event log). Streaming queries of the session
    keep their state by `STATE_SETTINGS`, as far as the session has no settings of its own; a query that goes on from a
    checkpoint keeps the kind of state store that it has.

    Args:
        spark: any session, also one over Spark Connect; Delta must be configured in it for `TableStore` to work.
    """
    for source in (TableStoreDataSource, KafkaDataSource, UpsertKafkaDataSource):
        spark.dataSource.register(source)
    spark.conf.set(FILTER_PUSHDOWN, "true")
    redacted = spark.conf.get(REDACTED_OPTIONS) or ""
    if REDACTION not in redacted:
        spark.conf.set(REDACTED_OPTIONS, f"{redacted}|{REDACTION}" if redacted else f"(?i){REDACTION}")
    given = spark.conf.getAll
    for name, value in STATE_SETTINGS.items():
        if name not in given:
            spark.conf.set(name, value)


def delta_jars() -> list[str]:
    """Return the jars that make Spark read and write Delta tables, as absolute paths.

    Raises:
        UnavailableError: they cannot be fetched.
    """
    name, modules = delta_modules()
    return sorted(str(jar) for jar in fetch_jars(name, modules, excludes=IN_SPARK).glob("*.jar"))


def delta_modules() -> tuple[str, list[str]]:
    """Return the name of Delta's set of jars, and its Maven coordinates."""
    spark_line = ".".join(version("pyspark").split(".")[:2])
    delta = version("delta-spark")
    return f"delta-{delta}-spark-{spark_line}", [f"io.delta:delta-spark_{spark_line}_2.13:{delta}"]


def merged(ours: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Lay the user's settings over ours; lists of jars and extensions are joined, Java options too."""
    joiners = {"spark.jars": ",", "spark.sql.extensions": ","}
    joiners |= {f"spark.{where}.extraJavaOptions": " " for where in ("driver", "executor")}
    joined = {key: ours[key] + joiner + given[key] for key, joiner in joiners.items() if key in ours and key in given}
    return {**ours, **given, **joined}


def _settings(master: str, jars: list[str]) -> dict[str, str]:
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        FILTER_PUSHDOWN: "true",
        **STATE_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Xss{_STACK} -Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {_ARROW}",
        "spark.executor.extraJavaOptions": _ARROW,
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The default of 200 is for clusters; here every one is a task that does next to nothing.
            "spark.sql.shuffle.partitions": "4",
            "spark.databricks.delta.snapshotPartitions": "2",
            # So is that of 10,000 for each list of files of Delta's VACUUM: of a small table 26 s, and so 4 s.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
            # Spark's default asks the shell for each file's rights: 115 ms of a micro-batch, and 37 ms so (measured).
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        }
        if hasattr(socket, "TCP_QUICKACK"):
            # Tasks that run Python begin 40 ms earlier.
            settings["spark.python.daemon.module"] = "tablestore.python_daemon"
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
