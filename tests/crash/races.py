"""Races: several writer processes on one table with the same keys, some killed, beside readers, compaction and expiry.

``python -m tests.crash.races [--seconds N]`` prints a table; exit code 1 when the log is not the table.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from log_system.local_kafka.owned import LocalKafka
from tablestore.context import TableContext
from tablestore.write.publish import recover
from tests.crash.matrix.audit import Verdict, audit
from tests.crash.processes.racer import (
    archive_of,
    expire_again_and_again,
    fold_again_and_again,
    race,
    read_again_and_again,
)
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import Archive, make_table, publisher_of
from tests.harness.table_audit import assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS

PARTITIONS = 2
READS_MAX = 40


@dataclass
class Outcome:
    """What came of a race."""

    writers: int
    killed: int
    snapshots: int
    fences: int
    expired: int
    rows_per_second: float
    troubles: list[str]
    verdict: Verdict


class Field:
    """The processes of a race, each with a pipe of its own: a queue's lock would be lost with the process that dies."""

    def __init__(self, path: Path) -> None:
        """Race on the table at ``path``."""
        self._path = str(path)
        self._running: dict[Any, Any] = {}
        self._waiting: list[Any] = []
        self.killed = 0
        self.fences = 0

    def start(self, name: str, work: Any, *arguments: Any) -> None:
        """Start a process."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=work, args=(self._path, *arguments, theirs), name=name)
        process.start()
        theirs.close()
        self._running[ours] = process
        self._waiting.append(ours)

    def go(self) -> None:
        """Let those that have been started begin, all at once."""
        for pipe in self._waiting:
            assert pipe.poll(PATIENCE_SECONDS), "a writer does not come to the start"
            assert pipe.recv()[1] == "ready"
        for pipe in self._waiting:
            pipe.send("go")
        self._waiting.clear()

    def kill_one(self) -> str | None:
        """Kill a writer, if one is alive; give its name."""
        alive = [p for p in self._running.values() if p.name.startswith("w") and p.is_alive()]
        if not alive:
            return None
        victim = random.choice(alive)
        os.kill(victim.pid, signal.SIGKILL)
        self.killed += 1
        return str(victim.name)

    def wait_for(self, names: Sequence[str]) -> None:
        """Wait until these have ended, or patience has."""
        until = time.monotonic() + PATIENCE_SECONDS
        for process in self._running.values():
            if process.name in names:
                process.join(max(0.1, until - time.monotonic()))

    def finish(self) -> tuple[list[str], int]:
        """Hear everybody out; give what went wrong and how many rows were written."""
        troubles, done, until = [], 0, time.monotonic() + PATIENCE_SECONDS
        listening = set(self._running)
        while listening and time.monotonic() < until:
            for reader in wait(list(listening), 1.0):
                try:
                    name, word, count = reader.recv()
                except (EOFError, OSError):
                    listening.discard(reader)
                    continue
                if word == "fenced":
                    self.fences += count
                elif word != "done":
                    troubles.append(f"{name}: {word}")
                done += count if word == "done" and name.startswith("w") else 0
        for process in self._running.values():
            process.join(max(0.1, until - time.monotonic()))
            if process.exitcode is None:
                troubles.append(f"{process.name} hangs")
                process.kill()
            elif process.exitcode not in {0, -signal.SIGKILL}:
                troubles.append(f"{process.name} ended with {process.exitcode}")
        return troubles, done


def run_race(
    folder: Path,
    servers: str,
    *,
    writers: int,
    seconds: float,
    batches: float = math.inf,
    rows: int,
    pause: float,
    kills: int,
    others: bool,
) -> Outcome:
    """Let writers race, each until it has written its batches or the time is over, kill some, recover and audit.

    Each writer that is killed has a successor.
    """
    path, topic = folder / uuid.uuid4().hex, f"race-{uuid.uuid4().hex}"
    made = make_table(path, servers, topic, compaction__auto=False)
    field = Field(path)
    for number in range(writers):
        field.start(f"w{number}", race, f"w{number}", seconds, batches, rows, pause)
    if others:
        field.start("compactor", fold_again_and_again, seconds)
        field.start("reader", read_again_and_again, seconds)
        field.start("expirer", expire_again_and_again, PARTITIONS, seconds)
    field.go()
    for number in range(kills):
        time.sleep(seconds / (kills + 1))
        victim = field.kill_one()
        if victim is not None:
            field.start(f"w{number}.next", race, f"{victim}.{number}", seconds / 2, batches, rows, pause)
            field.go()
    troubles, done = field.finish()
    publisher = publisher_of(made)
    recover(made, publisher)
    publisher.discard()
    archive: Archive = pickle.loads(archive_of(str(path)).read_bytes()) if others else {}
    verdict = audit(path, servers, topic, PARTITIONS, key=True, small=True, complete=True, archive=archive)
    assert_log_is_table(path, servers, topic, PARTITIONS, reads_max=READS_MAX, archive=archive)
    files = TableContext.open(str(path)).files
    return Outcome(
        writers, field.killed, files.latest(), field.fences, files.oldest(), done / seconds, troubles, verdict
    )


def main() -> int:
    """Race 1, 2, 4 and 8 writers for speed, then 2, 4 and 8 with pauses, kills, readers, compaction and expiry."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.races", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", choices=("speed", "kills"), help="leave the others out")
    given = parser.parse_args()
    shown = Table(title="Races on one table")
    for name in ("writers", "kills", "snapshots", "expired", "rows/s", "of one writer", "broken promises", "errors"):
        shown.add_column(name, justify="right")
    bad = 0
    with LocalKafka() as kafka, tempfile.TemporaryDirectory(prefix="races-") as name:
        one = 0.0
        for writers, kills in ((1, 0), (2, 0), (4, 0), (8, 0), (2, 3), (4, 4), (8, 6)):
            if given.only == ("speed", "kills")[not kills]:
                continue
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
                str(found.expired),
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
