"""Watermarks per partition: the slowest holds windows open, an idle one follows, and what comes too late is dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from snapshot.errors import InvalidInputError
from tablestore.connectors import read_with_watermark
from tablestore.connectors.spark.partition_watermarks import IDLE_TIMEOUT, Computed, with_watermark
from tests.connectors.harness.wire import Record, Wire
from tests.harness.spark_tables import shuffle_partitions
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
START = 1_700_000_000
"""A whole number of 20 second windows since the epoch."""


@pytest.fixture
def query(
    spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Count rows in windows of 20 s; give a function that sends rows, runs the query on, and tells closed windows.

    The parameter is the number of partitions, and whether the event time is a computed column.
    """
    partitions, is_computed = getattr(request, "param", (2, False))
    topic = made(partitions)
    column = "text STRING" if is_computed else "ts TIMESTAMP_LTZ"
    computed = Computed("CAST(text AS TIMESTAMP)", "CAST(_message.text AS TIMESTAMP)") if is_computed else None
    options = {
        "properties.bootstrap.servers": wire.servers, "topic": topic, "format": "json",
        "scan.startup.mode": "earliest-offset",
    }  # fmt: skip
    closed: dict[int, int] = {}
    running: list[Any] = []

    def start() -> None:
        rows = read_with_watermark(spark, column, options, column="ts", delay="2 seconds", computed=computed)
        counted = rows.groupBy(F.window("ts", "20 seconds")).count()
        shown = counted.select((F.unix_timestamp("window.start") - START).alias("start"), "count")
        running.append(
            shown.writeStream.foreachBatch(lambda batch, _: closed.update(map(tuple, batch.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def run(*sent: tuple[int, int]) -> dict[int, int]:
        """Send rows as (partition, seconds after the start)."""
        if not running:
            start()
        texts = [
            (partition, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(START + second))) for partition, second in sent
        ]
        wire.send(
            topic,
            [Record(json.dumps({"text" if is_computed else "ts": text}).encode(), partition=p) for p, text in texts],
        )
        running[0].processAllAvailable()
        return dict(closed)

    run.watermark = lambda: running[0].lastProgress["eventTime"]["watermark"]  # type: ignore[attr-defined]
    run.options = options  # type: ignore[attr-defined]
    with shuffle_partitions(spark, 1):
        yield run
    for each in running:
        each.stop()
    spark.conf.unset(IDLE_TIMEOUT)


def instant(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(START + second))


@pytest.mark.slow
def test_b29_b30_b32_the_slowest_partition_holds_windows_open(query: Any) -> None:
    """The watermark is that of the slowest partition: with 100 s and 10 s and a delay of 2 s it is 8 s."""
    assert query((0, 100), (1, 10)) == {}
    assert query((0, 101)) == {}
    assert query.watermark() == instant(8)
    # Of partition 1 nothing is late, however far partition 0 is ahead.
    query((1, 12))
    assert query((1, 22)) == {0: 2}
    assert query.watermark() == instant(20)
    # A window that ended 2 s before the watermark's event time is closed: its rows are dropped, later ones are kept.
    query((1, 19), (1, 21), (0, 19))
    assert query((1, 60)) == {0: 2, 20: 2}


COLUMNS = pytest.mark.parametrize("query", [(2, False), (2, True)], indirect=True, ids=["physical", "computed"])


@pytest.mark.slow
@COLUMNS
def test_b31_p02_g23_an_idle_partition_holds_nothing_up_when_the_session_says_so(
    query: Any, spark: SparkSession
) -> None:
    """`table.exec.source.idle-timeout` (default: off): a silent partition does not delay the watermark until it has
    messages again."""
    spark.conf.set(IDLE_TIMEOUT, "3 s")
    assert query((0, 5), (1, 1)) == {}
    until = time.monotonic() + PATIENCE_SECONDS
    second = 30
    while not query((0, second)) and time.monotonic() < until:
        time.sleep(0.5)
        second += 1
    assert query() == {0: 2}
    # It comes back with a row that holds the next window open, until it is idle again.
    query((1, second), (0, second + 100))
    assert query.watermark() <= instant(second - 2)


@pytest.mark.slow
@pytest.mark.parametrize("query", [(4, False), (4, True)], indirect=True, ids=["physical", "computed"])
def test_b31_partitions_that_were_never_written_hold_nothing_up_even_if_all_fall_silent(
    query: Any, spark: SparkSession
) -> None:
    """Partitions that never had messages do not delay it, even if a micro-batch takes longer than the timeout."""
    spark.conf.set(IDLE_TIMEOUT, "100 ms")
    query((0, 5), (1, 6), (0, 50), (1, 51))
    until = time.monotonic() + PATIENCE_SECONDS
    while query() != {0: 2} and time.monotonic() < until:
        time.sleep(0.2)
    assert query() == {0: 2}
    # All have been silent for a while, and two go on.
    time.sleep(1)
    query((0, 90), (1, 91))
    while query() != {0: 2, 40: 2} and time.monotonic() < until:
        time.sleep(0.2)
    assert query() == {0: 2, 40: 2}


@pytest.mark.slow
@COLUMNS
def test_the_idle_timeout_of_a_table_replaces_that_of_the_session(query: Any, spark: SparkSession) -> None:
    spark.conf.set(IDLE_TIMEOUT, "1 h")
    query.options["scan.watermark.idle-timeout"] = "100 ms"
    query((0, 5), (0, 50))
    until = time.monotonic() + PATIENCE_SECONDS
    while query() != {0: 1} and time.monotonic() < until:
        time.sleep(0.2)
    assert query() == {0: 1}


@pytest.mark.slow
@pytest.mark.parametrize("query", [(3, False), (3, True)], indirect=True, ids=["physical", "computed"])
def test_an_idle_partition_follows_the_slowest_of_several(query: Any, spark: SparkSession) -> None:
    """A row that comes back later than the slowest one's is not late, though another partition is far ahead."""
    spark.conf.set(IDLE_TIMEOUT, "3 s")
    query((0, 5), (1, 500), (2, 1))
    until, second = time.monotonic() + PATIENCE_SECONDS, 30
    while not query((0, second), (1, second + 1000)) and time.monotonic() < until:
        time.sleep(0.5)
        second += 1
    assert query() == {0: 2}
    query((2, second + 50), (0, second + 200))
    assert query.watermark() <= instant(second + 48)


def test_the_newest_of_several_watermarks_is_refused(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    try:
        with pytest.raises(InvalidInputError, match="multipleWatermarkPolicy"):
            read_with_watermark(spark, "ts TIMESTAMP_LTZ", {}, column="ts", delay="2 seconds")
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


def test_a_watermark_keeps_columns_of_any_names(spark: SparkSession, wire: Wire, made: Topics) -> None:
    given = "ts TIMESTAMP_LTZ, _event_time INT"
    options = {"properties.bootstrap.servers": wire.servers, "topic": made(1), "format": "json"}
    rows = read_with_watermark(spark, given, options, column="ts", delay="2 seconds")
    assert rows.columns == ["ts", "_event_time"]
    stream = spark.readStream.format("rate").load().selectExpr("timestamp AS _event_time", "value")
    assert with_watermark(stream, "_event_time", "1 second").columns == ["_event_time", "value"]
    with pytest.raises(InvalidInputError, match=r"'_idle'.*Rename it"):
        read_with_watermark(spark, f"{given}, _idle INT", options, column="ts", delay="2 seconds")


def test_partitions_that_are_added_end_the_query(spark: SparkSession, wire: Wire, made: Topics, tmp_path: Path) -> None:
    """No source of the query reads them, so their rows would be missing."""
    topic = made(1)
    options = {
        "properties.bootstrap.servers": wire.servers, "topic": topic, "format": "json",
        "scan.startup.mode": "earliest-offset", "scan.topic-partition-discovery.interval": "1 ms",
    }  # fmt: skip
    rows = read_with_watermark(spark, "ts TIMESTAMP_LTZ", options, column="ts", delay="2 seconds")
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        wire.send(topic, [Record(b'{"ts":"2026-01-01 00:00:00Z"}')])
        query.processAllAvailable()
        wire.grow(topic, 2)
        with pytest.raises(PySparkException, match="partitions were added since this query began, 2 instead of 1"):
            query.awaitTermination(PATIENCE_SECONDS)
    finally:
        query.stop()
