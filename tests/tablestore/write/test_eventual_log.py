"""Promise 5: with ``log.consistency=eventual`` records precede their commit, and the log converges to the table."""

from __future__ import annotations

import itertools
import logging
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from log_system.index import LogIndex
from log_system.kafka.client.topic import latest_offsets
from log_system.kafka.publisher.eager_producer import KafkaLogSink
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from snapshot.delta.log import DeltaLog
from snapshot.records import CommitId
from tablestore.context import TableContext
from tablestore.maintenance.compact import compact
from tablestore.reconcile import Repairs
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.crash.processes.batch_writer import run
from tests.harness.eventual_story import EVENTUAL, PARTITIONS, EventualStory, stage
from tests.harness.faults import Crash, failing
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import (
    Change,
    drain,
    fold,
    fold_into,
    make_table,
    publisher_of,
    rows_of,
    run_here,
    write,
)
from tests.harness.own_messages import own_messages
from tests.harness.spark_tables import delete_records
from tests.harness.waiting import PATIENCE_SECONDS


class Story(EventualStory):
    """An eventual table with a key, whose log converges to it."""

    def log(self) -> list[list[Change]]:
        return drain(self.servers, self.topic, PARTITIONS)

    def records(self) -> int:
        return sum(map(len, self.log()))

    def assert_right(self) -> None:
        """The fold of the log is the table, and each index entry's range follows the one before."""
        table = TableContext.open(str(self.path))
        assert fold(change for partition in self.log() for change in partition) == rows_of(table)
        index = LogIndex(table.files.storage)
        entries = [index.get(snapshot) for snapshot in range(table.files.latest() + 1)]
        for before, entry in itertools.pairwise(entries):
            assert before is not None
            assert entry is not None
            assert [p.start for p in entry.partitions] == list(before.ends)
            assert all(p.end >= p.start for p in entry.partitions)


BOTH = pytest.mark.parametrize("story", ["json", "arrow"], indirect=True)


@pytest.fixture
def story(request: Any, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> Iterator[Story]:
    made = Story(tmp_path / "t", kafka.bootstrap_servers, topic(), log__format=getattr(request, "param", "json"))
    yield made
    made.discard()


def test_b50_records_are_in_the_log_before_the_commit(story: Story) -> None:
    """`eventual`: readers see records before the commit."""
    writer = story.writer()
    write(writer, [(1, "a")])
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        write(writer, [(1, "b"), (2, "c")])
    assert story.table.files.latest() == 1
    assert fold(c for p in story.log() for c in p) == {1: "b", 2: "c"}


@pytest.mark.parametrize("commits", [False, True], ids=["recover", "next commit"])
def test_wrong_records_that_retention_removes_before_they_are_settled_are_made_good(
    story: Story, caplog: pytest.LogCaptureFixture, commits: bool
) -> None:
    writer = story.writer()
    write(writer, [(k, "a") for k in range(8)])
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        write(writer, [(k, "wrong" if k % 3 else None) for k in range(8)])
    reader = fold(c for p in story.log() for c in p)
    assert "a" not in reader.values()
    delete_records(story.servers, story.topic, dict.fromkeys(range(PARTITIONS), -1))
    if commits:
        write(story.writer(), [(1, "b"), (3, "b")])
    else:
        story.recover()
    fold_into(reader, (c for p in story.log() for c in p))
    assert reader == rows_of(TableContext.open(str(story.path)))
    warned = {r.getMessage() for r in caplog.records if "before they were compared with the table" in r.getMessage()}
    assert len(warned) == PARTITIONS
    before = story.records()
    story.recover()
    assert story.records() == before
    # What is settled may go: its keys are right wherever they were read.
    write(story.writer(), [(1, "c")])
    delete_records(story.servers, story.topic, dict.fromkeys(range(PARTITIONS), -1))
    write(story.writer(), [(2, "c")])
    assert story.records() == 1


@BOTH
def test_a_lone_writer_sends_each_change_once_and_reads_nothing_back(story: Story) -> None:
    writer = story.writer()
    with failing(Repairs, "wrong"):  # it would crash
        write(writer, [(k, "a") for k in range(10)])
        write(writer, [(k, "b" if k % 2 else None) for k in range(10)])
        compact(TableContext.open(str(story.path)), run_here)
        write(writer, [(k, "c") for k in range(4)])
    assert story.records() == 24
    story.assert_right()


def test_the_index_says_where_a_snapshot_is(story: Story) -> None:
    writer = story.writer()
    for batch in range(3):
        write(writer, [(k, f"{batch}") for k in range(6)])
    story.assert_right()
    entry = story.table.index.get(2)
    assert entry is not None
    assert entry.rows == 6
    log = story.log()
    for partition, held in enumerate(entry.partitions):
        assert {v for _, v in log[partition][held.start : held.end]} == {"1"}


@BOTH
@pytest.mark.parametrize("mended_by", ["recover", "the next commit", "the next commit of another key"])
def test_a_batch_aborted_for_good_is_undone(story: Story, mended_by: str) -> None:
    writer = story.writer()
    write(writer, [(1, "a"), (2, "a"), (3, "a")])
    write(writer, [(3, None)])
    stage(writer, [(1, "wrong"), (2, None), (3, "wrong"), (4, "wrong"), (5, None)])
    assert fold(c for p in story.log() for c in p) != rows_of(story.table)
    if mended_by == "recover":
        story.recover()
    elif mended_by == "the next commit":
        write(writer, [(k, "b") for k in range(6)])
    else:
        write(writer, [(99, "b")])
    story.assert_right()
    before = story.records()
    story.recover()
    assert story.records() == before, "a log that is right was repaired again"
    write(writer, [(7, "c")])
    story.assert_right()


def test_what_retention_has_removed_of_an_aborted_batch_is_repaired_with_the_rest(story: Story) -> None:
    writer = story.writer()
    write(writer, [(key, "a") for key in range(8)])
    stage(writer, [(key, "wrong") for key in range(8)])
    ends = latest_offsets(story.table.log.settings.client, story.topic, read_committed=False)  # type: ignore[union-attr]
    reader = fold(change for partition in story.log() for change in partition)
    # The first records that do not belong there are gone, the last one of each partition is still there.
    delete_records(story.servers, story.topic, {partition: end - 1 for partition, end in ends.items()})
    story.recover()
    log = [change for partition in story.log() for change in partition]
    assert sorted(value for _, value in log) == ["a"] * 8 + ["wrong"] * PARTITIONS
    fold_into(reader, log)
    assert reader == rows_of(story.table)
    write(writer, [(99, "b")])
    assert fold(change for partition in story.log() for change in partition)[99] == "b"


def test_a_driver_killed_in_a_batch_replays_it_with_other_rows(story: Story) -> None:
    write(story.writer(), [(1, "a"), (2, "a")])
    name = CommitId("query", 1, durable=True)
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        write(story.writer(), [(1, "first"), (3, "first")], name)
    write(story.writer(), [(2, "second"), (4, "second")], name)
    assert rows_of(story.table) == {1: "a", 2: "second", 4: "second"}
    story.assert_right()


def test_b51_a_task_that_failed_half_way_repeats_its_records(story: Story) -> None:
    """`eventual`: a failure leaves duplicates in the topic."""
    writer = story.writer()
    with failing(KafkaLogSink, "close", after=True), pytest.raises(Crash):
        write(writer, [(1, "a"), (2, "a")])
    write(writer, [(1, "a"), (2, "a")])
    assert story.records() > 2
    story.assert_right()


def test_records_in_another_order_than_their_commits_are_put_right(story: Story) -> None:
    first, second = story.writer(), story.writer()
    write(first, [(1, "a"), (2, "a")])
    late = stage(first, [(1, "late"), (2, "late")])
    write(second, [(1, "early"), (3, "early")])
    first.write_staged(late)
    assert rows_of(story.table) == {1: "late", 2: "late", 3: "early"}
    story.assert_right()
    # And the other way round: the records of the earlier commit come last.
    early = stage(first, [(1, "x"), (2, "x")])
    other = stage(second, [(1, "y"), (4, "y")])
    second.write_staged(other)
    first.write_staged(early)
    story.assert_right()


def test_several_snapshots_of_dead_writers_are_settled_at_once(story: Story) -> None:
    write(story.writer(), [(1, "a")])
    for value in "bcd":
        with failing(KafkaPublisher, "publish"), pytest.raises(Crash):
            write(Writer(story.table, publisher_of(story.table)), [(1, value), (2, value)])
    story.recover()
    story.assert_right()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [(EventualPublisher, "_repair"), (KafkaPublisher, "_send_offsets"), (LogIndex, "put")])
