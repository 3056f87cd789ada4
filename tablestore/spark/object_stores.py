"""S3 in Spark sessions: Hadoop's client, its settings, and a Delta log store that never replaces a commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from log_system.jars import fetch_jars
from snapshot.errors import InvalidInputError
from tablestore.spark.connect import is_remote

logger = logging.getLogger("tablestore")

S3 = "s3"
"""The value of ``storage`` that brings Hadoop's client of S3 into a session."""
HADOOP: Final = "3.5.0"
"""The Hadoop of PySpark's own jars; ``hadoop-aws`` must be of the same version."""
AWS_SDK: Final = "2.35.4"
"""The AWS SDK with which this ``hadoop-aws`` was built."""
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
"""The part of the SDK that Hadoop uses: 11 MB in place of the bundle of all services, which has 686 MB."""
_EXCLUDED = (
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl",
    # Spark has these.
    "commons-codec",
    "commons-logging",
    "io.netty",
    "org.apache.httpcomponents",
    "org.slf4j",
)
_SCHEMES = ("s3", "s3a")
LOG_STORE = "tablestore.S3LogStore"
_S3A = "spark.hadoop.fs.s3a"
_warned: set[tuple[str, str]] = set()
"""Applications and schemes for which this process has already warned about the log store."""


def hadoop_aws_modules() -> tuple[str, list[str], tuple[str, ...]]:
    """Return the name of the set of jars of Hadoop's S3 client, its Maven coordinates and what is excluded."""
    sdk = [f"software.amazon.awssdk:{name}:{AWS_SDK}" for name in _SDK_MODULES]
    return f"hadoop-aws-{HADOOP}", [f"org.apache.hadoop:hadoop-aws:{HADOOP}", *sdk], _EXCLUDED


def storage_of(path: str) -> str | None:
    """Return the storage that a path is in, as `tablestore.session` takes it; None for local files and other URLs."""
    return S3 if path.partition("://")[0] in _SCHEMES else None


def storage_jars(storage: str | None) -> list[str]:
    """Return the paths of the jars with which Spark reads and writes a kind of storage; none for local files.

    Raises:
        InvalidInputError: the kind is unknown.
        UnavailableError: the jars cannot be downloaded.
    """
    if storage is None:
        return []
    if storage != S3:
        msg = f"storage: expected {S3!r}, or None for local files, got {storage!r}."
        raise InvalidInputError(msg)
    name, modules, excluded = hadoop_aws_modules()
    return sorted(str(jar) for jar in fetch_jars(name, modules, excludes=excluded).glob("*.jar"))


def storage_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for S3, so that fsspec, delta-rs and Hadoop find the same store by ``AWS_*`` variables.

    Spark itself hands the credentials in the environment to Hadoop, so no secret gets into the settings.
    """
    settings = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    settings |= {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in _SCHEMES}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region:
        settings[f"{_S3A}.endpoint.region"] = region
    if endpoint:
        parts = urlsplit(endpoint)
        by_host = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
        is_aws = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        settings[f"{_S3A}.endpoint"] = endpoint
        settings[f"{_S3A}.path.style.access"] = str(not (is_aws or by_host)).lower()
        settings[f"{_S3A}.connection.ssl.enabled"] = str(parts.scheme != "http").lower()
    return settings


def warn_of_overwrites(spark: SparkSession, path: str) -> None:
    """Warn, once per session and scheme, if Spark's own Delta commits to a table can replace commits of the store."""
    if storage_of(path) is None:
        return
    scheme = path.partition("://")[0]
    name = f"spark.delta.logStore.{scheme}.impl"
    application, log_store = _context_settings(spark, "spark.app.id", name)
    if log_store == LOG_STORE or (str(application), scheme) in _warned:
        return
    _warned.add((str(application), scheme))
    logger.warning(
        "table %s: expected the setting %s=%s in this Spark session, got %s: Delta commits of Spark (ALTER TABLE, "
        "OPTIMIZE, format('delta')) then replace commits that this program makes at the same time, without an error. "
        "Build the session with tablestore.session(storage='s3'), or see 'Sessions of your own' in "
        "docs/guide/object_stores.md. Do not commit with Spark's Delta to this table from this session.",
        path, name, LOG_STORE, log_store or "none",
    )  # fmt: skip


def _context_settings(spark: SparkSession, *names: str) -> list[Any]:
    """Return settings with which the Spark application was started; those of the session say nothing about Delta."""
    if is_remote(spark):
        return [spark.conf.get(name, None) for name in names]
    given = spark.sparkContext.getConf()
    return [given.get(name) for name in names]
