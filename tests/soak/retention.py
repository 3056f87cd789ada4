"""Retention, compaction and expiry that come between a writer's death and its recovery."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from log_system.kafka.client.cluster import delete_groups
from log_system.kafka.client.topic import earliest_offsets, latest_offsets
from log_system.kafka.log import KafkaLog
from snapshot.errors import DataLostError, TableStoreError
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.local.table import open_local
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tests.crash.matrix.audit import Verdict
from tests.crash.processes import batch_writer
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import (
    Archive,
    Change,
    committed_changes,
    drain,
    fold_into,
    make_table,
    recover_at,
    rows_of,
    run_here,
)
from tests.harness.log_audit import verify
from tests.harness.spark_tables import delete_records
from tests.harness.waiting import PATIENCE_SECONDS
from tests.soak.outcome import Outcome, only_folder

PARTITIONS = 2
SMALL_ROWS, LARGE_ROWS = 8, 24
LARGE: dict[str, Any] = {"publish__driver_rows_max": 15, "publish__transaction_rows_max": 6}
POINTS = ("commit:after", "begin:after", "produce:after", "flush:after", "offsets:after", "end:before", "end:after",
          "index:before", "index:after")  # fmt: skip
"""Between the commit and the end of a publish."""
EAGER = {
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""How often the broker looks for what its retention has passed."""
SHORT_RETENTION = {"segment.ms": "400", "retention.ms": "800"}


class Overtaken:
    """A table whose writers die before they have published, and what comes between that and recovery."""

    def __init__(self, folder: Path, servers: str, dice: random.Random) -> None:
        """Make the table."""
        self.dice = dice
        self.archive: Archive = {}
        self.path, self.topic = only_folder(folder / uuid.uuid4().hex / "t"), f"overtaken-{uuid.uuid4().hex[:8]}"
        self.servers = servers
        self.batch = 0
        self.loud = 0
        self.told: list[str] = []
        self._story: list[str] = []
        options: dict[str, Any] = {"compaction__auto": False, "log__transaction_timeout": "2 s", **LARGE}
        make_table(self.path, servers, self.topic, **options)

    @property
    def table(self) -> TableContext:
        """The table, opened as a new process does."""
        return TableContext.open(str(self.path))

    def write(self, batches: int, rows: int = SMALL_ROWS, point: str = "", hit: int = 1) -> None:
        """Write batches in a process of its own, which dies where it comes to a point."""
        self._story.append(f"{batches}x{rows} rows" + (f", dead at the {hit}. {point}" if point else ""))
        numbers = range(self.batch, self.batch + batches)
        self.batch += batches
        process = CONTEXT.Process(target=_write, args=(str(self.path), numbers, rows, point, hit))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode is not None, "the writer hangs"
        self.remember()

    def remember(self) -> None:
        """Keep what is committed, before it expires."""
        committed_changes(self.path, PARTITIONS, self.archive)

    def pass_retention(self, ends: dict[int, int]) -> None:
        """Remove the records of partitions below these offsets; -1 is the end of what is committed."""
        delete_records(self.servers, self.topic, ends)

    def fold(self) -> None:
        """Compact, as another process does."""
        self.remember()
        compact(self.table, run_here)
        self.remember()

    def expire(self, keep_last: int) -> None:
        """Expire, as another process does."""
        self.remember()
        expire(self.table, rules_of(self.table, "0 s", keep_last))

    def __str__(self) -> str:
        """Tell what has happened to it."""
        return "; ".join(self._story)

    def overtake(self) -> None:
        """Let some of it happen, in any order."""
        acts: dict[str, Callable[[], None]] = {
            "retention of all": lambda: self.pass_retention(dict.fromkeys(range(PARTITIONS), -1)),
            "retention of one": lambda: self.pass_retention({self.dice.randrange(PARTITIONS): -1}),
            "retention of some": self._pass_somewhere,
            "compaction": self.fold,
            "expiry": lambda: self.expire(self.dice.randint(1, 6)),
            "groups expire": self._forget_groups,
            "time": lambda: time.sleep(self.dice.uniform(0, 2.5)),
        }
        names = self.dice.sample(list(acts), self.dice.randint(1, 4))
        for name in names:
            self._story.append(name)
            acts[name]()

    def _pass_somewhere(self) -> None:
        client = self._log.client
        first = earliest_offsets(client, self.topic)
        last = latest_offsets(client, self.topic, read_committed=False)
        ends = {p: self.dice.randint(first[p], last[p]) for p in first}
        self._story.append(f"{first} to {last}: {ends}")
        self.pass_retention(ends)

    def _forget_groups(self) -> None:
        delete_groups(self._log.client, [self._log.group, self._log.tasks_group])

    @property
    def _log(self) -> KafkaLog:
        return self.table.log.settings

    def recover(self) -> None:
        """Recover, as another process does."""
        recover_at(self.path, PARTITIONS)
        self.remember()

    def judge(self) -> Verdict:
        """Compare the log, as far as it is kept, with what is committed; and what readers are given."""
        verdict, log = Verdict(), drain(self.servers, self.topic, PARTITIONS)
        expected = committed_changes(self.path, PARTITIONS, self.archive)
        for seen, wanted in zip(log, ([change for _, change in part] for part in expected), strict=True):
            kept = wanted[len(wanted) - len(seen) :] if seen else []
            if seen != kept:
                missing, extra = Counter(kept), Counter(seen)
                missing.subtract(seen)
                extra.subtract(kept)
                verdict.lost += sum((+missing).values())
                verdict.doubled += sum((+extra).values())
                verdict.order += 1
        verdict.index += self.table.newest_visible() != self.table.files.latest()
        report = verify(self.table)
        # The groups that keep the register may have expired on purpose; where nothing is published they stay so.
        wrong = [str(each) for each in report.differences if "the register is lost" not in each.text]
        verdict.index += len(wrong)
        self.told += wrong
        return verdict + self._readers(expected)

    def _readers(self, expected: list[list[tuple[int, Change]]]) -> Verdict:
        """Read from each kept snapshot on: all changes, or an error that says that some are lost."""
        verdict = Verdict()
        rows: dict[int, str] = {}
        by_snapshot: dict[int, list[Change]] = {}
        for part in expected:
            for snapshot, change in part:
                by_snapshot.setdefault(snapshot, []).append(change)
        table = self.table
        newest, oldest = table.files.latest(), table.files.oldest()
        for snapshot in range(newest + 1):
            fold_into(rows, by_snapshot.get(snapshot, []))
        verdict.table += rows_of(table) != rows
        for after in {max(oldest - 1, 0), self.dice.randint(max(oldest - 1, 0), newest), newest - 1}:
            wanted = sorted((s, *c) for s, held in by_snapshot.items() if s > after for c in held)
            try:
                came = changes_after(self.path, after)
            except DataLostError:
                self.loud += 1
                continue
            verdict.torn += sorted(came) != wanted
        return verdict


