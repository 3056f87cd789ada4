"""Latency of an eventual log at 1,000 and 10,000 rows/s: until a plain consumer or a normalized stream gets a row.

A thread writes like a long staging task, with the same code: it encodes rows and sends them with an idempotent
producer. Every 40 ms it sends the rows that are due. Each row carries the time at which it was due, so the wait for the
next send counts. Nothing is committed, and no reader waits for a commit.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from benchmarks.eventual_log import eventual_table
from benchmarks.harness import CORES, Bench, Result, limit, main, percentile, seconds_text
from benchmarks.latency import Listener, phases, watch
from log_system.kafka.publisher.eager_producer import KafkaLogSinkFactory
from snapshot.merge.bucket_hash import bucket_of
from snapshot.row_kind import CHANGE_TYPE, KIND, RowKind
from tablestore.context import TableContext

_SECONDS_MAX = {1_000: (0.15, 0.3, 0.05), 10_000: (0.25, None, None)}
"""Rows per second, and the targets: p50 and p99 until a row is seen normalized, p50 until a plain consumer has it."""
_SEND_SECONDS = 0.04
_KEYS = 50_000
_SEEN = "handed"
_NEWEST = pa.array([RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type])


class _Writer(threading.Thread):
    """Sends rows to the log at a constant rate."""

    def __init__(self, table: TableContext, rate: int) -> None:
        super().__init__(daemon=True)
        self._rate = rate
        self._factory, self._schema = KafkaLogSinkFactory(table.log.settings), table.log.settings.schema
        self._done = threading.Event()

    def run(self) -> None:
        start, sent, dice = time.time(), 0, np.random.default_rng(1)
        tap = self._factory.open()
        while not self._done.wait(_SEND_SECONDS):
            due = int((time.time() - start) * self._rate)
            ids = dice.integers(0, _KEYS, due - sent)
            handed = ((start + np.arange(sent, due) / self._rate) * 1e6).astype(np.int64)
            kinds = pa.array(np.full(len(ids), int(RowKind.UPDATE_AFTER)), self._schema.field(KIND).type)
            rows = pa.RecordBatch.from_arrays([pa.array(ids), pa.array(handed), kinds], schema=self._schema)
            buckets = bucket_of(rows, ["id"], CORES)
            for bucket in range(CORES):
                tap.send(bucket, rows.filter(pa.array(buckets == bucket)))
            sent = due
        tap.close()

    def stop(self) -> None:
        self._done.set()
        self.join(30)


def run(bench: Bench) -> list[Result]:
    """Measure each rate of rows."""
    # Java's JIT compiler takes two minutes to compile Spark's planner; until then, micro-batches take 1.5 times as
    # long.
    slow, fast = _SECONDS_MAX
    return [*_at_rate(bench, slow, bench.size(150, 30)), *_at_rate(bench, fast, bench.size(30, 10))]


def _at_rate(bench: Bench, rate: int, warm_up: int) -> list[Result]:
    """Run a writer, a plain consumer and a normalized stream concurrently."""
    seconds = bench.size(60, 15)
    table = eventual_table(bench, f"id bigint, {_SEEN} bigint")
    ages: list[tuple[float, float]] = []

    def seen(batch: DataFrame, _: int) -> None:
        changes = batch.toArrow()
        now = time.time()
        handed = changes.filter(pc.is_in(changes[CHANGE_TYPE], _NEWEST))[_SEEN].to_numpy()
        ages.extend((now, age) for age in now - handed / 1e6)

    plain_ages: list[tuple[float, float]] = []

    def heard(message: Any) -> None:
        now = time.time()
        plain_ages.append((now, now - json.loads(message.value())[_SEEN] / 1e6))

    listener = Listener(bench.kafka.bootstrap_servers, table.options.log.kafka.topic, heard)
    writer = _Writer(TableContext.open(table.path), rate)
    listener.start()
    stream = table.read_stream(scan_mode="latest").writeStream.foreachBatch(seen)
    query = stream.option("checkpointLocation", bench.path("checkpoint")).start()
    writer.start()
    bench.say(f"{warm_up} s of warm-up, then {seconds} s of {rate:,} rows/s")
    watch([query], lambda: bool(ages))
    since = time.time() + warm_up
    until = since + seconds
    watch([query], lambda: time.time() > until)
    told = phases(query)
    query.stop()
    writer.stop()
    listener.stop()
    normalized, plain = ([age for at, age in found if since <= at <= until] for found in (ages, plain_ages))
    name = f"{rate:,} rows/s, row written until"
    p50, p99, plain_p50 = _SECONDS_MAX[rate]
    seen_by = f"{name} seen normalized"
    return [
        limit(f"{seen_by}, p50 ({len(normalized):,} rows)", percentile(normalized, 50), p50, seconds_text),
        limit(f"{seen_by}, p99", percentile(normalized, 99), p99, seconds_text),
        limit(f"{name} a plain consumer has it, p50", percentile(plain, 50), plain_p50, seconds_text),
        limit(f"{name} a plain consumer has it, p99", percentile(plain, 99), None, seconds_text),
        Result("... Spark's micro-batches, median ms", ", ".join(f"{p} {ms:.0f}" for p, ms in told.items())),
    ]


if __name__ == "__main__":
    main(run)
