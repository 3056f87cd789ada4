"""The documentation's query (views and visitors per region) in SQL compared with the same aggregate in PySpark.

Run ``python -m benchmarks.sql [--small]``. Both read the same topic of JSON page views through the same source and
write to an upsert table; they differ only in who planned the query. The PySpark query also keeps each user of a region
only once.

The command line is timed from the start to the end of its process: ``SELECT 1``, which needs no Spark, and ``tail`` of
a table whose log contains one snapshot.
"""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.harness import Bench, Result, at_least, count_text, limit, main, seconds_text, timed
from tablestore.connectors import read_stream, write, write_stream
from tablestore.sql import Catalog

REGIONS, USERS = 100, 100_000
SCHEMA = "user_id BIGINT, page_id BIGINT, viewtime TIMESTAMP_NTZ, user_region STRING"
START_SECONDS = 2.0
"""The maximum time of ``tablestore tail``."""
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


def run(bench: Bench) -> list[Result]:
    """Measure the query and the command line."""
    return [*_query(bench), *_start_up(bench)]


def _query(bench: Bench) -> list[Result]:
    """Read all page views with ``AvailableNow``; only the time of micro-batches counts."""
    count = bench.size(2_000_000, 200_000)
    servers = bench.kafka.bootstrap_servers
    source = {"topic": "pageviews", "properties.bootstrap.servers": servers, "format": "json"}
    source["scan.startup.mode"] = "earliest-offset"
    bench.say(f"making {count_text(count)} page views")
    views = bench.spark.range(count).select(
        F.floor(F.rand(1) * USERS).alias("user_id"),
        F.floor(F.rand(2) * 1000).alias("page_id"),
        (F.expr("TIMESTAMP_NTZ '2024-01-01 00:00:00'") + F.make_dt_interval(secs=F.col("id") / 100)).alias("viewtime"),
        F.concat(F.lit("region-"), F.floor(F.rand(3) * REGIONS)).alias("user_region"),
    )
    write(views, "kafka", source)

    def by_sql() -> float:
        catalog = Catalog(bench.spark, bench.path("warehouse"), settings={"tablestore.trigger": "available-now"})
        given = "".join(f", '{key}' = '{value}'" for key, value in source.items())
        sink = "".join(f", '{key}' = '{value}'" for key, value in _sink(bench).items() if key != "primary-key")
        (query,) = catalog.sql(
            f"CREATE TABLE pageviews ({SCHEMA.replace('_NTZ', '')}) WITH ('connector' = 'kafka'{given}); "
            "CREATE TABLE per_region (user_region STRING, pv BIGINT, uv BIGINT, PRIMARY KEY (user_region) NOT ENFORCED"
            f") WITH ('connector' = 'upsert-kafka'{sink}); INSERT INTO per_region SELECT user_region, COUNT(*), "
            "COUNT(DISTINCT user_id) FROM pageviews GROUP BY user_region"
        ).queries
        return _seconds(query, count)

    def by_hand() -> float:
        rows = read_stream(bench.spark, "kafka", SCHEMA, source)
        users = rows.where("user_id IS NOT NULL").select("user_region", "user_id").dropDuplicates()
        seen = rows.select("user_region", F.lit(1).alias("pv"), F.lit(0).alias("uv"))
        seen = seen.union(users.select("user_region", F.lit(0), F.lit(1)))
        counts = seen.groupBy("user_region").agg(F.sum("pv").alias("pv"), F.sum("uv").alias("uv"))
        options = {**_sink(bench), "checkpointLocation": bench.path("checkpoint")}
        bench.spark.conf.set(_CHECK, "false")
        try:
            writer = write_stream(counts, "upsert-kafka", options, output_mode="update")
            return _seconds(writer.trigger(availableNow=True).start(), count)
        finally:
            bench.spark.conf.set(_CHECK, "true")

    turns = bench.take_turns("page views", {"sql": by_sql, "hand": by_hand}, rounds=3, rows=count)
    what = f"{count_text(count)} page views, {REGIONS} regions, COUNT(*) and COUNT(DISTINCT user_id)"
    return [at_least(what, turns["sql"], turns["hand"], 0.9, "by hand in PySpark")]


def _start_up(bench: Bench) -> list[Result]:
    """Measure the run time of command-line processes."""
    table = bench.table("tailed", "id BIGINT, v STRING", key=["id"], log="json")
    table.write(bench.spark.createDataFrame([(1, "a")], "id BIGINT, v STRING"))
    path = table.path

    def started(expected: str, *arguments: str) -> float:
        command = [sys.executable, "-m", "tablestore", *arguments]
        printed: list[str] = []
        taken = timed(
            lambda: printed.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        )
        assert expected in printed[0], printed
        return taken

    select = ("sql", "--json", "-w", bench.path("warehouse"), "-e", "SELECT 1")
    tail = ("tail", path, "--from", "earliest", "--no-follow", "--json")
    contestants = {"select": lambda: started("1", *select), "tail": lambda: started("update_postimage", *tail)}
    turns = bench.take_turns("command line", contestants, rounds=5)
    return [
        limit("tablestore sql -e 'SELECT 1', start to end", turns["select"].median, None, seconds_text),
        limit("tablestore tail, start to end", turns["tail"].median, START_SECONDS, seconds_text),
    ]


def _sink(bench: Bench) -> dict[str, str]:
    """Return the sink options with a new topic for the result."""
    return {
        "topic": bench.path("per-region").rpartition("/")[2],
        "properties.bootstrap.servers": bench.kafka.bootstrap_servers,
        "key.format": "json",
        "value.format": "json",
        "primary-key": "user_region",
    }


def _seconds(query: StreamingQuery, count: int) -> float:
    """Return the seconds of a query's micro-batches with rows."""
    assert query.awaitTermination(600)
    error = query.exception()
    if error is not None:
        raise error
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert progress, f"{count} rows were to be read"
    return sum(each.durationMs["triggerExecution"] for each in progress) / 1000


if __name__ == "__main__":
    main(run)
