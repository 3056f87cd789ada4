"""Builds Spark sessions that have Delta and the table store configured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.class_archive import sharing
from log_system.jars import fetch_jars, find_java, waiting
from log_system.kafka.client.secrets import REDACTION
from snapshot.errors import InvalidInputError
from tablestore.connectors.spark.datasource import ChangelogDataSource, KafkaDataSource, UpsertKafkaDataSource
from tablestore.datasource import NormalizedDataSource, TableStoreDataSource
from tablestore.registration import register_source
from tablestore.spark.class_archive import java_options, spark_archive
from tablestore.spark.connect import check_server, is_remote, remote_session, skip_accumulators
from tablestore.spark.error_messages import plain_queries
from tablestore.spark.interrupts import interrupt_quietly, starting_quietly
from tablestore.spark.masters import PYTHON_PATH, Master, python_environment
from tablestore.spark.object_stores import storage_jars, storage_settings
from tablestore.spark.packages import ARCHIVES
from tablestore.spark.scala_classes import EXTENSIONS, classes_jar

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
CHECKPOINT_FILES = "tablestore.CheckpointFiles"
STREAM_SETTINGS = {
    # The keys of a normalized stream stay on disk, not in the heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch writes only its changes. Flushing RocksDB and copying its files would take twice as long.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # With adaptive execution, two threads plan the partitions of a Python source that a query reads twice. They share
    # one connection, without a lock, and wait for each other's answers forever (Spark 4.2.0).
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}
"""How streaming queries run and keep their state, unless the session has settings of its own."""
# Dependencies of Delta that Spark already provides.
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
"""Stack size of each thread of Spark's JVM; memory is only taken as it is used. When a query is stopped during a batch,
Spark matches the error of its ``foreachBatch`` against a regular expression that takes about a kilobyte of stack for
each character of the message. With the default of 1 MB, 2,000 characters cause a StackOverflowError; with this size,
20,000 do not (measured)."""
_LOCAL = "local[*]"
_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Turns off the bounds and null checks that Arrow's Java library makes for each value. Spark checks both itself."""


