"""Ingest: a Kafka topic of upserts into a table with a key and its log, in one micro-batch and in many.

The time is what Spark reports for the micro-batches (``triggerExecution``): reading the topic, writing and committing
the snapshot, and publishing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pyspark.sql.streaming import StreamingQuery

from benchmarks.eventual_log import changes, eventual_table, send
from benchmarks.harness import CORES, Bench, Result, count_text, main, reach
from tablestore.table.store import TableStore

_MICRO_BATCHES = {10: 3, 1: 3}
"""Number of micro-batches, with the rounds of each."""


def run(bench: Bench) -> list[Result]:
    """Ingest a topic with 20 records of each key, a tenth of them deletes."""
    keys, repeats = bench.size(100_000, 20_000), 20
    count = keys * repeats
    bench.say(f"making a topic of {count_text(count)} records")
    source, ids = eventual_table(bench), np.arange(keys)
    send(source, (changes(ids, (ids + number) % 10 == 0, number) for number in range(repeats)))
    found = []
    for number, rounds in _MICRO_BATCHES.items():
        turns = bench.take_turns(
            f"ingest in {number} micro-batches",
            {"ours": lambda n=number: _ingest(bench, source.options.log.kafka.topic, count // n)},  # type: ignore[misc]
            rounds=rounds,
            rows=count,
        )
        what = f"ingest {count_text(count)} upserts, JSON topic to table and JSON log, {number} snapshots"
        found.append(reach(what, count / turns["ours"].median, 350_000))
    return found


def ingesting(bench: Bench, topic: str, rows: int) -> tuple[TableStore, Callable[[], StreamingQuery]]:
    """Return a new table, and a function that ingests a topic in micro-batches of ``rows`` and returns the query."""
    options = {
        "properties.bootstrap.servers": bench.kafka.bootstrap_servers, "topic": topic, "primary-key": "id",
        "key.format": "json", "value.format": "json", "maxRowsPerTrigger": str(rows),
    }  # fmt: skip
    columns = "id BIGINT, name STRING, price DOUBLE"
    target = bench.table("ingest", columns, key=["id"], log="json", bucket=CORES)

    def whole() -> StreamingQuery:
        source = bench.spark.readStream.format("upsert-kafka").schema(f"{columns}, _change_type STRING")
        frame = source.options(**options).load()
        query = target.write_stream(frame, checkpoint=bench.path("checkpoint"), trigger={"availableNow": True})
        assert query.awaitTermination(1200)
        assert query.exception() is None
        return query

    return target, whole


def _ingest(bench: Bench, topic: str, rows: int) -> float:
    """Return the seconds of the micro-batches that have rows."""
    _, whole = ingesting(bench, topic, rows)
    told = [each for each in whole().recentProgress if each.numInputRows]
    bench.say(", ".join(f"{name} {ms / len(told):.0f} ms" for name, ms in _phases(told).items()))
    return _phases(told)["triggerExecution"] / 1000


def _phases(progress: Sequence[Any]) -> dict[str, int]:
    names = ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets", "triggerExecution")
    return {name: sum(each.durationMs.get(name, 0) for each in progress) for name in names}


if __name__ == "__main__":
    main(run)
