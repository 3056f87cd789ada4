"""The cost of small writes: a one-row write end to end, and commits after a thousand others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks.frames import SCHEMA, rows
from benchmarks.harness import Bench, Result, Timed, at_most, limit, main, percentile, seconds_text, timed
from snapshot.row_kind import KIND, RowKind
from snapshot.schema.system_columns import SEQ
from snapshot.staging.stage import StagedFile, change_file_schema
from tablestore.context import TableContext
from tablestore.maintenance.compact import BucketTask, compact_if_due
from tablestore.table.store import TableStore
from tablestore.write.writer import Writer

_WINDOW = 100
"""How many commits are averaged as "the first" and "the last"; each window includes commits that write a checkpoint."""


def run(bench: Bench) -> list[Result]:
    """Measure one-row writes and how the cost of a commit grows with the number of snapshots."""
    return [*_one_row(bench), *_growth(bench)]


def _one_row(bench: Bench) -> list[Result]:
    """Write a row and read it as another process would, with a new handle."""
    spark, count = bench.spark, bench.size(40, 15)
    orders = bench.table("orders", SCHEMA, key=["id"], log="json", bucket=2)
    orders.write(rows(spark, 100_000))
    plain = bench.path("plain")
    rows(spark, 100_000).write.format("delta").save(plain)
    numbers = iter(range(1, 10_000))
    split: dict[str, list[float]] = {"visible": [], "read": []}

    def ours() -> float:
        frame = rows(spark, 1, seed=next(numbers))
        start = time.perf_counter()
        made = orders.write(frame)
        assert made is not None
        assert TableContext.open(orders.path).newest_visible() == made.id
        visible = time.perf_counter()
        found = TableStore.open(spark, orders.path).read(columns=["id", "price"]).where(F.col("id") == 0).collect()
        assert len(found) == 1
        split["visible"].append(visible - start)
        split["read"].append(time.perf_counter() - visible)
        return visible - start

    def append() -> float:
        frame = rows(spark, 1, seed=next(numbers))
        return timed(lambda: frame.write.format("delta").mode("append").save(plain))

    what = "one-row write until a reader sees it"
    turns = bench.take_turns(what, {"ours": ours, "Delta append": append}, rounds=count)
    taken = turns["ours"]
    name = f"{what} (table, log and index), p50"
    return [
        Result(
            name, str(taken), f"Delta append by Spark, no log: {turns['Delta append']}",
            f"{taken.median / turns['Delta append'].median:.2f}x the time", "<= 300 ms", taken.median <= 0.3,
        ),
        limit(f"{what}, p90", percentile(taken.seconds, 90), None, seconds_text),
        limit("... then a batch read of that row by key, p50", statistics.median(split["read"]), None, seconds_text),
    ]  # fmt: skip


def _growth(bench: Bench) -> list[Result]:
    """Commit one-row files that were staged in advance, with the compaction of ``TableStore.write`` and without."""
    count = bench.size(1000, 400)
    found: list[Result] = []
    for log in ("json", None):
        for compacting in (True, False):
            taken, looking = _commits(bench, count, log, compacting=compacting)
            first, last = _mean(taken[1 : _WINDOW + 1]), _mean(taken[-_WINDOW:])
            what = f"commit {'and publish ' if log else ''}after {count:,} snapshots"
            what += ", compaction by default" if compacting else ", never compacted"
            found.append(at_most(what, last, first, 1.5, f"the first {_WINDOW}"))
            if compacting:
                each = sum(looking) / count
                found.append(
                    limit("... looking whether to compact, and compacting, a commit", each, None, seconds_text)
                )
    return found


def _mean(taken: Sequence[float]) -> Timed:
    return Timed((statistics.mean(taken),))


def _commits(bench: Bench, count: int, log: str | None, *, compacting: bool) -> tuple[list[float], list[float]]:
    """Return the seconds of each commit, and of each check for compaction after it."""
    opened = TableContext.open(bench.table("commits", SCHEMA, key=["id"], log=log, bucket=2).path)
    writer = Writer(opened, opened.log.publisher())
    writer.recover_once()
    staged = staged_rows(writer, count + 1)
    taken: list[float] = []
    looking: list[float] = []
    for number, files in enumerate(staged):
        if number % 100 == 0:
            how = f"{log or 'no'} log, {'with' if compacting else 'no'} compaction"
            bench.say(f"commit {number} of {count}, {how}")
        taken.append(timed(partial(writer.write_staged, files)))
        if compacting:
            looking.append(timed(lambda: compact_if_due(opened, run_here)))
    return taken, looking


def staged_rows(writer: Writer, count: int, first: int = 0) -> list[list[StagedFile]]:
    """Stage ``count`` one-row files without Spark, starting with row number ``first``."""
    stager = writer.stager(whole_buckets=True)
    schema = change_file_schema(stager.spec)
    kind = int(RowKind.UPDATE_AFTER)
    found = []
    for number in range(first, first + count):
        row = {"id": number % 1000, "name": "n", "price": 1.5, "at": 1_700_000_000_000_000, KIND: kind, SEQ: 0}
        found.append(stager.stage([pa.RecordBatch.from_pylist([row], schema=schema)], 0))
    return found


def run_here(tasks: Sequence[BucketTask], work: Callable[[BucketTask], str]) -> list[str]:
    """Run compaction tasks in this process."""
    return [work(task) for task in tasks]


if __name__ == "__main__":
    main(run)
