"""Many snapshots with maintenance on its own: what a commit, opening and reading cost at the end, and the disk."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from benchmarks.commit import run_here, staged_rows
from benchmarks.frames import SCHEMA
from benchmarks.harness import Bench, Result, Timed, at_most, limit, main, timed
from snapshot.stage import StagedFile
from tablestore.compact import compact_if_due
from tablestore.expire import expire_if_due
from tablestore.opened import OpenedTable
from tablestore.plan import snapshot_parts
from tablestore.publisher import open_publisher
from tablestore.write import Writer

_LOOKS = 5
"""How often the table is looked at on the way; the last is compared with the first."""
_WINDOW = 100
"""Commits before each look, whose median is told."""
_REPEATS = 9


def run(bench: Bench) -> list[Result]:
    """Measure a table whose snapshots expire after the newest 100, with a log and without."""
    return [result for log in (None, "json") for result in _table(bench, log)]


def _table(bench: Bench, log: str | None) -> list[Result]:
    count = bench.size(10_000, 1_000)
    kept: dict[str, object] = {"snapshot__retention": "0 s", "snapshot__retain_min": 100}
    table = OpenedTable.open(bench.table("life", SCHEMA, key=["id"], log=log, bucket=2, **kept).path)
    writer = Writer(table, open_publisher(table, None))
    writer.recover_once()
    commits: list[float] = []
    looks: list[tuple[Timed, Timed, Timed, int]] = []
    # The first look is taken where maintenance has come round once, as all later ones are.
    at = {300 + n * (count - 300) // (_LOOKS - 1) for n in range(_LOOKS)}
    for number in range(1, count + 1):
        if number % 100 == 0:
            bench.say(f"snapshot {number} of {count}, {log or 'no'} log")
        (staged,) = staged_rows(writer, 1, first=number)
        commits.append(timed(partial(_write, table, writer, staged)))
        if number in at:
            looks.append((Timed(tuple(commits[-_WINDOW:])), *_look(table.path)))
    first, last = looks[0], looks[-1]
    what = f"after {count:,} snapshots, {'with' if log else 'no'} log"
    return [
        at_most(f"commit with maintenance, {what}", last[0], first[0], 1.5, "after 300"),
        at_most(f"open, {what}", last[1], first[1], 1.5, "after 300"),
        at_most(f"read, {what}", last[2], first[2], 1.5, "after 300"),
        limit(f"files on disk, {what}; after 300: {first[3]:,}", last[3], 1.5 * first[3], lambda n: f"{n:,.0f}"),
    ]


def _write(table: OpenedTable, writer: Writer, staged: list[StagedFile]) -> None:
    writer.write_staged(staged)
    compact_if_due(table, run_here)
    expire_if_due(table)


def _look(path: str) -> tuple[Timed, Timed, int]:
    """Time opening the table and reading all of it, as a new process would, and count its files."""
    opens, reads = [], []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        table = OpenedTable.open(path)
        assert table.newest_visible()
        opens.append(time.perf_counter() - start)
        start = time.perf_counter()
        parts = snapshot_parts(table.files, table.files.latest(), tasks=1)
        assert sum(batch.num_rows for part in parts for batch in part.read())
        reads.append(time.perf_counter() - start)
    return Timed(tuple(opens)), Timed(tuple(reads)), sum(p.is_file() for p in Path(path).rglob("*"))


if __name__ == "__main__":
    main(run)
