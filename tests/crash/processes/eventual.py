"""The life of a table with an eventual log: writers and owners of the log die at one point after the other.

A normalized stream follows all the while, and is itself stopped between its sink and its checkpoint now and then. After
each death and recovery, log, stream and table must be the same, and every change that the stream has given in all its
life must be one that may follow the change before.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from snapshot.records import CommitId
from tablestore.context import TableContext
from tablestore.session import session
from tablestore.table.store import TableStore
from tablestore.write.writer import Writer
from tests.crash.matrix.audit import Verdict, read_index
from tests.crash.matrix.cases import SMALL, Case
from tests.crash.matrix.runner import OPTIONS, PATIENCE_SECONDS, Result
from tests.crash.processes.batches import BATCHES, DRIVER, EVENTUAL, NOBODY, ORPHAN, SETTLE, Job, changes_of
from tests.crash.processes.ledger import Ledger
from tests.crash.processes.worker import PARTITIONS, create, run
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import drain, fold, recover_at, rows_of, settle, staged

ORPHAN_SECONDS = 20.0


class Table:
    """A table with an eventual log, and what is known of it without Spark."""

    def __init__(self, folder: Path, servers: str, job: Job) -> None:
        """Make the table that ``job`` is for, with a first batch in it."""
        self.path, self.servers = folder / uuid.uuid4().hex / "t", servers
        self.topic = f"crash-{self.path.parent.name}"
        options = {"servers": servers, "topic": self.topic, "log__consistency": "eventual", "compaction__auto": False}
        self.job = replace(job, path=str(self.path), options=options | job.options)
        create(self.job)
        self.ledger = Ledger(self.path.with_name("ledger"))
        self.checkpoint = str(self.path.with_name("checkpoint"))

    def leave_work(self, job: Job, batch: int) -> None:
        """Leave what an owner of the log has to settle: a snapshot, and an attempt that never committed."""
        for number in (batch, batch + 1):
            writer = Writer(TableContext.open(str(self.path)), None)
            files = staged(writer.stager(whole_buckets=True), changes_of(job, number))
            if number == batch:
                writer.write_staged(files, CommitId("writer", number, durable=True))

    def recover(self) -> None:
        """Settle what is left."""
        recover_at(self.path, PARTITIONS)

    def verdict(self) -> Verdict:
        """Compare the log, and what the stream has given, with the table."""
        table = TableContext.open(str(self.path))
        truth = rows_of(table)
        log = fold(change for partition in drain(self.servers, self.topic, PARTITIONS) for change in partition)
        given, illegal = self.ledger.replay()
        missing = set(range(table.files.latest() + 1)) - read_index(self.path).keys()
        return Verdict(index=len(missing), illegal=illegal, apart=_apart(log, truth) + _apart(given, truth))

    def die(self, job: Job) -> str:
        """Run a job in which somebody dies; tell what went otherwise than planned."""
        reached = self.path.with_name("reached")
        reached.unlink(missing_ok=True)
        exit_code = finished(job)
        if exit_code is None:
            return "the process hangs"
        if not reached.exists():
            return f"the point was never reached (exit code {exit_code})"
        wanted = {-signal.SIGKILL} if job.who in {DRIVER, ORPHAN} else {0}
        return "" if exit_code in wanted else f"exit code {exit_code}"


def finished(job: Job, patience: float = PATIENCE_SECONDS) -> int | None:
    """Run a job in a process of its own; give the exit code, None when it hangs."""
    process = CONTEXT.Process(target=run, args=(job,))
    process.start()
    process.join(patience)
    exit_code = process.exitcode
    if exit_code is None:
        process.kill()
    return exit_code


def _apart(found: dict[int, Any], truth: dict[int, str]) -> int:
    return sum(found.get(key) != truth.get(key) for key in found.keys() | truth.keys())


class Life:
    """A table, and the query that follows it; one death after the other. A context manager."""

    def __init__(self, spark: SparkSession, folder: Path, servers: str, case: Case, seed: int) -> None:
        """Make the table that ``case`` and those like it are for."""
        dice = case.dice(seed)
        rows = dice.randint(8, 14) if case.size == SMALL else dice.randint(28, 40)
        options = {"log__format": case.log_format, **OPTIONS[case.size]}
        self.job = Job("", EVENTUAL, case.kind, rows, dice.getrandbits(32), options=options)
        self.table = Table(folder, servers, self.job)
        self._spark, self._first = spark, 0
        self._query: Any = None

    def __enter__(self) -> Life:
        """Write a first batch, with which the query begins, and start the query."""
        self._rest(replace(self.table.job, first=self._first))
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the query."""
        self._query.stop()

    def step(self, case: Case, seed: int) -> Result:
        """Let somebody die, let the query read what that left, recover, do the rest, and look."""
        began, dice = time.monotonic(), case.dice(seed)
        self._first += BATCHES
        result = Result(case, case.hit(dice))
        batches = {"seed": dice.getrandbits(32), "first": self._first}
        job = replace(self.table.job, verb=case.verb, who=case.who, point=case.point, hit=result.hit, **batches)
        if case.verb == SETTLE:
            self.table.leave_work(job, self._first)
            self._first += BATCHES
        result.trouble = self.table.die(job)
        self._follow()
        if dice.random() < 0.5:
            self._repeat_batch()
        self.table.recover()
        result.verdict += self._look(patient=case.who == ORPHAN)
        self._rest(replace(job, verb=EVENTUAL, first=self._first))
        result.verdict += self._look(patient=case.who == ORPHAN)
        result.seconds = time.monotonic() - began
        return result

    def _rest(self, job: Job) -> None:
        code = finished(replace(job, who=NOBODY, point=""))
        assert code == 0, f"the rest of the work ended with {code}"

    def _start(self) -> None:
        stream = TableStore.open(self._spark, str(self.table.path)).read_stream().writeStream
        writer = stream.foreachBatch(self.table.ledger.put).outputMode("update")
        self._query = writer.option("checkpointLocation", self.table.checkpoint).start()

    def _repeat_batch(self) -> None:
        """Let the query die between its sink and its checkpoint: its last micro-batch is done again."""
        self._query.stop()
        commits = Path(self.table.checkpoint) / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        self._start()

    def _follow(self) -> None:
        settle(self.table.servers, self.table.topic)
        self._query.processAllAvailable()

    def _look(self, *, patient: bool) -> Verdict:
        """Look; tasks without a driver may still be sending, which the next recovery undoes."""
        until = time.monotonic() + ORPHAN_SECONDS
        while True:
            self._follow()
            verdict = self.table.verdict()
            if verdict.clean or not patient or time.monotonic() > until:
                return verdict
            self.table.recover()


def run_lives(
    cases: Sequence[Case], seed: int, folder: Path, servers: str, spark: SparkSession | None = None
) -> Iterator[Result]:
    """Run combinations, those of one format and size in the life of one table."""
    if not cases:
        return
    made = spark or session(
        "crash", master="local[2]", config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2}
    )

    def alike(case: Case) -> tuple[str, str, str]:
        return case.size, case.log_format, case.kind

    for _, group in groupby(sorted(cases, key=alike), key=alike):
        several = list(group)
        with Life(made, folder, servers, several[0], seed) as life:
            for case in several:
                yield life.step(case, seed)
    if spark is None:
        made.stop()
