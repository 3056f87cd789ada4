"""Batch reads compared with a plain Delta read of the same rows: an aggregate of one column.

Each round creates a new frame, since this includes finding which changes are current. One contestant reads the same
frame again instead.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.frames import SCHEMA, rows, sample
from benchmarks.harness import Bench, Result, Timed, at_most, count_text, main, timed
from tablestore.table.store import TableStore


def run(bench: Bench) -> list[Result]:
    """Measure reads right after a compaction, and after changing a tenth of the rows since."""
    spark, count = bench.spark, bench.size(5_000_000, 1_000_000)
    bench.say(f"making tables of {count_text(count)} rows")
    plain = bench.path("plain")
    rows(spark, count).write.format("delta").save(plain)
    clean, changed = _compacted(bench, count), _compacted(bench, count)
    changed.write(sample(spark, count // 10, count, seed=5))
    made = changed.read()
    contestants: dict[str, Callable[[], DataFrame]] = {
        "Delta": lambda: spark.read.format("delta").load(plain),
        "compacted": clean.read,
        "changed, columns=": lambda: changed.read(columns=["price"]),
        "changed": changed.read,
        "changed, again": lambda: made,
    }
    turns = bench.take_turns(
        "sum of a column",
        {name: lambda read=read: _sum(read) for name, read in contestants.items()},
        rounds=bench.size(15, 5),
    )
    what = f"sum of one column of {count_text(count)} rows"

    def line(name: str, ours: Timed, most: float) -> Result:
        return at_most(f"{what}, {name}", ours, turns["Delta"], most, "plain Delta read")

    return [
        line("compacted", turns["compacted"], 1.1),
        line("10 % changed since, read(columns=[...])", turns["changed, columns="], 1.5),
        line("10 % changed since, read()", turns["changed"], 1.5),
        line("10 % changed since, a frame that was read before", turns["changed, again"], 1.5),
    ]


def _compacted(bench: Bench, count: int) -> TableStore:
    table = bench.table("orders", SCHEMA, key=["id"], bucket=2, compaction__auto="false")
    table.write(rows(bench.spark, count))
    table.compact()
    return table


def _sum(read: Callable[[], DataFrame]) -> float:
    return timed(lambda: read().agg(F.sum("price")).collect())


if __name__ == "__main__":
    main(run)
