"""Writes with merge engines compared with the same writes to a table that keeps the last row.

Each contestant has its own table with the same rows and writes the same batches of existing keys. Partial updates and
aggregations have to read the existing rows of these keys; ``deduplicate`` reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from benchmarks.frames import rows, sample
from benchmarks.harness import Bench, Result, at_least, count_text, main, timed
from tablestore.table.store import TableStore

SCHEMA = "id bigint, name string, price double, at timestamp"
ENGINES: Mapping[str, Mapping[str, str]] = {
    "deduplicate": {},
    "partial-update": {"merge_engine": "partial-update"},
    "sequence groups": {"merge_engine": "partial-update", "fields__at__sequence_group": "name,price"},
    "aggregation": {
        "merge_engine": "aggregation",
        "fields__name__aggregate_function": "last_value",
        "fields__price__aggregate_function": "sum",
        "fields__at__aggregate_function": "max",
    },
    "sequence.field": {"sequence__field": "at"},
}


def run(bench: Bench) -> list[Result]:
    """Measure writes to a part of a large table's keys, and a large first write."""
    count, part = bench.size(2_000_000, 200_000), bench.size(200_000, 40_000)
    return [*_writes(bench, count, part), *_first(bench, count)]


def _writes(bench: Bench, count: int, part: int) -> list[Result]:
    tables = {name: _filled(bench, name, count) for name in ENGINES}
    rounds = bench.size(5, 3)
    batches = [_in_files(bench, sample(bench.spark, part, count, seed=number)) for number in range(rounds + 1)]
    turns = dict.fromkeys(ENGINES, 0)

    def write(name: str) -> float:
        frame = batches[turns[name]]
        turns[name] += 1
        return timed(lambda: tables[name].write(frame))

    what = f"{count_text(part)} rows into {count_text(count)}"
    found = bench.take_turns(what, {name: lambda name=name: write(name) for name in ENGINES}, rounds=rounds, rows=part)
    return [
        at_least(f"{what}: {name}", found[name], found["deduplicate"], 0.5, "deduplicate")
        for name in ENGINES
        if name != "deduplicate"
    ]


def _first(bench: Bench, count: int) -> list[Result]:
    frame = _in_files(bench, rows(bench.spark, count))

    def write(name: str) -> float:
        table = _table(bench, name)
        return timed(lambda: table.write(frame))

    what = f"{count_text(count)} rows into an empty table"
    contestants = {name: lambda name=name: write(name) for name in ENGINES}
    found = bench.take_turns(what, contestants, rounds=bench.size(3, 2), rows=count)
    return [
        at_least(f"{what}: {name}", found[name], found["deduplicate"], 0.5, "deduplicate")
        for name in ENGINES
        if name != "deduplicate"
    ]


def _filled(bench: Bench, name: str, count: int) -> TableStore:
    bench.say(f"making a table of {count_text(count)} rows: {name}")
    table = _table(bench, name)
    table.write(rows(bench.spark, count))
    table.compact()
    return table


def _table(bench: Bench, name: str) -> TableStore:
    return bench.table("engines", SCHEMA, key=["id"], bucket=2, compaction__auto="false", **ENGINES[name])


def _in_files(bench: Bench, frame: DataFrame) -> DataFrame:
    path = bench.path("batch")
    frame.write.parquet(path)
    return bench.spark.read.parquet(path)


if __name__ == "__main__":
    main(run)