def session(
    app_name: str = "tablestore",
    *,
    master: str = _LOCAL,
    remote: str | None = None,
    warehouse: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Return a Spark session with Delta and the table store: a new one, or the one that already runs.

    On first use, Delta's jars are downloaded from Maven Central. After ``tablestore prepare``, run once on a machine,
    Spark starts in about half of the time. In a session that already runs, Spark changes only the settings that can be
    changed at runtime; use `register` for a session that you built yourself.

    Args:
        app_name: name shown by Spark.
        master: Spark's master URL. A local master listens on loopback only. On a cluster, executors are sent this
            program's packages, unless ``PYSPARK_PYTHON`` or ``spark.pyspark.python`` names a Python that has them; see
            ``docs/guide/deploy.md``.
        remote: URL of a Spark Connect server (``sc://host:15002``), by default that in the environment variable
            ``SPARK_REMOTE``; takes the place of ``master``. The server has the jars and the warehouse, so this process
            needs no Java. See ``docs/guide/connect.md``.
        warehouse: folder of the tables that Spark manages.
        storage: ``"s3"`` brings Hadoop's client of S3, with which Spark reads ``s3://`` and ``s3a://``; downloaded on
            first use (13 MB). A Connect server needs it, its clients do not.
        config: further Spark settings. They override those set here, except that jars, extensions, Java options,
            archives and the executors' ``PYTHONPATH`` are joined.

    Raises:
        InvalidInputError: ``storage`` is unknown, or ``remote`` is wrong or goes together with ``master``
            or ``warehouse``.
        UnavailableError: Java 17 or newer is missing, jars cannot be downloaded, or packages cannot be packed; or no
            Connect server answers, or it lacks this package.
    """
    given = {key: _text(value) for key, value in (config or {}).items()}
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote:
        named = {"master": None if master == _LOCAL else master, "warehouse": warehouse}
        refused = [name for name, value in named.items() if value is not None]
        if refused:
            msg = (
                f"{refused[0]}: the Spark Connect server of remote (or SPARK_REMOTE) decides that. Leave it out "
                "here, and set it where the server is started."
            )
            raise InvalidInputError(msg)
        spark = remote_session(remote, app_name, given)
        register(spark)
        return spark
    shared = sharing(spark_archive(find_java()))
    where = Master(master)
    settings = _settings(where, session_jars(storage), java_options(shared)) | where.settings(given)
    if warehouse is not None:
        settings["spark.sql.warehouse.dir"] = os.fspath(warehouse)
    builder = SparkSession.builder.appName(app_name).master(master)
    hint = "" if shared else " ('tablestore prepare', run once, halves this time)"
    with python_environment(where, given), waiting(f"Starting Spark ...{hint}"), starting_quietly():
        spark = builder.config(map=dict(merged(settings, given))).getOrCreate()
    interrupt_quietly(spark)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register ``format("tablestore")``, ``format("kafka-table")`` and ``format("upsert-kafka")`` with a session.

    The same names work after ``USING``. Filters are pushed down to the table store. Credentials in options are redacted
    from plans, Spark's UI and its event log. Streaming queries of the session run, and keep their state, as
    `STREAM_SETTINGS` says, unless the session already has those settings. A query that resumes from a checkpoint keeps
    its kind of state store.

    Args:
        spark: any session, including a Spark Connect session; `TableStore` needs Delta configured in it.

    Raises:
        UnavailableError: the Python of a Spark Connect server cannot import this package.
        InvalidInputError: the session is that of a declarative pipeline, whose specification lacks a setting.
    """
    if is_remote(spark):
        check_server(spark)
        skip_accumulators(spark)
    plain_queries(spark)
    for source in (
        TableStoreDataSource,
        NormalizedDataSource,
        KafkaDataSource,
        UpsertKafkaDataSource,
        ChangelogDataSource,
    ):
        register_source(spark, source)
    settings = _settings_to_set(spark)
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
    except PySparkException as error:
        if not (error.getCondition() or "").startswith("SESSION_MUTATION_IN_DECLARATIVE_PIPELINE"):
            raise
        lines = "\n".join(f"  {name}: {json.dumps(value)}" for name, value in settings.items())
        msg = (
            "register: a declarative pipeline takes its settings from its specification; add to spark-pipeline.yml:\n"
            f"configuration:\n{lines}"
        )
        raise InvalidInputError(msg) from error


def _settings_to_set(spark: SparkSession) -> dict[str, str]:
    """Return the settings that ``register`` makes and that a session does not have."""
    given = spark.conf.getAll
    settings = {name: value for name, value in STREAM_SETTINGS.items() if name not in given}
    if spark.conf.get(FILTER_PUSHDOWN) != "true":
        settings[FILTER_PUSHDOWN] = "true"
    redacted = spark.conf.get(REDACTED_OPTIONS) or ""
    if REDACTION not in redacted:
        settings[REDACTED_OPTIONS] = f"{redacted}|{REDACTION}" if redacted else f"(?i){REDACTION}"
    return settings


def delta_jars() -> list[str]:
    """Return the absolute paths of the jars with which Spark reads and writes Delta tables.

    Raises:
        UnavailableError: the jars cannot be downloaded.
    """
    name, modules = delta_modules()
    return sorted(str(jar) for jar in fetch_jars(name, modules, excludes=IN_SPARK).glob("*.jar"))


def session_jars(storage: str | None = None) -> list[str]:
    """Return the absolute paths of all jars of a session: Delta, this program's classes, and a client of the storage.

    Raises:
        InvalidInputError: ``storage`` is unknown.
        UnavailableError: jars cannot be downloaded, or this program's classes cannot be compiled.
    """
    clients, delta = storage_jars(storage), delta_jars()
    return [*delta, str(classes_jar(Path(delta[0]).parent)), *clients]


def delta_modules() -> tuple[str, list[str]]:
    """Return the name of the set of Delta jars, and its Maven coordinates."""
    spark_line = ".".join(version("pyspark").split(".")[:2])
    delta = version("delta-spark")
    return f"delta-{delta}-spark-{spark_line}", [f"io.delta:delta-spark_{spark_line}_2.13:{delta}"]


def merged(ours: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Return our settings overridden by the user's; jars, extensions, Java options and the like are joined."""
    joiners = {"spark.jars": ",", "spark.sql.extensions": ",", ARCHIVES: ",", PYTHON_PATH: ":"}
    joiners |= {f"spark.{where}.extraJavaOptions": " " for where in ("driver", "executor")}
    joined = {key: ours[key] + joiner + given[key] for key, joiner in joiners.items() if key in ours and key in given}
    return {**ours, **given, **joined}


def _settings(master: Master, jars: list[str], java: str) -> dict[str, str]:
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": ",".join(("io.delta.sql.DeltaSparkSessionExtension", *EXTENSIONS)),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        FILTER_PUSHDOWN: "true",
        # Spark has the type TIME, and lets nobody use it unless told to.
        "spark.sql.timeType.enabled": "true",
        **STREAM_SETTINGS,
        **storage_settings(os.environ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": (
            f"-Xss{_STACK} -Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {_ARROW} {java}"
        ),
        "spark.executor.extraJavaOptions": _ARROW,
        # Delta's VACUUM lists files with so many tasks. With Spark's default of 10,000 a small table takes 26 s,
        # with 32 it takes 4 s.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    }
    if master.on_this_machine:
        settings |= {
            # The default of 200 is for clusters; locally it makes 200 tasks that do next to nothing.
            "spark.sql.shuffle.partitions": "4",
            "spark.databricks.delta.snapshotPartitions": "2",
            # Spark's default runs shells to set permissions: 115 ms per micro-batch; this takes 2 ms (measured).
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        }
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
