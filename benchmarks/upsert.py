"""Upserts and compaction compared with Delta's ``MERGE`` of the same rows into the same table.

The baseline is an ordinary Delta table written by Spark. Both sides read their batch from the same Parquet files.
"""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from benchmarks.frames import SCHEMA, repeated, rows, sample
from benchmarks.harness import Bench, Result, at_least, count_text, main, reach, timed


def run(bench: Bench) -> list[Result]:
    """Measure upserts into a large table, its compaction, and many upserts of few keys."""
    return [*_large_table(bench), *_few_keys(bench)]


def _large_table(bench: Bench) -> list[Result]:
    spark, count = bench.spark, bench.size(5_000_000, 1_000_000)
    upserts, changes = bench.size(50_000, 10_000), count // 10
    bench.say(f"making two tables of {count_text(count)} rows")
    ours = bench.table("ours", SCHEMA, key=["id"], bucket=2, compaction__auto="false")
    ours.write(rows(spark, count))
    ours.compact()
    plain = bench.path("plain")
    rows(spark, count).write.format("delta").save(plain)
    batch = iter(range(1, 1000))

    def next_batch(size: int) -> DataFrame:
        return _in_files(bench, sample(spark, size, count, seed=next(batch)))

    def upsert() -> float:
        frame = next_batch(upserts)
        return timed(lambda: ours.write(frame))

    def merge(size: int) -> float:
        frame = next_batch(size)
        return timed(lambda: merge_into(spark, plain, frame))

    what = f"{count_text(upserts)} upserts into {count_text(count)} rows"
    turns = bench.take_turns(what, {"ours": upsert, "MERGE": lambda: merge(upserts)}, rounds=bench.size(5, 3))
    found = [at_least(what, turns["ours"], turns["MERGE"], 20, "MERGE")]

    def compact() -> float:
        ours.compact()
        ours.write(next_batch(changes))
        return timed(ours.compact)

    what = f"compaction of {count_text(count)} rows, 10 % changed"
    turns = bench.take_turns(what, {"ours": compact, "MERGE": lambda: merge(changes)}, rounds=bench.size(3, 2))
    return [*found, at_least(what, turns["ours"], turns["MERGE"], 5, "MERGE of the changes")]


def _few_keys(bench: Bench) -> list[Result]:
    """Measure "2 M upserts of 100,000 keys" as one write, which keeps the last change per key, and as 20 writes."""
    spark, keys = bench.spark, bench.size(100_000, 50_000)
    count, target = keys * 20, None if bench.small else 350_000
    one = _in_files(bench, repeated(spark, count, keys, seed=1))
    many = [_in_files(bench, sample(spark, keys, keys, seed=i)) for i in range(20)]
    distinct = _in_files(bench, rows(spark, count))

    def one_write() -> float:
        table = _logged(bench)
        return timed(lambda: table.write(one))

    def all_distinct() -> float:
        table = _logged(bench)
        return timed(lambda: table.write(distinct))

    def many_writes() -> float:
        table = _logged(bench)
        table.recover()
        start = time.perf_counter()
        for frame in many:
            table.write(frame)
        return time.perf_counter() - start

    name = f"{count_text(count)} upserts, table + JSON log"
    contestants = {"one write": one_write, "20 writes": many_writes, "distinct keys": all_distinct}
    turns = bench.take_turns(name, contestants, rounds=bench.size(3, 2), rows=count)
    rate = {name: count / taken.median for name, taken in turns.items()}
    return [
        reach(f"{name}: {count_text(keys)} keys in one write (logs the last of each key)", rate["one write"], target),
        reach(f"{name}: 20 writes of {count_text(keys)} distinct keys (logs every row)", rate["20 writes"], target),
        reach(f"{name}: as many keys as rows, one write (logs every row)", rate["distinct keys"], None),
    ]


def merge_into(spark: SparkSession, path: str, changes: DataFrame) -> None:
    """Upsert rows with Delta's ``MERGE`` statement."""
    changes.createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{path}` AS t USING changes AS c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _logged(bench: Bench):  # noqa: ANN202 - a table
    table = bench.table("upserts", SCHEMA, key=["id"], log="json", bucket=2)
    table.recover()
    return table


def _in_files(bench: Bench, frame: DataFrame) -> DataFrame:
    path = bench.path("batch")
    frame.write.parquet(path)
    return bench.spark.read.parquet(path)


if __name__ == "__main__":
    main(run)
