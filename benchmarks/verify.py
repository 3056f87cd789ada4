"""Peak memory and speed of ``verify()``, which compares a large log with its table.

``verify()`` keeps batches of both sides in memory, never a whole snapshot, so ten times the rows should take no more
memory. Two sizes are measured to check this.
"""

from __future__ import annotations

import os

from benchmarks.frames import SCHEMA, rows
from benchmarks.harness import CORES, Bench, Result, count_text, limit, main, reach, timed
from benchmarks.memory import LIMIT_MB, PeakWatch
from tablestore.table.store import TableStore

GROWTH_MB = 150.0
"""The maximum increase of the peak for ten times the rows, which comes from bounded buffers that fill up."""
_SNAPSHOTS = 4


def run(bench: Bench) -> list[Result]:
    """Verify a table, then one ten times as large."""
    large = bench.size(10_000_000, 2_000_000)
    found: list[Result] = []
    peaks: list[float] = []
    for count in (large // 10, large):
        table = bench.table("verify", SCHEMA, key=["id"], log="json", bucket=CORES, compaction__auto=False)
        bench.say(f"writing {count_text(count)} rows")
        for number in range(_SNAPSHOTS):
            table.write(rows(bench.spark, count // _SNAPSHOTS, seed=number))
        bench.say(f"verifying {count_text(count)} rows")
        seconds, peak = _verify(table)
        peaks.append(peak)
        found.append(limit(f"verify {count_text(count)} rows, JSON: peak of the process", peak, LIMIT_MB, _mb))
        found.append(reach(f"verify {count_text(count)} rows, JSON", count / seconds, None))
    found.append(limit("verify: what ten times the rows add to the peak", peaks[1] - peaks[0], GROWTH_MB, _mb))
    return found


def _verify(table: TableStore) -> tuple[float, float]:
    with PeakWatch() as watch:
        seconds = timed(lambda: _agree(table))
    return seconds, watch.peaks[os.getpid()]


def _agree(table: TableStore) -> None:
    report = table.verify()
    assert report.ok, str(report)


def _mb(value: float) -> str:
    return f"{value:,.0f} MB"


if __name__ == "__main__":
    main(run)
