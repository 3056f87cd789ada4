"""Races: several writer processes on one table with the same keys, killed now and then, beside readers and compaction.

``python -m tests.races [--seconds N]`` prints a table; exit code 1 when the log is not the table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from rich.console import Console
from rich.table import Table

from log_system.kafka.local import LocalKafka
from tablestore.opened import OpenedTable
from tablestore.recover import recover
from tests.checks import assert_log_is_table
from tests.crash.audit import Verdict, audit
from tests.crash.racer import fold_again_and_again, race, read_again_and_again
from tests.parts import make_table, publisher_of

PARTITIONS = 2
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.crash.racer"])


@dataclass
class Outcome:
    """What came of a race."""

    writers: int
    killed: int
    snapshots: int
    rows_per_second: float
    troubles: list[str]
    verdict: Verdict


def run_race(
    folder: Path, servers: str, *, writers: int, seconds: float, rows: int, pause: float, kills: int, others: bool
) -> Outcome:
    """Let writers race, kill some (each has a successor), then recover and audit."""
    path, topic = folder / uuid.uuid4().hex, f"race-{uuid.uuid4().hex}"
    made = make_table(path, servers, topic, compaction__auto=False)
    results = CONTEXT.Queue()
    running: list[Any] = []

    def start(name: str, work: Any, *arguments: Any) -> None:
        process = CONTEXT.Process(target=work, args=(str(path), *arguments, results), name=name)
        process.start()
        running.append(process)

    for number in range(writers):
        start(f"w{number}", race, f"w{number}", seconds, rows, pause)
    if others:
        start("compactor", fold_again_and_again, seconds)
        start("reader", read_again_and_again, seconds)
    killed = 0
    for number in range(kills):
        time.sleep(seconds / (kills + 1))
        victim = random.choice([p for p in running if p.name.startswith("w") and p.is_alive()] or running[:1])
        if victim.is_alive():
            os.kill(victim.pid, signal.SIGKILL)
            killed += 1
            start(f"w{number}.next", race, f"{victim.name}.{number}", seconds / 2, rows, pause)
    for process in running:
        process.join(180)
    troubles, done = [], 0
    while True:
        try:
            name, word, count = results.get(timeout=0.5)
        except Empty:
            break
        if word not in {"ready", "done"}:
            troubles.append(f"{name}: {word}")
        done += count if name.startswith("w") else 0
    troubles += [f"{p.name} ended with {p.exitcode}" for p in running if p.exitcode not in {0, -signal.SIGKILL}]
    publisher = publisher_of(made)
    recover(made.files, publisher, made.index, buckets=PARTITIONS)
    publisher.discard()
    verdict = audit(path, servers, topic, PARTITIONS, key=True, small=True, complete=True)
    assert_log_is_table(path, servers, topic, PARTITIONS)
    return Outcome(writers, killed, OpenedTable.open(str(path)).files.latest(), done / seconds, troubles, verdict)


def main() -> int:
    """Race 1, 2, 4 and 8 writers for speed, then 2, 4 and 8 with pauses, kills, readers and compaction."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    given = parser.parse_args()
    shown = Table(title="Races on one table")
    for name in ("writers", "kills", "snapshots", "rows/s", "of one writer", "broken promises", "errors"):
        shown.add_column(name, justify="right")
    bad = 0
    with LocalKafka() as kafka, tempfile.TemporaryDirectory(prefix="races-") as name:
        one = 0.0
        for writers, kills in ((1, 0), (2, 0), (4, 0), (8, 0), (2, 3), (4, 4), (8, 6)):
            found = run_race(
                Path(name),
                kafka.bootstrap_servers,
                writers=writers,
                seconds=given.seconds,
                rows=2000 if not kills else 20,
                pause=0.02 if kills else 0,
                kills=kills,
                others=bool(kills),
            )
            one = one or found.rows_per_second
            share = "" if kills else f"{found.rows_per_second / one:.2f}"
            broken = "none" if found.verdict.clean else str(found.verdict)
            speed = f"{found.rows_per_second:.0f}"
            shown.add_row(
                str(writers),
                str(found.killed),
                str(found.snapshots),
                speed,
                share,
                broken,
                "; ".join(found.troubles[:3]),
            )
            bad += bool(found.troubles) or not found.verdict.clean
    Console().print(shown)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
