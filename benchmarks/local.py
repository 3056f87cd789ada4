"""Reads without Spark: a table with changes to merge compared with DuckDB reading the same rows from plain Parquet.

Both return an Arrow table in this process, with the same number of threads. Startup times of ``open_local`` and of the
command line are measured too, each in a new process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb

from benchmarks.frames import SCHEMA, rows, sample
from benchmarks.harness import CORES, Bench, Result, at_least, count_text, limit, main, reach, seconds_text, timed
from tablestore import open_local

PYPAIMON_ROWS = 150_000
"""Rows per second of pypaimon's merged read on a machine with two cores."""


def run(bench: Bench) -> list[Result]:
    """Measure reads and startup times."""
    spark, count = bench.spark, bench.size(5_000_000, 500_000)
    bench.say(f"making tables of {count_text(count)} rows")
    plain = bench.path("plain")
    changed = bench.table("orders", SCHEMA, key=["id"], bucket=2, compaction__auto="false")
    changed.write(rows(spark, count))
    changed.compact()
    changed.write(sample(spark, count // 10, count, seed=5))
    changed.read().write.parquet(plain)
    table = open_local(changed.path)
    parquet = f"SELECT * FROM read_parquet('{plain}/*.parquet')"
    with duckdb.connect(config={"threads": CORES}) as engine:
        one = "id = 4711"
        turns = bench.take_turns(
            "to Arrow",
            {
                "plain": lambda: timed(lambda: engine.sql(parquet).to_arrow_table()),
                "merged": lambda: timed(table.to_arrow),
                "plain, filter": lambda: timed(lambda: engine.sql(f"{parquet} WHERE {one}").to_arrow_table()),
                "merged, filter": lambda: timed(lambda: table.to_arrow(filter=one)),
            },
            rounds=bench.size(7, 5),
            rows=count,
        )
    what = f"{count_text(count)} rows, 10 % changed, to Arrow"
    rate = count / turns["merged"].median
    return [
        at_least(what, turns["merged"], turns["plain"], 0.5, "DuckDB, plain Parquet"),
        reach(f"{what}: five times pypaimon's merged read", rate, 5 * PYPAIMON_ROWS),
        limit(f"one row of {count_text(count)} by its key", turns["merged, filter"].median, None, seconds_text),
        *_starts(bench, changed.path),
    ]


def _starts(bench: Bench, path: str) -> list[Result]:
    command = [str(Path(sys.executable).with_name("tablestore"))]
    if not Path(command[0]).exists():
        command = [sys.executable, "-m", "tablestore"]
    count = f"import tablestore; tablestore.open_local({path!r}).count()"
    contestants = {
        "open_local and count": ([sys.executable, "-c", count], 1.0),
        "tablestore --help": ([*command, "--help"], 2.0),
        "tablestore tail --no-follow": ([*command, "tail", path, "--no-follow"], 2.0),
        'tablestore sql -e "SELECT 1"': ([*command, "sql", "-w", path + "-w", "-e", "SELECT 1"], 2.0),
    }

    def started(words: list[str]) -> float:
        return timed(lambda: subprocess.run(words, check=True, capture_output=True))

    turns = bench.take_turns(
        "start", {name: lambda words=words: started(words) for name, (words, _) in contestants.items()}, rounds=3
    )
    return [limit(name, turns[name].median, most, seconds_text) for name, (_, most) in contestants.items()]


if __name__ == "__main__":
    main(run)
