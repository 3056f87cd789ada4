"""Registers data sources with a Spark session such that threads may use them, and their sinks, at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tablestore.spark.connect import is_remote
from tablestore.spark.shipped import shipped_source

_SET_BY_STREAMS: Final = dict.fromkeys(
    ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME"), ""
)
"""The variables that the start of a stream puts into the environment of its data source."""

_names: Final[set[str]] = set()
"""The registered names, in lower case."""


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source, also in a session beside another one that has it.

    All queries of a session that read the source share the map of its environment. Spark 4.2.0 puts variables into it
    when a stream starts, without a lock: two that started at the same time could damage the map, and every later query
    of the session would fail with ``OptionalDataException``. So the variables are in it from the beginning, and putting
    them only replaces values. Whoever starts a process puts its own values first, so these are never used.

    A Spark Connect server makes that map itself.
    """
    if is_remote(spark):
        spark.dataSource.register(shipped_source(source))
        return
    _activate(spark)
    context = spark.sparkContext
    given = context.environment
    context.environment = _SET_BY_STREAMS | given
    try:
        spark.dataSource.register(shipped_source(source))
    finally:
        context.environment = given
    _names.add(source.name().lower())
    for writer in (DataFrameWriter, DataStreamWriter):
        if not hasattr(writer.format, "__wrapped__"):
            writer.format = _in_any_thread(writer.format)  # type: ignore[method-assign]


def _in_any_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``format`` of a writer that finds a registered data source in any thread."""

    @wraps(method)
    def called(writer: Any, source: str) -> Any:
        if str(source).lower() in _names:
            # The frame's session; PySpark has no other name for it.
            _activate(writer._spark)  # noqa: SLF001
        return method(writer, source)

    return called


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as each frame that is made of local rows does.

    Spark looks up sinks, and names that are taken, in the active session. A new thread has none.
    """
    spark.createDataFrame([], "nothing int")
