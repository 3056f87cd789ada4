"""Runs combinations of the crash matrix and lets the auditor judge what each left."""

from __future__ import annotations

import signal
import time
import uuid
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import CorruptedError, NotFoundError, OutcomeUnknownError, TableStoreError
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.read.split_planner import snapshot_splits
from tablestore.write.writer import Writer
from tests.crash.matrix.audit import Expected, Verdict, audit, committed
from tests.crash.matrix.cases import SMALL, Case
from tests.crash.processes.batches import ALTER, BROKER, DRIVER, EXPIRE, ORPHAN, SINK, STREAMS, Job, changes_of
from tests.crash.processes.worker import KEEP_LAST, PARTITIONS, create, run, write_batches
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import Archive, Change, fold_into, publisher_of, recover_at, run_here
from tests.harness.waiting import PATIENCE_SECONDS
from tests.tablestore.maintenance.test_expire_snapshots import needed, on_disk

SPARK_SECONDS = 300.0
OPTIONS: dict[str, dict[str, Any]] = {
    "small": {},
    "large": {"publish__driver_rows_max": 5, "publish__transaction_rows_max": 6},
}


@dataclass
class Result:
    """What came of a combination.

    Attributes:
        case: the combination.
        hit: at which time the point was reached that somebody died.
        verdict: what the auditor found, after the death, after recovery and after the rest of the work.
        trouble: why the combination says nothing, or what failed besides.
        seconds: how long it took.
    """

    case: Case
    hit: int
    verdict: Verdict = field(default_factory=Verdict)
    trouble: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether every promise held."""
        return self.verdict.clean and not self.trouble


class Run:
    """One combination on its way."""

    def __init__(self, case: Case, seed: int, folder: Path, servers: str) -> None:
        """Choose by the seed what is random in the case; nothing is made yet."""
        dice = case.dice(seed)
        hit = case.hit(dice)
        rows = dice.randint(8, 14) if case.size == SMALL else dice.randint(28, 40)
        self.path = folder / uuid.uuid4().hex / "t"
        self.servers = servers
        self.topic = f"crash-{self.path.parent.name}"
        options = {"servers": servers, "topic": self.topic, "log__format": case.log_format, "compaction__auto": False}
        options |= OPTIONS[case.size]
        if case.log_format == "json" and case.kind == "append":
            options["log__headers"] = dice.choice(["last", "all"])
        self.job = Job(
            str(self.path), case.verb, case.kind, rows, dice.getrandbits(32), case.who, case.point, hit, options
        )
        self.case = case
        self._patience = SPARK_SECONDS if case.verb in STREAMS else PATIENCE_SECONDS
        self.result = Result(case, hit)
        self._process: Any = None
        self._pipe: Any = None
        self._archive: Archive | None = None

    def prepare(self) -> None:
        """Make what the verb works on."""
        if self.case.verb == "create":
            self.path.parent.mkdir(parents=True)
            return
        create(self.job)
        if self.case.verb in STREAMS:
            from tests.crash.processes.streams import lay_out  # noqa: PLC0415 - it needs Spark

            lay_out(self.job)
            return
        table = TableContext.open(str(self.path))
        if self.case.verb == "recover":
            write_batches(self.job, Writer(table, None), None)
            return
        if self.case.verb not in {"compact", "drop", ALTER, EXPIRE}:
            return
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        for batch in range(1 if self.case.verb == ALTER else self.job.batches):
            write_batches(self.job, writer, None, [batch])
            if self.case.verb == EXPIRE and self.job.key and batch % 8 == 7:
                compact(table, run_here)
        publisher.discard()
        if self.case.verb == EXPIRE:
            self._archive = {}
            committed(self.path, PARTITIONS, key=self.job.key, archive=self._archive)

    def start(self) -> None:
        """Start the process that is to die."""
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=run, args=(self.job, theirs))
        self._process.start()
        theirs.close()

    def wait_at_point(self) -> None:
        """Wait until the process waits at its point, or has ended without reaching it."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._pipe.poll(0.05) and self._process.is_alive() and time.monotonic() < until:
            pass

    def go_on(self) -> None:
        """Tell the process at its point that the broker is dead."""
        if self._process.is_alive():
            self._pipe.send("go")

    def finish(self) -> Result:
        """Wait for the end of the process and let the auditor look, recover, look, finish the work, and look."""
        self._process.join(self._patience)
        exit_code = self._process.exitcode
        self._pipe.close()
        if exit_code is None:
            self._process.kill()
            self.result.trouble = "the process hangs"
        elif not self.path.with_name("reached").exists():
            self.result.trouble = f"the point was never reached (exit code {exit_code})"
        elif self.case.who in {DRIVER, ORPHAN} and exit_code != -signal.SIGKILL:
            self.result.trouble = f"the driver was to be killed and ended with {exit_code}"
        elif exit_code not in {0, 3, -signal.SIGKILL}:
            self.result.trouble = f"exit code {exit_code}"
        if self.case.verb in {"create", "drop"}:
            self._after_lifecycle()
        else:
            self._look(complete=False)
            recover_at(self.path, PARTITIONS)
            self._look(complete=True)
        self._rest()
        return self.result

    def _after_lifecycle(self) -> None:
        """Whatever a crash left of a table, it can be made again, or is whole."""
        try:
            TableContext.open(str(self.path))
        except (NotFoundError, CorruptedError):
            create(self.job)

    def _rest(self) -> None:
        """Do what is left of the work, in a process that nobody kills."""
        verb = self.case.verb if self.case.verb in {*STREAMS, ALTER, EXPIRE} else "write"
        rest = replace(self.job, verb=verb, who="nobody", point="")
        process = CONTEXT.Process(target=run, args=(rest, None))
        process.start()
        process.join(self._patience)
        if process.exitcode != 0:
            process.kill()
            self.result.trouble += f" the rest of the work ended with {process.exitcode}"
        if self.case.verb == EXPIRE:
            self._check_expired()
        self._look(complete=True)
        key = self.job.key
        expected = committed(self.path, PARTITIONS, key=key, archive=self._archive)
        held = Counter(change for part in expected for _, change in part)
        for batch in range(self.job.batches):
            changes = changes_of(self.job, batch)
            # Spark hands the sink rows in any order, so it keeps all changes of a key.
            held.subtract(dict(changes).items() if key and self.case.verb != SINK else changes)
        self.result.verdict += Verdict(table=sum(map(abs, held.values())) + self._misread(expected))

    def _check_expired(self) -> None:
        """All that an expiry has to remove is gone once it was done again, and nothing else."""
        table = TableContext.open(str(self.path))
        snapshots = table.files.latest() - table.files.oldest() + 1
        # The snapshots that expiries made are not counted.
        if snapshots > KEEP_LAST + 2:
            self.result.trouble += f" {snapshots} snapshots have not expired"
        if wrong := on_disk(self.path) ^ needed(table):
            self.result.trouble += f" files that are there and not needed, or the reverse: {sorted(wrong)[:3]}"

    def _misread(self, expected: Expected) -> int:
        """Count the kept snapshots that our own reader reads otherwise than the committed changes fold to."""
        table = TableContext.open(str(self.path))
        wrong, upto = 0, [deque(part) for part in expected]
        rows: dict[int, str] = {}
        bag: Counter[Change] = Counter()
        for snapshot in range(table.files.latest() + 1):
            for part in upto:
                while part and part[0][0] == snapshot:
                    change = part.popleft()[1]
                    fold_into(rows, [change])
                    gone = str(change[1]).startswith("-")
                    bag[change[0], str(change[1]).removeprefix("-")] += -1 if gone else 1
            if snapshot >= table.files.oldest():
                parts = snapshot_splits(table.files, snapshot, tasks=1)
                found = [tuple(row.values())[:2] for p in parts for b in p.read() for row in b.to_pylist()]
                wrong += Counter(found) != (Counter(rows.items()) if self.job.key else +bag)
        return wrong

    def _look(self, *, complete: bool) -> None:
        self.result.verdict += audit(
            self.path,
            self.servers,
            self.topic,
            PARTITIONS,
            key=self.job.key,
            small=self.case.size == SMALL,
            complete=complete,
            archive=self._archive,
        )


