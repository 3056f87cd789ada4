"""Normalize: the streaming read of an eventual log, with the operator and without it; what its state weighs."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.frames import with_values
from benchmarks.harness import CORES, Bench, Result, at_least, count_text, limit, main, reach
from tablestore.store import TableStore

SCHEMA = "id bigint, name string, price double"
BATCHES = 20


def run(bench: Bench) -> list[Result]:
    """Read a log of repeated keys and some deletes into Spark's ``noop`` sink, in few micro-batches and in many."""
    keys = bench.size(100_000, 20_000)
    bench.spark.conf.set("spark.sql.shuffle.partitions", CORES)
    table = log_of(bench, keys)
    count = keys * BATCHES
    found: list[Result] = []
    progress: list[Any] = []

    def read(normalize: bool, batches: int) -> float:
        stream = table.read_stream(scan_mode="earliest", normalize=normalize, max_rows=count // batches)
        seconds, last = drained(bench, stream)
        progress.append(last)
        return seconds

    for batches in (2, 10):
        turns = bench.take_turns(
            f"normalize in {batches} micro-batches",
            {"with": lambda n=batches: read(True, n), "without": lambda n=batches: read(False, n)},  # type: ignore[misc]
            rounds=bench.size(3, 2),
            rows=count,
        )
        repeats = BATCHES // batches
        what = (
            f"normalize {count_text(count)} records of {count_text(keys)} keys, JSON, each key {repeats} times a batch"
        )
        found += [
            reach(what, count / turns["with"].median, 400_000),
            at_least("... beside the same read without it", turns["with"], turns["without"], 0.9, "normalize=False"),
        ]
    last = next(p for p in reversed(progress) if p.stateOperators)
    return [*found, *state(last, keys, table)]


def log_of(bench: Bench, keys: int) -> TableStore:
    """Make a log in which each write has every key, a tenth of them as deletes."""
    bench.say(f"making a log of {count_text(keys * BATCHES)} records")
    options = {"log__consistency": "eventual", "bucket": CORES, "compaction__auto": "false"}
    table = bench.table("eventual", SCHEMA, key=["id"], log="json", **options)
    for number in range(BATCHES):
        kind = F.when((F.col("id") + number) % 10 == 0, "delete").otherwise("insert").alias("_change_type")
        table.write(with_values(bench.spark.range(keys), number).drop("at").select("*", kind))
    return table


def drained(bench: Bench, frame: DataFrame, checkpoint: str | None = None) -> tuple[float, Any]:
    """Run a query to the log's end; give the seconds of its micro-batches, and the last one's progress."""
    writer = frame.writeStream.format("noop").outputMode("update")
    query = (
        writer.option("checkpointLocation", checkpoint or bench.path("checkpoint")).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(1200)
    told = [p for p in query.recentProgress if p.numInputRows]
    return sum(p.durationMs["triggerExecution"] for p in told) / 1000, told[-1]


def state(progress: Any, keys: int, table: TableStore) -> list[Result]:
    """Say what the operator's state weighs, on disk, next to a row as the log has it."""
    operator = progress.stateOperators[0]
    size = dict(operator.customMetrics).get("rocksdbSstFileSize", 0) / max(operator.numRowsTotal, 1)
    rows = table.read().limit(1000).toArrow().to_pylist()
    row = sum(len(json.dumps(each, separators=(",", ":"))) for each in rows) / len(rows)
    return [
        limit("... state, rows", operator.numRowsTotal, keys, lambda rows: f"{rows:,.0f}"),
        limit("... state on disk, each key", size, 2 * row, lambda size: f"{size:,.0f} bytes"),
        Result("... state in memory", f"{operator.memoryUsedBytes / 1e6:,.0f} MB"),
    ]


if __name__ == "__main__":
    main(run)
