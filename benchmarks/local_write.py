"""Writes without Spark: single rows, many rows into table and log in one write and in 20, appends beside deltalake.

Two cores are used by the writer's threads and, where there is a log, by the broker too. The start is a new process that
imports the package, opens a table, writes a row and has it published.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.harness import Bench, Result, at_least, count_text, limit, main, percentile, reach, seconds_text, timed
from tablestore import LocalTable, create_local

SCHEMA = "id bigint, name string, price double, pieces int"


def run(bench: Bench) -> list[Result]:
    """Measure local writes."""
    count, writes = bench.size(2_000_000, 200_000), bench.size(200, 50)
    data = rows(count)
    return [
        *_one_row(bench, writes),
        *_many_rows(bench, data),
        *_many_writes(bench),
        *_appends(bench, data),
        _start(bench),
    ]


def rows(count: int) -> pa.Table:
    """Return rows with distinct keys and names."""
    ids = np.arange(count)
    names = pa.array(np.char.add("name-", ids.astype(str)))
    prices = np.random.default_rng(0).random(count)
    return pa.table({"id": ids, "name": names, "price": prices, "pieces": pa.array(ids % 100, pa.int32())})


def _table(bench: Bench, name: str, *, log: bool = False, key: bool = True) -> LocalTable:
    path = bench.path(name)
    options: dict[str, object] = {"bucket": 2}
    if log:
        topic = path.rpartition("/")[2]
        options |= {"kafka.bootstrap.servers": bench.kafka.bootstrap_servers, "kafka.topic": topic}
    keys = ["id"] if key else []
    return create_local(path, SCHEMA, primary_key=keys, log_system="kafka" if log else None, options=options)


def _one_row(bench: Bench, writes: int) -> list[Result]:
    found = []
    for what, log, most in (("with a log", True, 0.03), ("without a log", False, 0.01)):
        bench.say(f"one row at a time, {what}")
        table = _table(bench, "one", log=log)
        taken = [timed(lambda n=n, t=table: t.write(rows(1).set_column(0, "id", pa.array([n])))) for n in range(writes)]
        found.append(limit(f"one-row write {what}, p50", percentile(taken, 50), most, seconds_text))
        found.append(limit(f"one-row write {what}, p99", percentile(taken, 99), None, seconds_text))
        table.close()
    return found


def _many_rows(bench: Bench, data: pa.Table) -> list[Result]:
    def upsert() -> float:
        table = _table(bench, "many", log=True)
        taken = timed(lambda: table.write(data))
        table.close()
        return taken

    turns = bench.take_turns("upserts", {"write": upsert}, rounds=3, rows=data.num_rows)
    rate = data.num_rows / turns["write"].median
    return [reach(f"{count_text(data.num_rows)} distinct upserts into table and JSON log", rate, 500_000)]


def _many_writes(bench: Bench) -> list[Result]:
    """Measure writes of the same keys in another order each; each returns when it is committed and published."""
    keys, writes = bench.size(100_000, 10_000), 20
    data = rows(keys)
    batches = [data.take(np.random.default_rng(seed).permutation(keys)) for seed in range(writes)]

    def upserts() -> float:
        table = _table(bench, "writes", log=True)
        table.recover()
        taken = timed(lambda: [table.write(batch) for batch in batches])
        table.close()
        return taken

    turns = bench.take_turns("writes", {"write": upserts}, rounds=5, rows=keys * writes)
    rate = keys * writes / turns["write"].median
    what = f"{writes} writes of {count_text(keys)} distinct keys into table and JSON log"
    return [reach(what, rate, None if bench.small else 350_000)]


def _appends(bench: Bench, data: pa.Table) -> list[Result]:
    ours, theirs = _table(bench, "append", key=False), bench.path("deltalake")
    turns = bench.take_turns(
        "appends",
        {
            "deltalake": lambda: timed(lambda: write_deltalake(theirs, data, mode="append")),
            "write": lambda: timed(lambda: ours.write(data)),
        },
        rounds=5,
        rows=data.num_rows,
    )
    what = f"append of {count_text(data.num_rows)} rows, no log"
    return [at_least(what, turns["write"], turns["deltalake"], 0.8, "write_deltalake")]


def _start(bench: Bench) -> Result:
    table = _table(bench, "start", log=True)
    row = {"id": 1, "name": "one", "price": 1.0, "pieces": 1}
    text = f"import tablestore; tablestore.open_local({table.path!r}).write([{row!r}])"
    turns = bench.take_turns(
        "start",
        {"process": lambda: timed(lambda: subprocess.run([sys.executable, "-c", text], check=True))},
        rounds=3,
    )
    return limit("new process, one row committed and published", turns["process"].median, 1.0, seconds_text)


if __name__ == "__main__":
    main(run)
