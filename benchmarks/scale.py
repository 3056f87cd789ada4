"""How costs grow with rows, columns, snapshots, partitions and writers, as exponents: cost = a * size ** exponent.

An exponent of 1 is linear growth, of 0 a fixed cost. It is fitted to the medians of at least three sizes. Everything
runs without Spark, since staging, commit, publishing and the merge are the same code; ``growth`` measures buckets
through Spark.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.synchronize import Barrier
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.harness import Bench, Result, count_text, main, reach, seconds_text, timed
from benchmarks.local_write import SCHEMA, rows
from tablestore import LocalTable, create_local, open_local

LINEAR, FIXED = 1.1, 0.2
"""The exponents that costs by row, and fixed costs, may reach; both leave room for noise."""
_BY_COLUMN = 0.5
"""The exponent of a one-row write from 5 to 1,000 columns, most of whose cost is fixed: 14 times the time."""
_ALL_ROWS_COLUMNS_MAX = 200
_CONTEXT = multiprocessing.get_context("spawn")


def run(bench: Bench) -> list[Result]:
    """Measure each kind of growth."""
    return [*_rows(bench), *_columns(bench), *_snapshots(bench), *_partitions(bench), *_writers(bench)]


def exponent(seconds: Mapping[int, float]) -> float:
    """Return the exponent by which seconds grow with the size."""
    return float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0])


def _grown(what: str, unit: str, seconds: Mapping[int, float], most: float) -> Result:
    (small, few), (large, many) = min(seconds.items()), max(seconds.items())
    found = exponent(seconds)
    return Result(
        f"{what}, {count_text(large)} {unit}",
        seconds_text(many),
        f"{count_text(small)}: {seconds_text(few)}",
        f"exponent {found:.2f}",
        f"<= {most:g}",
        found <= most,
    )


def _table(bench: Bench, schema: str = SCHEMA, *, log: bool = False, **more: object) -> LocalTable:
    path = bench.path("scale")
    options: dict[str, object] = {"bucket": 2, "compaction.auto": "false"}
    if log:
        servers, topic = bench.kafka.bootstrap_servers, path.rpartition("/")[2]
        options |= {"kafka.bootstrap.servers": servers, "kafka.topic": topic}
    named = {"primary_key": ["id"], "log_system": "kafka" if log else None, **more}
    return create_local(path, schema, options=options, **named)  # type: ignore[arg-type] - checked there


def _one_row(table: LocalTable, number: int) -> None:
    table.write(rows(1).set_column(0, "id", pa.array([number])))


def _median(work: Callable[[], object], rounds: int) -> float:
    return median(timed(work) for _ in range(rounds))


def _one_row_median(table: LocalTable) -> float:
    return median([timed(partial(_one_row, table, number)) for number in range(20)][5:])


def _rows(bench: Bench) -> list[Result]:
    sizes = (250_000, 1_000_000, 4_000_000) if bench.small else (1_000_000, 4_000_000, 16_000_000)
    works = ("write and publish", "merged read", "compaction", "one-row write and publish", "recover()")
    seconds: dict[str, dict[int, float]] = {work: {} for work in works}
    for size in sizes:
        bench.say(f"{count_text(size)} rows")
        data = rows(size)
        with _table(bench, log=True) as table:
            seconds["write and publish"][size] = timed(partial(table.write, data))
            table.compact()
            changed = data.take(pa.array(np.random.default_rng(0).integers(0, size, size // 20)))
            table.write(changed)
            seconds["merged read"][size] = _median(partial(_summed, table), 3)
            seconds["compaction"][size] = timed(table.compact)
            seconds["one-row write and publish"][size] = _one_row_median(table)
            seconds["recover()"][size] = _median(table.recover, 5)
    by_row = works[:3]
    return [_grown(work, "rows", seconds[work], LINEAR if work in by_row else FIXED) for work in works]


def _summed(table: LocalTable) -> None:
    for batch in table.to_batches(columns=["price"]):
        assert batch.num_columns == 1


def _columns(bench: Bench) -> list[Result]:
    count = bench.size(200_000, 50_000)
    taken: dict[int, float] = {}
    one: dict[int, float] = {}
    for size in (5, 50, 200, 1_000):
        bench.say(f"{size} columns")
        names = [f"c{number}" for number in range(size)]
        ddl = "id bigint, " + ", ".join(f"{name} {'string' if n % 2 else 'double'}" for n, name in enumerate(names))
        numbers = np.random.default_rng(0).random(count)
        values = [pa.array(numbers), pa.array((numbers * 1e6).astype(int).astype(str))]
        data = pa.table({"id": np.arange(count), **{name: values[n % 2] for n, name in enumerate(names)}})
        with _table(bench, ddl, log=True) as table:
            if size <= _ALL_ROWS_COLUMNS_MAX:
                taken[size] = timed(partial(table.write, data))
            one[size] = median([timed(partial(table.write, data.slice(number, 1))) for number in range(20)][5:])
    return [
        _grown(f"write and publish {count_text(count)} rows", "columns", taken, LINEAR),
        _grown("one-row write and publish", "columns", one, _BY_COLUMN),
        reach("the same, 50 columns, values/s", 50 * count / taken[50], 3_000_000),
    ]


def _snapshots(bench: Bench) -> list[Result]:
    works: dict[str, Callable[[LocalTable], float]] = {
        "one-row write and publish": _one_row_median,
        "open and count": lambda table: _median(partial(_count, table.path), 5),
        "a consumer's first look": lambda table: _median(partial(_first, table.path), 5),
    }
    found: dict[str, dict[int, float]] = {work: {} for work in works}
    with _table(bench, log=True) as table:
        for size in (100, 1_000, bench.size(10_000, 2_000)):
            bench.say(f"{size} snapshots")
            while table.snapshots(1)[0].id < size:
                _one_row(table, table.snapshots(1)[0].id % 1_000)
            table.compact()
            for work, taken in works.items():
                found[work][size] = taken(table)
    return [_grown(work, "snapshots", found[work], FIXED) for work in works]


def _count(path: str) -> None:
    with open_local(path) as table:
        table.count()


def _first(path: str) -> None:
    with open_local(path) as reader:
        for _ in reader.tail(snapshot=reader.snapshots(1)[0].id, follow=False):
            return


def _partitions(bench: Bench) -> list[Result]:
    count = bench.size(1_000_000, 200_000)
    works = ("write", "compaction", "one partition read", "merged read")
    seconds: dict[str, dict[int, float]] = {work: {} for work in works}
    data = rows(count)
    for size in (10, 100, 1_000):
        bench.say(f"{size} partitions")
        parts = pa.array(np.arange(count) % size, pa.int32())
        with _table(bench, f"{SCHEMA}, part int", primary_key=["id", "part"], partition_by=["part"]) as table:
            whole = data.append_column("part", parts)
            seconds["write"][size] = timed(partial(table.write, whole))
            seconds["compaction"][size] = timed(table.compact)
            seconds["one partition read"][size] = _median(partial(table.to_arrow, filter="part = 3"), 3)
            table.write(whole.slice(0, 1_000))
            seconds["merged read"][size] = _median(table.to_arrow, 3)
    return [_grown(f"{work}, {count_text(count)} rows", "partitions", taken, LINEAR) for work, taken in seconds.items()]


def _writers(bench: Bench) -> list[Result]:
    each = bench.size(50, 20)
    seconds: dict[int, float] = {}
    for size in (1, 2, 4, bench.size(16, 8)):
        bench.say(f"{size} writers")
        with _table(bench, log=True) as table:
            barrier = _CONTEXT.Barrier(size + 1)
            processes = [
                _CONTEXT.Process(target=_writes, args=(table.path, number, each, barrier)) for number in range(size)
            ]
            for process in processes:
                process.start()
            barrier.wait()
            began = time.perf_counter()
            for process in processes:
                process.join()
            seconds[size] = time.perf_counter() - began
            assert table.count() == size * each
            assert table.verify().ok
    return [_grown(f"{each} awaited writes by each writer", "writers", seconds, LINEAR)]


def _writes(path: str, writer: int, count: int, barrier: Barrier) -> None:
    with open_local(path) as table:
        barrier.wait()
        for number in range(count):
            _one_row(table, writer * 1_000_000 + number)


if __name__ == "__main__":
    main(run)