def test_a_crash_while_settling_is_finished_by_the_next(story: Story, step: tuple[type, str], after: bool) -> None:
    write(story.writer(), [(1, "a"), (2, "a")])
    stage(story.writer(), [(1, "wrong"), (9, "wrong")])
    writer = story.writer()
    writer._recovered = True
    with failing(*step, after=after), pytest.raises(Crash):
        write(writer, [(2, "b")])
    story.recover()
    story.assert_right()


def test_a_publisher_that_was_replaced_repairs_nothing(story: Story) -> None:
    old = story.writer()
    write(old, [(1, "a")])
    stage(old, [(1, "wrong")])
    stale = story.publishers[0]
    real = type(stale._repairs).wrong

    def slow(self: Any, *args: Any, **named: Any) -> Any:
        found = list(real(self, *args, **named))
        type(stale._repairs).wrong = real  # type: ignore[method-assign]
        write(story.writer(), [(1, "newer")])
        return iter(found)

    type(stale._repairs).wrong = slow  # type: ignore[method-assign]
    try:
        recover(story.table, stale)
    finally:
        type(stale._repairs).wrong = real  # type: ignore[method-assign]
    story.assert_right()


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_writers_aborts_and_crashes_converges(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], seed: int
) -> None:
    dice = random.Random(seed)
    small = {"publish__transaction_rows_max": 2} if seed % 2 else {}
    story = Story(tmp_path / "t", kafka.bootstrap_servers, topic(), **small)

    def changes(step: int) -> list[Change]:
        return [(dice.randrange(6), None if dice.random() < 0.3 else f"{step}") for _ in range(dice.randint(1, 5))]

    story.mix(dice, changes, ["write", "write", "stage", "commit", "abort", "crash", "compact", "recover"])


@pytest.mark.crash
@pytest.mark.parametrize("point", ["produce:after", "flush:after", "stage:after", "commit:after", "end:after"])
def test_a_writer_killed_at_any_point_leaves_a_log_that_converges(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], point: str
) -> None:
    story = Story(tmp_path / "t", kafka.bootstrap_servers, topic())
    for name, where, code in (("one", point, -signal.SIGKILL), ("two", "", 0)):
        process = CONTEXT.Process(target=run, args=(str(story.path), name, range(3), 12, where, 2))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == code
    story.recover()
    story.assert_right()


def test_b53_creating_one_warns_of_the_cost(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Creating an `eventual` table warns that normalize is costly."""
    with caplog.at_level(logging.WARNING, "tablestore"):
        make_table(tmp_path / "a", kafka.bootstrap_servers, topic(), bucket=1)
        assert not own_messages(caplog)
        make_table(tmp_path / "b", kafka.bootstrap_servers, topic(), **EVENTUAL)
    assert [message.count("costly") for message in own_messages(caplog)] == [1]
