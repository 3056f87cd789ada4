"""Normalize with many keys: state that no heap should have to hold. The session's heap is its default, 2 GB."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pyspark.sql import functions as F

from benchmarks.eventual import SCHEMA, drained, state
from benchmarks.frames import sample, with_values
from benchmarks.harness import CORES, Bench, Result, count_text, limit, main, reach

_WRITE_ROWS = 1_000_000
_HEAP_MAX = 4e9


def run(bench: Bench) -> list[Result]:
    """Read a log of many keys, then changes of some of them."""
    keys = bench.size(10_000_000, 200_000)
    few = keys // 50
    bench.spark.conf.set("spark.sql.shuffle.partitions", CORES)
    options = {"log__consistency": "eventual", "bucket": CORES, "compaction__auto": "false"}
    table = bench.table("eventual", SCHEMA, key=["id"], log="json", **options)
    for start in range(0, keys, _WRITE_ROWS):
        bench.say(f"writing rows {start:,} of {count_text(keys)}")
        table.write(with_values(bench.spark.range(start, min(start + _WRITE_ROWS, keys)), 0).drop("at"))
    checkpoint = bench.path("checkpoint")
    bench.say("reading them")
    # Of a snapshot's rows any number would come at once.
    seconds, last = drained(bench, table.read_stream(scan_mode="earliest", max_rows=_WRITE_ROWS), checkpoint)
    found = [
        reach(f"normalize {count_text(keys)} new keys", keys / seconds, None),
        *state(last, keys, table),
        limit("... heap, at most", _heap(bench), _HEAP_MAX, lambda size: f"{size / 1e9:.1f} GB"),
        limit("... resident memory of the JVM, peak", _peak(), None, lambda size: f"{size / 1e9:.1f} GB"),
    ]
    kind = F.when(F.col("id") % 10 == 0, "delete").otherwise("insert").alias("_change_type")
    table.write(sample(bench.spark, few, keys, seed=1).drop("at").select("*", kind))
    seconds, _ = drained(bench, table.read_stream(scan_mode="earliest", max_rows=_WRITE_ROWS), checkpoint)
    return [*found, reach(f"... then {count_text(few)} changes among them, one micro-batch", few / seconds, None)]


def _heap(bench: Bench) -> float:
    """Give the heap that Spark's JVM may have, in bytes."""
    size = bench.spark.sparkContext.getConf().get("spark.driver.memory", "1g")
    return float(size[:-1]) * {"m": 2**20, "g": 2**30}[size[-1].lower()]


def _peak() -> float:
    """Give the most bytes that Spark's JVM, a child of this process, has held: heap and RocksDB's together."""
    mine = f"PPid:\t{os.getpid()}\n"
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = status.read_text()
            if mine in text and b"SparkSubmit" in status.with_name("cmdline").read_bytes():
                return float(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    msg = "the JVM of Spark was not found among the children of this process"
    raise LookupError(msg)


if __name__ == "__main__":
    main(run)
