"""Reads right after many small writes, compared with a plain Delta table that holds the same rows.

The tables have the default options, so changes are combined and compacted as they are in use. Every read makes its
frame anew. A lookup asks Spark for one row by its key, or ``open_local`` for the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.frames import SCHEMA, rows, sample
from benchmarks.harness import Bench, Result, at_most, count_text, limit, main, seconds_text, timed
from tablestore import LocalTable, open_local
from tablestore.table.store import TableStore

_MOST = 1.5


def run(bench: Bench) -> list[Result]:
    """Measure reads after 1, 10 and 100 writes, of keys all over the table and of the same keys again and again."""
    count, size = bench.size(5_000_000, 1_000_000), 20_000
    found = []
    for what, keys in (("keys all over the table", count), ("repeated keys", 2 * size)):
        bench.say(f"making a table of {count_text(count)} rows")
        table = bench.table("orders", SCHEMA, key=["id"], bucket=2)
        table.write(rows(bench.spark, count))
        table.compact()
        done = 0
        for writes in (1, 10, 100):
            while done < writes:
                bench.say(f"write {done + 1} of {writes}")
                table.write(sample(bench.spark, size, keys, seed=done + 1))
                done += 1
            found += _reads(bench, table, count, f"after {writes} writes of {size:,}, {what}")
    return found


def _reads(bench: Bench, table: TableStore, count: int, when: str) -> list[Result]:
    plain = bench.path("plain")
    table.read().write.format("delta").save(plain)
    local, chosen = open_local(table.path), random.Random(0)

    def delta() -> DataFrame:
        return bench.spark.read.format("delta").load(plain)

    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "sum of a column": lambda frame: frame.agg(F.sum("price")),
        "largest of each column": lambda frame: frame.agg(*map(F.max, frame.columns)),
        "one row by its key": lambda frame: frame.where(F.col("id") == chosen.randrange(count)),
    }
    found = []
    for what, query in queries.items():
        contestants = {
            "Delta": lambda query=query: timed(lambda: query(delta()).collect()),
            "ours": lambda query=query: timed(lambda: query(table.read()).collect()),
        }
        turns = bench.take_turns(f"{what} {when}", contestants, rounds=bench.size(7, 3))
        found.append(at_most(f"{what} {when}", turns["ours"], turns["Delta"], _MOST, "plain Delta read"))
    return [*found, _lookup(bench, local, count, when)]


def _lookup(bench: Bench, table: LocalTable, count: int, when: str) -> Result:
    contestants = {"open_local": lambda: timed(lambda: table.get(random.randrange(count)))}
    turns = bench.take_turns(f"lookup without Spark {when}", contestants, rounds=bench.size(50, 20))
    return limit(f"one row by its key, without Spark, {when}", turns["open_local"].median, None, seconds_text)


if __name__ == "__main__":
    main(run)
