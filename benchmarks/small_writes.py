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
_TEXT = "order-%010d"


def run(bench: Bench) -> list[Result]:
    """Measure reads after 1, 10 and 100 writes: keys all over the table, the same keys repeatedly, and text keys."""
    count, size = bench.size(5_000_000, 1_000_000), 20_000
    found = []
    for what, keys, is_text in (
        ("keys all over the table", count, False),
        ("repeated keys", 2 * size, False),
        ("text keys", count, True),
    ):
        bench.say(f"making a table of {count_text(count)} rows")
        table = bench.table("orders", SCHEMA.replace("bigint", "string") if is_text else SCHEMA, key=["id"], bucket=2)
        table.write(_keyed(rows(bench.spark, count), is_text))
        table.compact()
        done = 0
        for writes in (1, 10, 100):
            while done < writes:
                bench.say(f"write {done + 1} of {writes}")
                table.write(_keyed(sample(bench.spark, size, keys, seed=done + 1), is_text))
                done += 1
            when = f"after {writes} writes of {size:,}, {what}"
            found += _reads(bench, table, _chosen_keys(count, is_text), when)
    return found


def _keyed(rows: DataFrame, is_text: bool) -> DataFrame:
    return rows.withColumn("id", F.format_string(_TEXT, "id")) if is_text else rows


def _chosen_keys(count: int, is_text: bool) -> Callable[[], object]:
    """Return a function that returns the key of some row."""
    dice = random.Random(0)
    return lambda: _TEXT % dice.randrange(count) if is_text else dice.randrange(count)


def _reads(bench: Bench, table: TableStore, any_key: Callable[[], object], when: str) -> list[Result]:
    plain = bench.path("plain")
    table.read().write.format("delta").save(plain)
    local = open_local(table.path)

    def delta() -> DataFrame:
        return bench.spark.read.format("delta").load(plain)

    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "sum of a column": lambda frame: frame.agg(F.sum("price")),
        "largest of each column": lambda frame: frame.agg(*map(F.max, frame.columns)),
        "one row by its key": lambda frame: frame.where(F.col("id") == any_key()),
    }
    found = []
    for what, query in queries.items():
        contestants = {
            "Delta": lambda query=query: timed(lambda: query(delta()).collect()),
            "ours": lambda query=query: timed(lambda: query(table.read()).collect()),
        }
        turns = bench.take_turns(f"{what} {when}", contestants, rounds=bench.size(7, 3))
        found.append(at_most(f"{what} {when}", turns["ours"], turns["Delta"], _MOST, "plain Delta read"))
    return [*found, _lookup(bench, local, any_key, when)]


def _lookup(bench: Bench, table: LocalTable, any_key: Callable[[], object], when: str) -> Result:
    contestants = {"open_local": lambda: timed(lambda: table.get(any_key()))}
    turns = bench.take_turns(f"lookup without Spark {when}", contestants, rounds=bench.size(50, 20))
    return limit(f"one row by its key, without Spark, {when}", turns["open_local"].median, None, seconds_text)


if __name__ == "__main__":
    main(run)
