"""Normalization: streaming reads of an eventual log with and without the operator, and the size of its state.

The time is what Spark reports for the micro-batches (``triggerExecution``) of a query into its ``noop`` sink.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.harness import Bench, Result, at_least, count_text, limit, main, reach

_BATCHES = 20
"""Number of batches in the log; each contains every key, a tenth of them as deletes."""
_MICRO_BATCHES = {100: 2, 10: 3, 1: 8}
"""Number of micro-batches, with the rounds of each. The largest number runs first, because Java's JIT compiler takes
two minutes to compile the code that all of them run."""


def run(bench: Bench) -> list[Result]:
    """Read a log of repeated keys and some deletes in different numbers of micro-batches."""
    keys = bench.size(100_000, 20_000)
    table, ids = eventual_table(bench), np.arange(keys)
    count = keys * _BATCHES
    bench.say(f"making a log of {count_text(count)} records")
    row = send(table, (changes(ids, (ids + number) % 10 == 0, number) for number in range(_BATCHES)))
    found: list[Result] = []

    def read(normalize: bool, micro_batches: int) -> float:
        stream = table.read_stream(scan_mode="earliest", normalize=normalize, max_rows=count // micro_batches)
        return drained(bench, stream)[0]

    for n, rounds in _MICRO_BATCHES.items():
        turns = bench.take_turns(
            f"normalize in {n} micro-batches",
            {"with": lambda n=n: read(True, n), "without": lambda n=n: read(False, n)},  # type: ignore[misc]
            rounds=rounds,
            rows=count,
        )
        what = f"normalize {count_text(count)} records of {count_text(keys)} keys, JSON, {n} micro-batches"
        found += [
            reach(what, count / turns["with"].median, 400_000),
            at_least("... beside the same read without it", turns["with"], turns["without"], 0.9, "normalize=False"),
        ]
    return found + _state(bench, keys, row)


def _state(bench: Bench, keys: int, row: float) -> list[Result]:
    """Measure the size of the state on disk: after inserting keys, updating all of them, and deleting all of them."""
    table, ids = eventual_table(bench), np.arange(keys)
    checkpoint, states = bench.path("checkpoint"), bench.path("states")
    found: list[Result] = []
    for number, what in enumerate(("keys inserted", "then all updated", "then all deleted")):
        send(table, [changes(ids, np.full(keys, number == 2), number)])
        drained(bench, table.read_stream(scan_mode="earliest", state=states), checkpoint)
        name = f"... state on disk, each key, {count_text(keys)} {what} (a row in JSON: {row:.0f} bytes)"
        found.append(limit(name, state_bytes(states) / keys, 1.5 * row, lambda size: f"{size:,.0f} bytes"))
    return found


def state_bytes(states: str) -> int:
    """Return the size of the newest versions of the only query's state in a folder."""
    (query,) = Path(states).iterdir()
    newest = (max(partition.glob("*.json"), key=lambda file: int(file.stem)) for partition in query.iterdir())
    return sum(segment["bytes"] for file in newest for segment in json.loads(file.read_text())["segments"])


def drained(bench: Bench, frame: DataFrame, checkpoint: str | None = None) -> tuple[float, Any]:
    """Run a query to the log's end; return the seconds of its micro-batches, and the progress of the last one."""
    writer = frame.writeStream.format("noop")
    writer = writer.option("checkpointLocation", checkpoint or bench.path("checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(1200)
    told = [p for p in query.recentProgress if p.numInputRows]
    return sum(p.durationMs["triggerExecution"] for p in told) / 1000, told[-1]


if __name__ == "__main__":
    main(run)
