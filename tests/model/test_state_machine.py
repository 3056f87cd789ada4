"""Promises 1 to 4 against a dict: Hypothesis looks for a history of writes, crashes and repairs that breaks one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pyspark.sql.types import LongType

from log_system.files.log import FilesLog
from log_system.index import LogIndex
from log_system.kafka.publisher.partition_sender import Sender
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.delta.log import DeltaLog
from snapshot.schema.evolution import AddColumn, DropColumn
from snapshot.staging.stage import Stager
from snapshot.storage import Storage
from snapshot.store.changes import MAINTENANCE
from tablestore.context import TableContext
from tablestore.ddl.alter import alter
from tablestore.maintenance.change_tags import delete_tag, make_tag
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import expire, rules_of
from tablestore.maintenance.rollback import rollback
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import (
    Archive,
    Change,
    act,
    committed_changes,
    fold_into,
    make_table,
    publisher_of,
    rows_of,
    run_here,
    write,
)
from tests.harness.log_audit import verify
from tests.harness.table_audit import assert_log_is_prefix, assert_log_is_table
from tests.tablestore.merge_engines.test_published_rows import JOINED, joined

pytestmark = pytest.mark.crash

PARTITIONS = 2
LARGE = {"publish__driver_rows_max": 4, "publish__transaction_rows_max": 3}
STEPS: list[tuple[type, str]] = [
    (Stager, "stage"),
    (DeltaLog, "commit"),
    (KafkaPublisher, "take_over"),
    (Sender, "send"),
    (KafkaPublisher, "_send_offsets"),
    (KafkaPublisher, "_publish_here"),
    (LogIndex, "put"),
]
EXPIRY: list[tuple[type, str]] = [(DeltaLog, "commit"), (Storage, "delete"), (LogIndex, "delete")]
CHANGES = st.lists(st.tuples(st.integers(0, 9), st.none() | st.text("ab", max_size=2)), min_size=1, max_size=8)
WHO = st.integers(0, 1)
Rows = dict[int, str]
VERBS: dict[str, Callable[[list[Change], Rows], list[Change]]] = {
    "delete": lambda given, rows: [(k, None) for k, v in rows.items() if v in {value for _, value in given}],
    "update": lambda given, rows: [(k, rows[k] + "+") for k in sorted(rows.keys() & dict(given).keys())],
    "overwrite": lambda given, rows: [*((k, None) for k in rows), *given],
    "truncate": lambda _, rows: [(k, None) for k in rows],
    "merge": lambda given, rows: [(k, None if k % 2 else v) for k, v in dict(given).items() if k in rows or not k % 2],
}
"""The changes that a verb makes of the rows that there are, with some keys and values to choose by."""


class Machine(RuleBasedStateMachine):
    """Two writers, a compactor and whatever kills them, beside the dict that says what each snapshot holds."""

    def __init__(self, servers: str, folder: Path) -> None:
        super().__init__()
        self.servers = servers
        self.path = folder / uuid.uuid4().hex
        self.topic = f"machine-{self.path.name}"
        self.history: dict[int, dict[int, str]] = {0: {}}
        self.dropped: list[KafkaPublisher] = []
        self.archive: Archive = {}
        self.tags: dict[str, int] = {}

    @initialize(
        log_format=st.sampled_from(["json", "arrow"]),
        large=st.booleans(),
        merges=st.booleans(),
        truncates=st.booleans(),
    )
    def make(self, log_format: str, large: bool, merges: bool, truncates: bool) -> None:
        self.merges = merges
        options: dict[str, Any] = {"log__format": log_format, "compaction__auto": False, **(LARGE if large else {})}
        options |= (JOINED if merges else {}) | ({"log__truncate_record": True} if truncates else {})
        make_table(self.path, self.servers, self.topic, **options)
        self.table = TableContext.open(str(self.path))
        self.writers = [self.new_writer(), self.new_writer()]

    def new_writer(self) -> tuple[Writer, KafkaPublisher]:
        table = TableContext.open(str(self.path))
        publisher = publisher_of(table)
        return Writer(table, publisher), publisher

    def bury(self, who: int) -> None:
        """Forget a writer as its death would: its open transaction stays."""
        self.dropped.append(self.writers[who][1])
        self.writers[who] = self.new_writer()

    def remember(self, changes: list[Change], *, as_set: bool = False) -> None:
        """Note the snapshots made since the last look.

        Args:
            changes: those of the one that holds any.
            as_set: they say what rows become, whatever the merge engine.
        """
        known = max(self.history)
        for snapshot in range(known + 1, self.table.files.latest() + 1):
            rows = dict(self.history[snapshot - 1])
            if self.table.files.log.commit_at(snapshot).info["kind"] not in MAINTENANCE:
                rows = joined(rows, changes) if self.merges and not as_set else fold_into(rows, changes)
            self.history[snapshot] = rows

    @rule(who=WHO, changes=CHANGES)
    def write(self, who: int, changes: list[Change]) -> None:
        made = write(self.writers[who][0], changes)
        self.remember(changes)
        if made is None:
            assert self.merges, "only deletes of keys that are not there make no snapshot"
            return
        assert made.id == max(self.history)
        assert self.table.newest_visible() == made.id

    @rule(who=WHO, changes=CHANGES, step=st.sampled_from(STEPS), after=st.booleans(), hit=st.integers(1, 3))
    def crash_while_writing(
        self, who: int, changes: list[Change], step: tuple[type, str], after: bool, hit: int
    ) -> None:
        with failing(*step, after=after, hits=range(hit, hit + 1)):
            try:
                write(self.writers[who][0], changes)
            except Crash:
                self.bury(who)
        self.remember(changes)

    @rule(who=WHO, verb=st.sampled_from(sorted(VERBS)), given=CHANGES)
    def do(self, who: int, verb: str, given: list[Change]) -> None:
        changes = VERBS[verb](given, self.history[max(self.history)])
        made = act(self.writers[who][0], self.table, verb, lambda rows: VERBS[verb](given, rows))
        assert (made is None) == (not changes)
        self.remember(changes, as_set=True)
        if made is not None:
            assert (made.id, made.operation) == (max(self.history), verb)
            assert self.table.newest_visible() == made.id

    @rule(who=WHO, verb=st.sampled_from(sorted(VERBS)), given=CHANGES, step=st.sampled_from(STEPS), after=st.booleans())
    def crash_while_doing(self, who: int, verb: str, given: list[Change], step: tuple[type, str], after: bool) -> None:
        changes = VERBS[verb](given, self.history[max(self.history)])
        with failing(*step, after=after):
            try:
                act(self.writers[who][0], self.table, verb, lambda rows: VERBS[verb](given, rows))
            except Crash:
                self.bury(who)
        self.remember(changes, as_set=True)

    @rule()
    def fold(self) -> None:
        compact(self.table, run_here)
        self.remember([])

    @rule(after=st.booleans(), hit=st.integers(1, 2))
    def crash_while_folding(self, after: bool, hit: int) -> None:
        with failing(DeltaLog, "commit", after=after, hits=range(hit, hit + 1)):
            try:
                compact(self.table, run_here)
            except Crash:
                self.table = TableContext.open(str(self.path))
        self.remember([])

    @rule(keep=st.integers(1, 4))
    def expire(self, keep: int) -> None:
        self.look_ahead()
        expire(self.table, rules_of(self.table, "0 s", keep))
        self.remember([])

    @rule(keep=st.integers(1, 4), step=st.sampled_from(EXPIRY), after=st.booleans(), hit=st.integers(1, 6))
    def crash_while_expiring(self, keep: int, step: tuple[type, str], after: bool, hit: int) -> None:
        self.look_ahead()
        with failing(*step, after=after, hits=range(hit, hit + 1)):
            try:
                expire(self.table, rules_of(self.table, "0 s", keep))
            except Crash:
                self.table = TableContext.open(str(self.path))
        self.remember([])

    def look_ahead(self) -> None:
        """Keep for the auditors what is about to expire."""
        committed_changes(self.path, PARTITIONS, self.archive)

    @rule(who=WHO, back=st.integers(0, 4), step=st.sampled_from([None, *STEPS]), after=st.booleans())
    def rollback(self, who: int, back: int, step: tuple[type, str] | None, after: bool) -> None:
        to = max(self.table.files.oldest(), self.table.files.latest() - back)
        now, then = self.history[max(self.history)], self.history[to]
        changes: list[Change] = [(k, None) for k in now.keys() - then.keys()]
        changes += [(k, v) for k, v in then.items() if now.get(k) != v]
        with failing(*step, after=after) if step else nullcontext():
            try:
                made = rollback(self.table, self.writers[who][0], run_here, to)
            except Crash:
                self.bury(who)
            else:
                assert (made is None) == (not changes)
        self.remember(changes, as_set=True)

    @rule(who=WHO, crash=st.none() | st.booleans())
    def alter(self, who: int, crash: bool | None) -> None:
        """Add a column, or drop the one that was added; ``crash`` says whether somebody dies before or after."""
        added = [name for name in self.table.spec.schema.names if name.startswith("x")]
        change = DropColumn(added[0]) if added else AddColumn(f"x{len(self.table.spec.past)}", LongType())
        with nullcontext() if crash is None else failing(DeltaLog, "alter", after=crash):
            try:
                alter(self.table, [change], publish=self.writers[who][0].publish)
            except Crash:
                self.bury(who)
        self.table = TableContext.open(str(self.path))
        self.remember([])

    @rule(name=st.sampled_from("ab"), back=st.integers(0, 3))
    def tag(self, name: str, back: int) -> None:
        if name in self.tags:
            delete_tag(self.table, name)
            del self.tags[name]
            return
        self.tags[name] = max(self.table.files.oldest(), self.table.files.latest() - back)
        make_tag(self.table, name, self.tags[name])

    @rule(who=WHO)
    def recover(self, who: int) -> None:
        recover(self.table, self.writers[who][1])
        assert self.table.newest_visible() == self.table.files.latest()

    @rule(who=WHO)
    def reopen(self, who: int) -> None:
        self.writers[who][1].discard()
        self.writers[who] = self.new_writer()

    @rule()
    def look_at_the_log(self) -> None:
        assert_log_is_prefix(self.path, self.servers, self.topic, PARTITIONS, self.archive)

    @invariant()
    def the_newest_snapshot_is_the_dict(self) -> None:
        if hasattr(self, "table"):
            assert rows_of(self.table) == self.history[max(self.history)]

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        try:
            recover(self.table, self.writers[0][1])
            kept = range(self.table.files.oldest(), max(self.history) + 1)
            for snapshot in {*kept, *self.tags.values()}:
                assert rows_of(self.table, snapshot) == self.history[snapshot]
            for after in range(max(kept.start - 1, 0), max(self.history)):
                FilesLog(self.table.files, PARTITIONS).plan(after, max(self.history), self.table.spec.change_columns)
            assert_log_is_table(self.path, self.servers, self.topic, PARTITIONS, archive=self.archive)
            assert verify(self.table).ok
        finally:
            for publisher in [*self.dropped, *(publisher for _, publisher in self.writers)]:
                publisher.discard()
            self.dropped.clear()
            self.writers.clear()


def test_no_history_of_writes_crashes_and_repairs_breaks_a_promise(kafka: LocalKafka, tmp_path: Path) -> None:
    def machine() -> Machine:
        return Machine(kafka.bootstrap_servers, tmp_path)

    chosen = settings(max_examples=max(10, settings().max_examples // 5), stateful_step_count=12)
    run_state_machine_as_test(machine, settings=chosen)