def changes_after(path: Path, after: int) -> list[tuple[int, int, str | None]]:
    """Read the changes after a snapshot by ``tail``; each as (snapshot, id, v)."""
    found = []
    for batch in open_local(path).tail(scan_mode="from-snapshot", snapshot=after + 1, follow=False):
        for row in batch.drop_columns([COMMIT_TIMESTAMP]).to_pylist():
            found.append((row[COMMIT_VERSION], row["id"], None if row["_change_type"] == "delete" else row["v"]))
    return found


def _write(path: str, numbers: range, rows: int, point: str, hit: int) -> None:
    logging.getLogger("tablestore").setLevel(logging.CRITICAL)
    batch_writer.run(path, f"writer-{numbers.start}", numbers, rows, point, hit)


def shorten_retention(servers: str, topic: str) -> None:
    """Let the broker remove segments that are a second old."""
    entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in SHORT_RETENTION.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def soak_retention(folder: Path, servers: str, *, seconds: float, seed: int) -> Outcome:
    """Let writers die within a publish, let something overtake their recovery, recover and judge, again and again.

    Args:
        folder: for the tables.
        servers: a broker that looks often for what its retention has passed (``EAGER``).
        seconds: for how long.
        seed: of who dies where, and what happens then.
    """
    dice, outcome = random.Random(seed), Outcome("retention, compaction, expiry overtake", seconds, 1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one = Overtaken(folder, servers, dice)
        if dice.random() < 0.3:
            shorten_retention(servers, one.topic)
        for _ in range(dice.randint(2, 5)):
            one.write(dice.randint(1, 4), dice.choice((SMALL_ROWS, LARGE_ROWS)))
            one.write(2, dice.choice((SMALL_ROWS, LARGE_ROWS)), dice.choice(POINTS), dice.randint(1, 6))
            one.overtake()
            try:
                one.recover()
                verdict = one.judge()
            except TableStoreError as error:
                outcome.troubles.append(f"{one}: {type(error).__name__}: {error}")
                break
            outcome.faults += 1
            outcome.verdict += verdict
            if not verdict.clean:
                outcome.troubles.append(f"{one}: {verdict}; {one.told[:3]}")
                break
        outcome.interruptions["loud"] += one.loud
        outcome.snapshots += one.table.files.latest()
    return outcome
