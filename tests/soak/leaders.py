"""Three brokers: every few seconds one is killed, mostly one that leads, or a partition is moved to others."""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path

from log_system.kafka.log import KafkaLog
from snapshot.errors import UnavailableError
from tablestore.context import TableContext
from tests.crash.matrix.audit import audit, committed
from tests.crash.races import Field
from tests.harness.cluster import OFFSETS, TRANSACTIONS, LocalCluster, Node
from tests.harness.local_writes import drain_raw, make_table, recover_at
from tests.harness.table_audit import assert_log_is_table
from tests.soak.crew import Log, consume_until_done, end_of, tail_until_done, write_until
from tests.soak.outcome import Outcome, not_once, only_folder

PARTITIONS = 2
READS_MAX = 20
COPIES_SECONDS = 40.0
MOVES = 0.4
"""How much of what happens to brokers is a move: half of them of a coordinator, half of a partition of the log."""
LARGE_ROWS = 25
"""Snapshots of more rows are published by tasks."""


def soak_leaders(
    folder: Path, cluster: LocalCluster, *, seconds: float, seed: int, writers: int, every: float, pause: float = 0.05
) -> Outcome:
    """Let writers and readers go on while brokers are killed and started again, one at a time; then audit.

    Args:
        folder: for the table.
        cluster: the brokers.
        seconds: for how long brokers are killed.
        seed: of who is killed when.
        writers: how many processes write.
        every: seconds from one kill to the next.
        pause: seconds at most that a writer waits between batches.
    """
    path, topic = only_folder(folder / uuid.uuid4().hex / "t"), f"leaders-{uuid.uuid4().hex[:8]}"
    servers = cluster.bootstrap_servers
    table = make_table(
        path, servers, topic, log__headers="all", publish__driver_rows_max=LARGE_ROWS, log__replication_factor=3,
        compaction__auto=False,
    )  # fmt: skip
    outcome = Outcome("brokers killed", seconds, writers)
    field = Field(path)
    for number in range(writers):
        field.start(f"w{number}", write_until, f"w{number}", seconds, pause)
    field.start("tail", tail_until_done, "tail")
    field.start("plain", consume_until_done, "plain", servers, topic, PARTITIONS)
    field.go()
    killer = Killer(cluster, table.log.settings, seed)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(max(0.0, min(killer.next_at(every), until) - time.monotonic()))
        killer.act(outcome)
    outcome.faults = killer.kills + killer.moves
    # The writers end by themselves; then what is in the log is all there will be.
    field.wait_for([f"w{number}" for number in range(writers)])
    recover_at(path, PARTITIONS)
    records = sum(map(len, drain_raw(servers, topic, PARTITIONS)))
    Path(f"{path}.records").write_text(str(records))
    end_of(path).write_text(str(TableContext.open(str(path)).files.latest()))
    outcome.troubles += field.finish()[0]
    logs = Log.all_of(path)
    outcome.verdict += audit(path, servers, topic, PARTITIONS, key=True, small=False, complete=True)
    outcome.verdict.table += not_once(committed(path, PARTITIONS, key=True), logs)
    outcome.take_logs(logs)
    assert_log_is_table(path, servers, topic, PARTITIONS, reads_max=READS_MAX)
    outcome.snapshots = TableContext.open(str(path)).files.latest()
    outcome.notes.append(killer.story())
    return outcome


class Killer:
    """Kills one broker at a time and starts it again, or moves a partition."""

    def __init__(self, cluster: LocalCluster, log: KafkaLog, seed: int) -> None:
        """Choose by the seed."""
        self._cluster, self._log = cluster, log
        self._dice = random.Random(seed)
        self._last = time.monotonic()
        self.kills = self.moves = 0
        self._of: dict[str, int] = {}

    def next_at(self, every: float) -> float:
        """Return when the next is to be killed."""
        return self._last + every * self._dice.uniform(0.7, 1.3)

    def act(self, outcome: Outcome) -> None:
        """Move a partition of the log or of its coordinator, or kill a broker."""
        self._last = time.monotonic()
        chance = self._dice.random()
        if chance < MOVES:
            moved = self._move(is_coordinator=chance < MOVES / 2)
            outcome.interruptions["not moved"] += not moved
        else:
            self._kill_one(outcome)

    def _move(self, *, is_coordinator: bool) -> bool:
        topic: str = TRANSACTIONS if is_coordinator else self._log.topic
        name = self._log.transactional_id()
        partition = self._cluster.coordinating(name) if is_coordinator else self._dice.randrange(PARTITIONS)
        what = "coordinator moved" if is_coordinator else "partition reassigned"
        moved = partition is not None and self._cluster.move(topic, partition, COPIES_SECONDS)
        self.moves += moved
        self._of[what] = self._of.get(what, 0) + moved
        return moved

    def _kill_one(self, outcome: Outcome) -> None:
        """Kill a broker, start it again a moment later, and wait until it has caught up."""
        what, victim = self._choose()
        if victim is None:
            outcome.interruptions["no leader to kill"] += 1
            return
        victim.kill()
        self.kills += 1
        self._of[what] = self._of.get(what, 0) + 1
        # Sooner than its place is taken, or later.
        time.sleep(self._dice.choice((0.0, 0.5, 4.0)))
        try:
            victim.start()
        except UnavailableError as error:
            outcome.troubles.append(f"broker {victim.number} does not start again: {error}")
        if not self._cluster.wait_until_replicated([self._log.topic], COPIES_SECONDS):
            outcome.interruptions["copies missing"] += 1

    def story(self) -> str:
        """Tell who was killed."""
        return ", ".join(f"{count} {what}" for what, count in sorted(self._of.items()))

    def _choose(self) -> tuple[str, Node | None]:
        chance = self._dice.random()
        if chance < 0.2:
            return "transaction coordinator", self._cluster.coordinator(self._log.transactional_id())
        if chance < 0.4:
            return "group coordinator", self._cluster.coordinator(self._log.group, OFFSETS)
        return "leader", self._cluster.leader(self._log.topic, self._dice.randrange(PARTITIONS))
