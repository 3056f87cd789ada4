"""Point lookups without Spark: ``LocalTable.get`` in a table whose rows are in no order, and where a tenth has changed.

A lookup is one call on an open handle, with a key chosen at random; the first call opens the engine and does not count.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.harness import Bench, Result, count_text, limit, main, percentile, seconds_text, timed
from benchmarks.local_write import SCHEMA, rows
from tablestore import LocalTable, create_local


def run(bench: Bench) -> list[Result]:
    """Measure lookups of keys that exist, before and after a tenth of the rows has changed, and of keys that do not."""
    count, calls = bench.size(5_000_000, 500_000), bench.size(300, 100)
    bench.say(f"making a table of {count_text(count)} rows")
    options: dict[str, object] = {"bucket": 2, "compaction.auto": "false"}
    table = create_local(bench.path("lookup"), SCHEMA, primary_key=["id"], options=options)
    order = np.random.default_rng(0).permutation(count)
    data = rows(count)
    table.write(data.take(pa.array(order)))
    table.compact()
    what = f"one row of {count_text(count)} by its key"
    found = _percentiles(what, _taken(bench, table, range(count), calls))
    found += _percentiles("a key that is not there", _taken(bench, table, range(count, 2 * count), calls))
    table.write(data.take(pa.array(order[: count // 10])))
    return [*found, *_percentiles(f"{what}, 10 % changed since", _taken(bench, table, range(count), calls))]


def _taken(bench: Bench, table: LocalTable, keys: range, calls: int) -> list[float]:
    bench.say(f"{calls} lookups")
    table.get(0)
    return [timed(partial(table.get, key)) for key in random.Random(0).choices(keys, k=calls)]


def _percentiles(what: str, taken: list[float]) -> list[Result]:
    return [
        limit(f"{what}, p50", percentile(taken, 50), 0.02, seconds_text),
        limit(f"{what}, p99", percentile(taken, 99), None, seconds_text),
    ]


if __name__ == "__main__":
    main(run)
