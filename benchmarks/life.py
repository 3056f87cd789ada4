"""Many snapshots with automatic maintenance: how the costs of commits, opening, reading and disk space grow."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.commit import run_here, staged_rows
from benchmarks.frames import SCHEMA
from benchmarks.harness import Bench, Result, Timed, at_most, limit, main, timed
from snapshot.staging.stage import StagedFile
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact, compact_if_due
from tablestore.maintenance.expire_snapshots import expire_if_due
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.writer import Writer

_LOOKS = 5
"""Number of measurement windows; the last is compared with the first."""
_WINDOW = 100
"""Number of commits per window, over which the medians are taken."""
_KEYS = 1_000


def run(bench: Bench) -> list[Result]:
    """Measure a table that keeps its newest 100 snapshots, with a log and without."""
    return [result for log in (None, "json") for result in _table(bench, log)]


def _table(bench: Bench, log: str | None) -> list[Result]:
    count = bench.size(10_000, 1_000)
    kept: dict[str, object] = {"snapshot__retention": "0 s", "snapshot__retain_min": 100}
    table = TableContext.open(bench.table("life", SCHEMA, key=["id"], log=log, bucket=2, **kept).path)
    writer = Writer(table, table.log.publisher())
    writer.recover_once()
    # Write all keys first, so that the table does not grow.
    writer.write_staged([file for files in staged_rows(writer, _KEYS) for file in files])
    compact(table, run_here)
    # The first window starts late enough to include compaction and expiry, like all later ones.
    ends = [300 + n * (count - 300) // (_LOOKS - 1) for n in range(_LOOKS)]
    windows = {end: _Window() for end in ends}
    for number in range(1, count + 1):
        if number % 100 == 0:
            bench.say(f"snapshot {number} of {count}, {log or 'no'} log")
        (staged,) = staged_rows(writer, 1, first=number)
        seconds = timed(partial(_write, table, writer, staged))
        window = next((windows[end] for end in ends if end - _WINDOW < number <= end), None)
        if window is not None:
            window.commits.append(seconds)
            if number % 10 == 0:
                window.look(table.path)
    first, last = windows[ends[0]], windows[ends[-1]]
    what = f"after {count:,} snapshots, {'with' if log else 'no'} log"
    return [
        at_most(f"{name}, {what}", Timed(tuple(now)), Timed(tuple(then)), 1.5, "after 300")
        for name, now, then in (
            ("commit with maintenance", last.commits, first.commits),
            ("open", last.opens, first.opens),
            ("read", last.reads, first.reads),
        )
    ] + [
        limit(
            f"files on disk, {what}; after 300: {max(first.files):,}",
            max(last.files),
            1.5 * max(first.files),
            lambda n: f"{n:,.0f}",
        )
    ]


@dataclass
class _Window:
    """The measurements of one window of commits, which includes at least one compaction and expiry."""

    commits: list[float] = field(default_factory=list)
    opens: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self, path: str) -> None:
        """Time opening and reading the whole table as a new process would, and count its files."""
        start = time.perf_counter()
        table = TableContext.open(path)
        assert table.newest_visible()
        self.opens.append(time.perf_counter() - start)
        start = time.perf_counter()
        parts = snapshot_splits(table.files, table.files.latest(), tasks=1)
        assert sum(batch.num_rows for part in parts for batch in part.read()) == _KEYS
        self.reads.append(time.perf_counter() - start)
        self.files.append(sum(p.is_file() for p in Path(path).rglob("*")))


def _write(table: TableContext, writer: Writer, staged: list[StagedFile]) -> None:
    writer.write_staged(staged)
    compact_if_due(table, run_here)
    expire_if_due(table)


if __name__ == "__main__":
    main(run)
