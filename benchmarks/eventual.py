"""Normalize: the streaming read of an eventual log, with the operator and without it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.frames import with_values
from benchmarks.harness import Bench, Result, at_least, count_text, limit, main, reach
from tablestore.store import TableStore

SCHEMA = "id bigint, name string, price double"
BATCHES = 20


def run(bench: Bench) -> list[Result]:
    """Read a log of repeated keys and some deletes into Spark's ``noop`` sink, ten micro-batches."""
    keys = bench.size(100_000, 20_000)
    table = _table(bench, keys)
    count = keys * BATCHES
    progress: list[Any] = []

    def read(normalize: bool) -> float:
        return _seconds(
            bench, table.read_stream(scan_mode="earliest", normalize=normalize, max_rows=count // 10), progress
        )

    turns = bench.take_turns(
        "normalize",
        {"with": lambda: read(normalize=True), "without": lambda: read(normalize=False)},
        rounds=bench.size(5, 3),
        rows=count,
    )
    state = next(p.stateOperators[0] for p in reversed(progress) if p.stateOperators)
    stored = dict(state.customMetrics).get("rocksdbTotalBytesWritten", 0) / BATCHES / max(state.numRowsTotal, 1)
    what = f"normalize {count_text(count)} records of {count_text(keys)} keys, JSON"
    return [
        reach(what, count / turns["with"].median, 400_000),
        at_least("... beside the same read without it", turns["with"], turns["without"], 0.9, "normalize=False"),
        limit("... state, rows", state.numRowsTotal, keys, lambda rows: f"{rows:,.0f}"),
        limit("... state, bytes written to it for each record", stored, None, lambda size: f"{size:,.0f} bytes"),
    ]


def _table(bench: Bench, keys: int) -> TableStore:
    """Make a log in which each write has every key, a tenth of them as deletes."""
    bench.say(f"making a log of {count_text(keys * BATCHES)} records")
    options = {"log__consistency": "eventual", "bucket": 2, "compaction__auto": "false"}
    table = bench.table("eventual", SCHEMA, key=["id"], log="json", **options)
    for number in range(BATCHES):
        kind = F.when((F.col("id") + number) % 10 == 0, "delete").otherwise("insert").alias("_change_type")
        table.write(with_values(bench.spark.range(keys), number).drop("at").select("*", kind))
    return table


def _seconds(bench: Bench, frame: DataFrame, progress: list[Any]) -> float:
    """Run a query to the end of the log; give the seconds that Spark counts for its micro-batches."""
    writer = frame.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", bench.path("checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(1200)
    progress += [p for p in query.recentProgress if p.numInputRows]
    return sum(p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows) / 1000


if __name__ == "__main__":
    main(run)