def run_case(case: Case, seed: int, folder: Path, servers: str) -> Result:
    """Run a combination in which the broker lives."""
    began = time.monotonic()
    one = Run(case, seed, folder, servers)
    try:
        one.prepare()
        one.start()
        one.finish()
    except (TableStoreError, AssertionError, OSError) as error:
        one.result.trouble += f" {type(error).__name__}: {error}"
    one.result.seconds = time.monotonic() - began
    return one.result


def run_fleet(cases: list[Case], seed: int, folder: Path, kafka: LocalKafka, pool: ThreadPoolExecutor) -> list[Result]:
    """Run combinations in which the broker dies: all wait at their points, the broker is killed once and restarted."""
    assert all(case.who == BROKER for case in cases)
    began = time.monotonic()
    runs = [Run(case, seed, folder, kafka.bootstrap_servers) for case in cases]

    def to_point(one: Run) -> None:
        one.prepare()
        one.start()
        one.wait_at_point()

    def to_end(one: Run) -> Result:
        try:
            return one.finish()
        except (TableStoreError, OutcomeUnknownError, AssertionError, OSError) as error:
            one.result.trouble += f" {type(error).__name__}: {error}"
            return one.result

    list(pool.map(to_point, runs))
    kafka.kill()
    for one in runs:
        one.go_on()
    kafka.start()
    results = list(pool.map(to_end, runs))
    for result in results:
        result.seconds = (time.monotonic() - began) / len(runs)
    return results
