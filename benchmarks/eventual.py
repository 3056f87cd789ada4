"""Normalize: the streaming read of an eventual log, with the operator, without it, and with Python's own state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.frames import with_values
from benchmarks.harness import Bench, Result, at_least, count_text, limit, main, reach
from tablestore.store import TableStore

SCHEMA = "id bigint, name string, price double"
BATCHES = 20


def run(bench: Bench) -> list[Result]:
    """Read a log of repeated keys and some deletes into Spark's ``noop`` sink, ten micro-batches."""
    keys = bench.size(100_000, 20_000)
    table = _table(bench, keys)
    count = keys * BATCHES
    few = _table(bench, keys_few := bench.size(2_000, 500))
    progress: list[Any] = []

    def read(normalize: bool) -> float:
        return _seconds(
            bench, table.read_stream(scan_mode="earliest", normalize=normalize, max_rows=count // 10), progress
        )

    turns = bench.take_turns(
        "normalize",
        {"with": lambda: read(normalize=True), "without": lambda: read(normalize=False)},
        rounds=bench.size(5, 3),
        rows=count,
    )
    python = bench.take_turns(
        "transformWithStateInPandas",
        {"pandas": lambda: _seconds(bench, _by_pandas(few), [])},
        rounds=1,
        rows=keys_few * BATCHES,
    )
    state = next(p.stateOperators[0] for p in reversed(progress) if p.stateOperators)
    stored = dict(state.customMetrics).get("rocksdbTotalBytesWritten", 0) / BATCHES / max(state.numRowsTotal, 1)
    what = f"normalize {count_text(count)} records of {count_text(keys)} keys, JSON"
    return [
        reach(what, count / turns["with"].median, 400_000),
        at_least("... beside the same read without it", turns["with"], turns["without"], 0.9, "normalize=False"),
        at_least("... beside Python state", turns["with"], python["pandas"], 100, "transformWithStateInPandas"),
        limit("... state, rows", state.numRowsTotal, keys, lambda rows: f"{rows:,.0f}"),
        limit("... state, bytes written to it for each record", stored, None, lambda size: f"{size:,.0f} bytes"),
    ]


def _table(bench: Bench, keys: int) -> TableStore:
    """Make a log in which each write has every key, a tenth of them as deletes."""
    bench.say(f"making a log of {count_text(keys * BATCHES)} records")
    options = {"log__consistency": "eventual", "bucket": 2, "compaction__auto": "false"}
    table = bench.table("eventual", SCHEMA, key=["id"], log="json", **options)
    for number in range(BATCHES):
        kind = F.when((F.col("id") + number) % 10 == 0, "delete").otherwise("insert").alias("_change_type")
        table.write(with_values(bench.spark.range(keys), number).drop("at").select("*", kind))
    return table


def _seconds(bench: Bench, frame: DataFrame, progress: list[Any]) -> float:
    """Run a query to the end of the log; give the seconds that Spark counts for its micro-batches."""
    writer = frame.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", bench.path("checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(1200)
    progress += [p for p in query.recentProgress if p.numInputRows]
    return sum(p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows) / 1000


class _Normalizer(StatefulProcessor):
    """The same operator, one key at a time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._row = handle.getValueState("row", "name string, price double")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - the same
    ) -> Iterator[pd.DataFrame]:
        found: list[dict[str, Any]] = []
        for row in pd.concat(list(rows)).to_dict("records"):
            old = self._row.get() if self._row.exists() else None
            if row["_change_type"] == "delete":
                found += [{"id": key[0], "name": old[0], "price": old[1], "_change_type": "delete"}] if old else []
                self._row.clear()
                continue
            if old != (row["name"], row["price"]):
                if old:
                    found.append({"id": key[0], "name": old[0], "price": old[1], "_change_type": "update_preimage"})
                found.append(row | {"_change_type": "update_postimage" if old else "insert"})
                self._row.update((row["name"], row["price"]))
        yield pd.DataFrame(found, columns=["id", "name", "price", "_change_type"])

    def close(self) -> None:
        """Hold nothing."""


def _by_pandas(table: TableStore) -> DataFrame:
    records = table.read_stream(scan_mode="earliest", normalize=False)
    grouped = records.select("id", "name", "price", "_change_type").groupBy("id")
    return grouped.transformWithStateInPandas(_Normalizer(), f"{SCHEMA}, _change_type string", "Update", "None")


if __name__ == "__main__":
    main(run)
