"""Publishers that are stopped (SIGSTOP) for longer than their transactions may last, while everybody else goes on."""

from __future__ import annotations

import logging
import os
import pickle
import random
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from snapshot.errors import TableStoreError
from tablestore.context import TableContext
from tests.crash.matrix.audit import audit
from tests.crash.processes import batch_writer
from tests.crash.processes.racer import archive_of, expire_again_and_again, fold_again_and_again
from tests.crash.races import Field
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import make_table, recover_at
from tests.harness.table_audit import assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS
from tests.soak.crew import Log, roll_back_again_and_again, write_until
from tests.soak.outcome import Outcome, only_folder

PARTITIONS = 2
READS_MAX = 20
TIMEOUT_SECONDS = 3.0
SMALL_ROWS, LARGE_ROWS = 8, 24
DRIVER_ROWS_MAX = 15
AT_ONCE = 2
POINTS = tuple(
    f"{call}:{side}"
    for call in ("stage", "find", "commit", "register", "token", "init", "begin", "produce", "flush", "offsets", "end",
                 "read-file", "index", "rename")
    for side in ("before", "after")
)  # fmt: skip
EAGER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""How often the broker looks for transactions that have timed out."""


class Sleeper:
    """A process that writes one batch and falls asleep at a point of that."""

    def __init__(self, path: Path, batch: int, rows: int, point: str, hit: int) -> None:
        """Start it."""
        self.point = point
        self._told = Path(f"{path}.sleeper-{batch}")
        arguments = (str(path), f"sleeper-{batch}", batch, rows, point, hit, str(self._told))
        self._process: Any = CONTEXT.Process(target=write_one, args=arguments)
        self._process.start()

    def wait_until_asleep(self) -> bool:
        """Wait until it sleeps; tell whether it does, or has ended without coming to the point."""
        stat, until = Path(f"/proc/{self._process.pid}/stat"), time.monotonic() + PATIENCE_SECONDS
        while self._process.is_alive() and time.monotonic() < until:
            if stat.read_text().rpartition(")")[2].split()[0] == "T":
                return True
            time.sleep(0.02)
        return False

    def wake(self) -> str:
        """Wake it, wait for its end, and return what went wrong, or nothing."""
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGCONT)
        self._process.join(PATIENCE_SECONDS)
        if self._process.exitcode is None:
            return f"{self.point}: hangs after it was woken"
        if self._process.exitcode:
            told = self._told.read_text() if self._told.exists() else f"exit code {self._process.exitcode}"
            return f"{self.point}: {told}"
        return ""

    def end(self) -> None:
        """Leave no process behind."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def write_one(path: str, name: str, batch: int, rows: int, point: str, hit: int, told: str) -> None:
    """Write one batch and fall asleep at the point; leave word of an error."""
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    try:
        batch_writer.run(path, name, range(batch, batch + 1), rows, point, hit, stop=True)
    except TableStoreError as error:
        Path(told).write_text(f"{type(error).__name__}: {error}")
        os._exit(3)


def soak_sleepers(folder: Path, servers: str, *, seconds: float, seed: int, writers: int) -> Outcome:
    """Stop publishers again and again while others write, publish, compact, expire and roll back; then audit.

    Args:
        folder: for the table.
        servers: a broker that ends transactions soon after their time is over (``EAGER``).
        seconds: for how long.
        seed: of who is stopped where.
        writers: how many processes write beside the publishers that are stopped.
    """
    path, topic = only_folder(folder / uuid.uuid4().hex / "t"), f"sleepers-{uuid.uuid4().hex[:8]}"
    make_table(
        path, servers, topic, compaction__auto=False, publish__driver_rows_max=DRIVER_ROWS_MAX,
        log__transaction_timeout=f"{TIMEOUT_SECONDS:.0f} s",
    )  # fmt: skip
    outcome = Outcome("publishers stopped", seconds, writers)
    field = Field(path)
    for number in range(writers):
        field.start(f"w{number}", write_until, f"w{number}", seconds, 0.3)
    field.start("compactor", fold_again_and_again, seconds)
    field.start("expirer", expire_again_and_again, PARTITIONS, seconds)
    field.start("back", roll_back_again_and_again, "back", seconds)
    field.go()
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(AT_ONCE) as pool:
        dormitories = [pool.submit(_sleep_until, path, until, seed, number, outcome) for number in range(AT_ONCE)]
        for each in dormitories:
            each.result()
    outcome.troubles += field.finish()[0]
    recover_at(path, PARTITIONS)
    archive = pickle.loads(archive_of(str(path)).read_bytes())
    outcome.verdict += audit(
        path, servers, topic, PARTITIONS, key=True, small=False, complete=True, archive=archive
    )  # fmt: skip
    assert_log_is_table(path, servers, topic, PARTITIONS, reads_max=READS_MAX, archive=archive)
    outcome.take_logs(Log.all_of(path))
    files = TableContext.open(str(path)).files
    outcome.snapshots = files.latest()
    outcome.notes.append(f"{files.oldest() - 1} snapshots expired")
    return outcome


def _sleep_until(path: Path, until: float, seed: int, number: int, outcome: Outcome) -> None:
    dice, batch = random.Random(f"{seed}/{number}"), 1000 * (number + 1)
    while time.monotonic() < until:
        batch += 1
        rows = dice.choice((SMALL_ROWS, LARGE_ROWS))
        sleeper = Sleeper(path, batch, rows, dice.choice(POINTS), dice.randint(1, 4))
        try:
            if sleeper.wait_until_asleep():
                time.sleep(TIMEOUT_SECONDS + dice.uniform(0.5, 2.5))
                outcome.faults += 1
            wrong = sleeper.wake()
        finally:
            sleeper.end()
        if "PublishPendingError" in wrong:
            # It says that its snapshot is committed and that others will publish it, which they do.
            outcome.interruptions["PublishPendingError of one woken"] += 1
        elif wrong:
            outcome.troubles.append(wrong)
