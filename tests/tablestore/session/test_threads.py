"""A session that several threads of a program use at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tablestore import TableStore
from tablestore.connectors import api
from tablestore.session import register
from tests.harness.spark_tables import make, rows


def test_the_start_of_a_stream_leaves_what_all_queries_of_the_source_share_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two that add to the map at the same time damage it, rarely; then no query of the session works any more."""
    make(spark, tmp_path / "t").write([{"id": 1, "v": "a"}])
    fresh = spark.newSession()
    register(fresh)
    source: Any = fresh._jsparkSession.sessionState().dataSourceManager().lookupDataSource("tablestore")
    shared = source.dataSourceCls().envVars()
    before = set(shared)
    stream = TableStore.open(fresh, tmp_path / "t").read_stream(scan_mode="earliest")
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert shared["SPARK_PYTHON_RUNTIME"], "no stream has started"
    assert set(shared) == before


def test_a_session_beside_another_one_is_registered(spark: SparkSession, tmp_path: Path) -> None:
    make(spark, tmp_path / "t").write([{"id": 1, "v": "a"}])
    fresh = spark.newSession()
    spark.createDataFrame([], "i int")
    register(fresh)
    read = fresh.read.format("tablestore").load(str(tmp_path / "t"))
    assert rows(read) == {1: "a"}


def test_sinks_are_found_in_a_thread_of_the_program(
    spark: SparkSession, tmp_path: Path, servers: str, topic: Callable[[], str]
) -> None:
    table, other = make(spark, tmp_path / "t"), make(spark, tmp_path / "other")
    frame = spark.createDataFrame([(1, "a")], table.schema)
    connected = {"topic": topic(), "properties.bootstrap.servers": servers, "value.format": "json"}

    def write() -> None:
        frame.write.format("tablestore").mode("append").save(table.path)
        stream = table.read_stream(scan_mode="earliest").select("id", "v")
        writer = stream.writeStream.format("tablestore").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.start(other.path).awaitTermination(60)
        api.write(frame, "kafka", connected)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert rows(other.read()) == rows(frame)
