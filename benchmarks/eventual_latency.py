"""Latency of an eventual log at 1,000 rows/s: until a plain consumer gets a row, and until a normalized stream does.

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

ROWS_PER_SECOND = 1_000
_SEND_SECONDS = 0.04
_KEYS = 50_000
_SEEN = "handed"
_NEWEST = pa.array([RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type])


class _Writer(threading.Thread):
    """Sends rows to the log at a constant rate."""

    def __init__(self, table: TableContext) -> None:
        super().__init__(daemon=True)
        self._factory, self._schema = KafkaLogSinkFactory(table.log.settings), table.log.settings.schema
        self._done = threading.Event()

    def run(self) -> None:
        start, sent, dice = time.time(), 0, np.random.default_rng(1)
        tap = self._factory.open()
        while not self._done.wait(_SEND_SECONDS):
            due = int((time.time() - start) * ROWS_PER_SECOND)
            ids = dice.integers(0, _KEYS, due - sent)
            handed = ((start + np.arange(sent, due) / ROWS_PER_SECOND) * 1e6).astype(np.int64)
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
    """Run a writer, a plain consumer and a normalized stream concurrently."""
    # Java's JIT compiler takes two minutes to compile Spark's planner; until then, micro-batches take 1.5 times as
    # long.
    warm_up, seconds = bench.size(150, 30), bench.size(60, 15)
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
    writer = _Writer(TableContext.open(table.path))
    listener.start()
    stream = table.read_stream(scan_mode="latest").writeStream.foreachBatch(seen)
    query = stream.option("checkpointLocation", bench.path("checkpoint")).start()
    writer.start()
    bench.say(f"{warm_up} s of warm-up, then {seconds} s of {ROWS_PER_SECOND:,} rows/s")
    watch([query], lambda: bool(ages))
    since = time.time() + warm_up
    until = since + seconds
    watch([query], lambda: time.time() > until)
    told = phases(query)
    query.stop()
    writer.stop()
    listener.stop()
    normalized, plain = ([age for at, age in found if since <= at <= until] for found in (ages, plain_ages))
    name = f"{ROWS_PER_SECOND:,} rows/s, row written until"
    return [
        limit(
            f"{name} seen normalized, p50 ({len(normalized):,} rows)", percentile(normalized, 50), 0.15, seconds_text
        ),
        limit(f"{name} seen normalized, p99", percentile(normalized, 99), 0.3, seconds_text),
        limit(f"{name} a plain consumer has it, p50", percentile(plain, 50), 0.05, seconds_text),
        limit(f"{name} a plain consumer has it, p99", percentile(plain, 99), None, seconds_text),
        Result("... Spark's micro-batches, median ms", ", ".join(f"{p} {ms:.0f}" for p, ms in told.items())),
    ]


if __name__ == "__main__":
    main(run)
