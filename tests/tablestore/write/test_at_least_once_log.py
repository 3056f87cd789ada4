"""``log.consistency=eventual`` without a primary key: every committed change is in the log at least once."""

from __future__ import annotations

import json
import logging
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from log_system.index import LogIndex
from log_system.kafka.client.topic import delete_topic
from log_system.kafka.publisher.eager_producer import KafkaLogSink
from log_system.kafka.publisher.eventual_publisher import EventualPublisher
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.report import DifferenceKind
from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from tablestore import TableStore, open_local
from tablestore.read.split_planner import snapshot_splits
from tests.crash.processes.append_writer import rows_in, run
from tests.harness.eventual_story import PARTITIONS, EventualStory, stage
from tests.harness.faults import Crash, failing
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import Row, drain_raw, rewriting, write
from tests.harness.own_messages import own_messages
from tests.harness.spark_tables import delete_records
from tests.harness.waiting import PATIENCE_SECONDS


class Story(EventualStory):
    """An eventual table without a key, whose log lacks none of its changes."""

    def __init__(self, path: Path, servers: str, topic: str, **options: Any) -> None:
        super().__init__(path, servers, topic, key=False, **options)

    def rows(self, snapshot: int | None = None) -> Counter[Row]:
        """The rows of a snapshot, from files."""
        table = self.table
        wanted = table.files.latest() if snapshot is None else snapshot
        batches = [batch for split in snapshot_splits(table.files, wanted, tasks=1) for batch in split.read()]
        return Counter((row["id"], row["v"]) for batch in batches for row in batch.to_pylist())

    def log(self, begun: tuple[int, ...] = (0, 0)) -> Counter[Row]:
        """The changes in the log from some offsets on, as a plain consumer reads them: inserts minus deletes."""
        found: Counter[Row] = Counter()
        for partition, messages in enumerate(drain_raw(self.servers, self.topic, PARTITIONS)):
            for message in messages:
                if message.offset() >= begun[partition]:
                    found.update(_changes(message.value()))
        return found

    def assert_right(self) -> None:
        """A reader that begins with any snapshot gets the newest rows, and maybe others."""
        rows, table = self.rows(), self.table
        listed = table.index.snapshots()
        assert listed == list(range(listed[0], table.files.latest() + 1))
        for snapshot in listed:
            entry = table.index.get(snapshot)
            assert entry is not None
            lacking = rows - (self.rows(snapshot) + self.log(entry.ends))
            assert not lacking, f"after snapshot {snapshot}"
        assert self.table.verify().ok
        assert self.table.verify(from_snapshot=listed[len(listed) // 2] + 1).ok


def _changes(value: bytes) -> dict[Row, int]:
    try:
        row = json.loads(value)
    except ValueError:
        rows = pa.ipc.open_stream(value).read_all().to_pylist()
        found: Counter[Row] = Counter()
        for each in rows:
            found[each["id"], each["v"]] += -1 if each["_kind"] in (1, 3) else 1
        return found
    count = 1
    if "op" in row:
        row, count = (row["before"], -1) if row["op"] == "d" else (row["after"], 1)
    return {(row["id"], row["v"]): count}


@pytest.fixture
def story(request: Any, kafka: Any, tmp_path: Path, topic: Callable[[], str]) -> Iterator[Story]:
    made = Story(tmp_path / "t", kafka.bootstrap_servers, topic(), log__format=getattr(request, "param", "json"))
    yield made
    made.discard()


BOTH = pytest.mark.parametrize("story", ["json", "arrow"], indirect=True)


@BOTH
def test_a_lone_writer_sends_each_row_once(story: Story) -> None:
    writer = story.writer()
    for batch in range(4):
        write(writer, [(n, f"{batch}") for n in range(5)])
    assert story.log() == story.rows()
    assert set(story.rows().values()) == {1}
    story.assert_right()
    ends = [entry.ends for s in range(5) if (entry := story.table.index.get(s)) is not None]
    assert all(story.log(end).total() == 5 * (4 - s) for s, end in enumerate(ends))


def test_rows_are_in_the_log_before_the_commit_and_stay_if_there_is_none(story: Story) -> None:
    writer = story.writer()
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        write(writer, [(1, "never")])
    assert not story.rows()
    assert story.log() == {(1, "never"): 1}
    story.recover()
    write(story.writer(), [(2, "b")])
    assert story.rows() == {(2, "b"): 1}
    assert story.log() == {(1, "never"): 1, (2, "b"): 1}
    story.assert_right()


def test_a_task_that_failed_half_way_repeats_its_rows(story: Story) -> None:
    writer = story.writer()
    with failing(KafkaLogSink, "close", after=True), pytest.raises(Crash):
        write(writer, [(1, "a")])
    write(writer, [(1, "a")])
    assert story.rows() == {(1, "a"): 1}
    assert story.log() == {(1, "a"): 2}
    story.assert_right()


def test_a_reader_that_begins_with_a_snapshot_gets_rows_sent_before_its_commit(story: Story) -> None:
    first, second = story.writer(), story.writer()
    write(first, [(0, "a")])
    late = [stage(first, [(number, "late")]) for number in range(4)]
    write(second, [(1, "b")])
    for staged in late:
        first.write_staged(staged)
    story.assert_right()


def test_rows_that_two_writers_send_one_after_the_other_are_not_repeated(story: Story) -> None:
    first, second = story.writer(), story.writer()
    write(second, [(0, "a")])
    staged = [(second, stage(second, [(1, "b")])), (first, stage(first, [(2, "c")]))]
    for writer, files in staged:
        writer.write_staged(files)
    story.assert_right()
    assert story.log() == story.rows()


def test_a_writer_publishes_what_a_dead_one_has_committed_and_sent_nowhere(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randrange", lambda *_: 0)
    writer = story.writer()
    write(writer, [(1, "a")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaLogSink, "send", lambda *_: None)
        with failing(KafkaPublisher, "publish"), pytest.raises(Crash):
            write(story.writer(), [(2, "b")])
    write(writer, [(3, "c")])
    assert story.rows() == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    story.assert_right()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [(EventualPublisher, "_repair"), (KafkaPublisher, "_send_offsets"), (LogIndex, "put")])
def test_a_crash_while_settling_is_finished_by_the_next(story: Story, step: tuple[type, str], after: bool) -> None:
    write(story.writer(), [(1, "a"), (2, "a")])
    writer = story.writer()
    writer._recovered = True
    with failing(*step, after=after), pytest.raises(Crash):
        write(writer, [(3, "b")])
    story.recover()
    assert story.rows() == {(1, "a"): 1, (2, "a"): 1, (3, "b"): 1}
    story.assert_right()


@pytest.mark.parametrize("story", ["arrow", "debezium-json"], indirect=True)
def test_changes_of_statements_are_sent_after_their_commit(story: Story) -> None:
    writer = story.writer()
    write(writer, [(n, "a") for n in range(4)])
    write(writer, [(n, "b") for n in range(4)])
    with failing(DeltaLog, "commit"), pytest.raises(Crash):
        writer.replace(rewriting(story.table, lambda row: None if row[0] == 1 else row), kind="delete")
    assert story.log().total() == 8
    writer = story.writer()
    writer.replace(rewriting(story.table, lambda row: None if row[0] == 1 else (row[0], "c")), kind="update")
    assert story.rows() == {(n, "c"): 2 for n in (0, 2, 3)}
    assert +story.log() == story.rows()
    story.assert_right()


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_writers_aborts_and_crashes_loses_nothing(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], seed: int
) -> None:
    dice = random.Random(seed)
    small = {"publish__transaction_rows_max": 2} if seed % 2 else {}
    story = Story(tmp_path / "t", kafka.bootstrap_servers, topic(), **small)

    def rows(step: int) -> list[Row]:
        return [(dice.randrange(6), f"{step}") for _ in range(dice.randint(1, 5))]

    story.mix(dice, rows, ["write", "write", "stage", "commit", "abort", "crash", "recover"])


@pytest.mark.crash
@pytest.mark.parametrize("point", ["produce:after", "flush:after", "stage:after", "commit:after", "end:after"])
def test_a_writer_killed_at_any_point_loses_nothing(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], point: str
) -> None:
    story = Story(tmp_path / "t", kafka.bootstrap_servers, topic())
    for where, code in ((point, -signal.SIGKILL), ("", 0)):
        process = CONTEXT.Process(target=run, args=(str(story.path), "one", range(4), where, 2))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == code
    story.recover()
    assert story.rows() == {row: 1 for batch in range(4) for row in rows_in(batch)}
    story.assert_right()
    # Copies, and nothing else: each of these writes was repeated until it was committed.
    assert set(story.log()) == set(story.rows())


def _lose_a_row(story: Story) -> None:
    """Commit a row that a task has not sent, though it says so."""
    with pytest.MonkeyPatch.context() as patch:
        real = KafkaLogSink.send
        patch.setattr(KafkaLogSink, "send", lambda self, bucket, rows: real(self, bucket, rows.slice(1)))
        write(story.writer(), [(7, "lost"), (7, "lost"), (8, "sent")])


def test_verify_finds_a_row_that_the_log_lacks_and_repair_sends_it(story: Story) -> None:
    write(story.writer(), [(1, "a")])
    _lose_a_row(story)
    report = story.table.verify()
    assert [each.kind for each in report.differences] == [DifferenceKind.MISSING]
    assert "'lost'" in str(report.differences[0]) or '"lost"' in str(report.differences[0]), report
    with open_local(str(story.path)) as table:
        done = table.log.repair()
    assert any("sent 1 change again" in action for action in done.actions), done
    assert story.table.verify().ok
    assert story.log() == story.rows()


def test_what_retention_has_removed_is_not_missing(story: Story) -> None:
    writer = story.writer()
    write(writer, [(1, "a")])
    write(writer, [(2, "a")])
    delete_records(story.servers, story.topic, dict.fromkeys(range(PARTITIONS), -1))
    write(writer, [(3, "a")])
    assert story.table.verify().ok
    with open_local(str(story.path)) as table:
        assert table.log.repair().report.ok
    assert story.log() == {(3, "a"): 1}


def test_a_topic_that_was_lost_is_filled_again(story: Story) -> None:
    for number in range(3):
        write(story.writer(), [(number, "a")])
    story.publishers[-1].discard()
    delete_topic(story.table.log.settings.client, story.topic)
    with open_local(str(story.path)) as table:
        table.log.repair()
    assert story.log() == story.rows()
    write(story.writer(), [(9, "b")])
    story.assert_right()


def test_a_stream_gets_every_row_and_says_that_it_cannot_normalize(
    spark: SparkSession, kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    story = Story(tmp_path / "t", kafka.bootstrap_servers, topic())
    table = TableStore.open(spark, str(story.path))
    rows = spark.range(0, 100, 1, 4).selectExpr("id", "'a' AS v")
    table.write(rows)

    def given() -> Counter[Row]:
        found: list[Any] = []
        query = table.read_stream().writeStream.foreachBatch(lambda b, _: found.extend(b.collect()))
        query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        query.start().awaitTermination()
        assert all(row._change_type == "insert" for row in found)
        return Counter((row.id, row.v) for row in found)

    assert given() == story.rows()
    table.write(rows.selectExpr("id", "'b' AS v"))
    stage(story.writer(), [(1, "never")])
    assert given() == {**{(n, "b"): 1 for n in range(100)}, (1, "never"): 1}
    assert story.log() == story.rows() + Counter([(1, "never")])
    for wrong in ({"normalize": True}, {"state_ttl": "1 d"}):
        with pytest.raises(InvalidInputError, match="primary key"):
            table.read_stream(**wrong)  # type: ignore[arg-type]
    with open_local(str(story.path)) as local:
        followed = [row for batch in local.changes(0) for row in batch.to_pylist()]
    assert Counter((row["id"], row["v"]) for row in followed) == story.rows()


def test_g15_creating_one_says_what_readers_may_see(
    kafka: Any, tmp_path: Path, topic: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a primary key, `eventual` is at least once, and creating such a table warns of it."""
    with caplog.at_level(logging.WARNING, "tablestore"):
        Story(tmp_path / "t", kafka.bootstrap_servers, topic())
    (message,) = own_messages(caplog)
    assert "at least once" in message
    assert "rows of writes that failed" in message
