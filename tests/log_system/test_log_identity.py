"""Index, streams and consumers belong to one table and one topic, whatever is made later under the same names."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system.index import LogIndex
from log_system.kafka.audit import log_scan
from log_system.kafka.client import range_reader
from log_system.kafka.client import topic as topics
from log_system.kafka.published_positions import SnapshotEnds
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import DataLostError, NotFoundError, TableReplacedError, UnavailableError
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore import open_local
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.maintenance.expire_snapshots import commit_expiry
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.change_feed import Feed, Position
from tablestore.streaming.consumers import ConsumerProgress, Consumers
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.publish import LogMovedError
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing, preceded
from tests.harness.local_writes import drain, fold, make_table, publisher_of, staged, write
from tests.harness.local_writes import rows_of as table_rows
from tests.harness.log_audit import repair_anew
from tests.harness.spark_tables import delete_records
from tests.harness.table_harness import PARTITIONS, TableHarness, changes
from tests.harness.waiting import PATIENCE_SECONDS


@pytest.fixture
def eventual(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    made = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"log__consistency": "eventual"})
    yield made
    made.close()


def replace_table(rig: TableHarness, *batches: int, **options: str) -> None:
    """Drop the table and make another at its path, with the same topic and as many snapshots as batches."""
    create_drop.drop(rig.table)
    make_table(rig.path, rig.servers, rig.topic, compaction__auto=False, **options)
    rig.write(*batches)


def with_unpublished(rig: TableHarness) -> tuple[TableContext, KafkaPublisher]:
    """Make three snapshots, the last one not published; return the table and a publisher that owns its log."""
    rig.write(1, 2)
    table = rig.table
    publisher = publisher_of(table)
    publisher.take_over()
    rig.commit(3)
    return table, publisher


def index_of(rig: TableHarness) -> dict[str, str]:
    """Return the entries of the index by their file names."""
    return {p.name: p.read_text() for p in (rig.path / "_log").glob("*.json")}


def stream_of(rig: TableHarness, kind: type[SnapshotStream] = SnapshotStream, **more: str) -> SnapshotStream:
    options = {"path": str(rig.path), "readChangeFeed": "true", **more}
    return kind(parse_read_options(options), feed_schema(rig.table.spec))


# A table that was dropped and created again.


@pytest.mark.parametrize("batches", [(), (21, 22), (21, 22, 23)], ids=["shorter", "as-long", "longer"])
def test_a_tail_that_outlives_its_table_says_so_and_reads_nothing_of_the_next(
    rig: TableHarness, batches: tuple[int, ...]
) -> None:
    rig.write(1, 2)
    tail = open_local(rig.path).tail(scan_mode="earliest", poll_seconds=0.05)
    assert sum(next(tail).num_rows for _ in range(1)) == 20
    replace_table(rig, *batches)
    with pytest.raises(TableReplacedError, match="dropped and created again"):
        next(tail)


@pytest.mark.parametrize("look_seconds", [0, 1000], ids=["looks at the topic", "does not look at it"])
def test_a_stream_that_outlives_its_table_or_begins_again_from_its_checkpoint_says_so(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch, look_seconds: float
) -> None:
    monkeypatch.setattr(topics, "LOOK_SECONDS", look_seconds)
    rig.write(1)
    running = stream_of(rig, consumer="c")
    start = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    running.latestOffset(start, ReadAllAvailable())
    assert (found := Consumers(rig.table.files.storage).get("c")) is not None
    assert found.table == rig.table.spec.table_id
    replace_table(rig, 21, 22, 23)
    with pytest.raises(TableReplacedError, match="created again"):
        running.latestOffset(start, ReadAllAvailable())
    with pytest.raises(TableReplacedError, match="new checkpoint"):
        stream_of(rig).latestOffset(start, ReadAllAvailable())
    with pytest.raises(TableReplacedError, match="created again"):
        running.commit(running._offset(Position(1)) | {"snapshot": 2})
    assert Consumers(rig.table.files.storage).get("c") is None


def test_a_consumer_of_the_table_before_is_neither_gone_on_with_nor_kept(rig: TableHarness) -> None:
    rig.write(1, 2)
    Consumers(rig.table.files.storage).put("c", 1, table="another")
    progress = ConsumerProgress(rig.table, "c")
    assert progress.begun() is None
    progress.read(Position(2))
    assert progress.begun() == Position(2)


def test_a_publisher_that_outlives_its_table_publishes_nothing_and_leaves_the_next_ones_index_alone(
    rig: TableHarness,
) -> None:
    old, publisher = with_unpublished(rig)
    replace_table(rig, 21, 22)
    entries = index_of(rig)
    log = drain(rig.servers, rig.topic, PARTITIONS)
    with pytest.raises(TableReplacedError, match=r"dropped and created again. Open it again"):
        Writer(old, publisher).publish(3)
    publisher.discard()
    assert index_of(rig) == entries
    assert drain(rig.servers, rig.topic, PARTITIONS) == log


@pytest.mark.parametrize("batches", [(21,), (21, 22), (21, 22, 23)], ids=["shorter", "as-long", "longer"])
def test_a_publisher_whose_table_is_replaced_before_it_looks_at_the_index_leaves_that_alone(
    rig: TableHarness, batches: tuple[int, ...]
) -> None:
    old, publisher = with_unpublished(rig)
    changed, entries = old.files.published(3, PARTITIONS), dict[str, str]()

    def replace() -> None:
        replace_table(rig, *batches)
        entries.update(index_of(rig))

    ends = SnapshotEnds(old.log.settings, [changed], {})
    with preceded(LogIndex, "get", replace), pytest.raises(TableReplacedError, match="dropped and created again"):
        publisher._list(changed, ends)
    publisher.discard()
    assert index_of(rig) == entries


def test_an_eventual_stream_that_outlives_its_table_says_so(
    eventual: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "LOOK_SECONDS", 0)
    eventual.write(1)
    stream = stream_of(eventual, EventualStream)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    stream.latestOffset(start, ReadAllAvailable())
    replace_table(eventual, 21, 22, log__consistency="eventual")
    with pytest.raises(TableReplacedError, match="created again"):
        stream.latestOffset(start, ReadAllAvailable())


def test_a_task_that_outlives_its_eventual_table_sends_nothing_to_the_topic_of_the_next(
    eventual: TableHarness,
) -> None:
    """It sends before the commit, which finds out that the table is another one."""
    eventual.write(1)
    late = Writer(eventual.table, None).stager(whole_buckets=True)
    replace_table(eventual, 21, log__consistency="eventual")
    log = drain(eventual.servers, eventual.topic, PARTITIONS)
    with pytest.raises(DataLostError, match="expected the topic with id"):
        staged(late, changes(2))
    assert drain(eventual.servers, eventual.topic, PARTITIONS) == log
    create_drop.drop(eventual.table)
    with pytest.raises(NotFoundError, match=eventual.topic):
        staged(late, changes(3))


@pytest.mark.parametrize("partitions", [None, 1, PARTITIONS], ids=["dropped", "with fewer partitions", "with as many"])
@pytest.mark.parametrize(
    ("rig", "step"),
    [
        ({}, "log_system.kafka.audit.verify.stable_ends"),
        ({}, "log_system.kafka.audit.log_scan.committed_records"),
        ({"log__consistency": "eventual"}, "log_system.kafka.audit.verify_eventual.stable_ends"),
    ],
    indirect=["rig"],
    ids=["first", "later", "eventual"],
)
def test_a_comparison_beside_which_the_table_is_replaced_finds_no_difference(
    rig: TableHarness, step: str, partitions: int | None
) -> None:
    rig.write(1, 2)
    table, (module, name) = rig.table, step.rsplit(".", 1)

    def replace() -> None:
        create_drop.drop(rig.table)
        if partitions is not None:
            make_table(rig.path, rig.servers, rig.topic, bucket=partitions, **rig.options)

    with (
        preceded(importlib.import_module(module), name, replace) as happened,
        pytest.raises(NotFoundError if partitions is None else TableReplacedError),
    ):
        table.verify()
    assert happened()


def test_a_process_goes_on_with_the_next_eventual_table_whose_topic_has_more_partitions(eventual: TableHarness) -> None:
    """The producers that its tasks keep know the topic of the table before."""
    eventual.write(1)
    replace_table(eventual, 21, log__consistency="eventual", bucket=PARTITIONS + 2)
    sent = fold(change for partition in drain(eventual.servers, eventual.topic, PARTITIONS + 2) for change in partition)
    assert sent == table_rows(eventual.table) == dict(changes(21))


def test_a_process_sends_to_each_eventual_log_batches_that_its_topic_takes(
    eventual: TableHarness, tmp_path: Path, topic: Callable[[], str]
) -> None:
    large = [(n, secrets.token_hex(500)) for n in range(100)]
    write(eventual.writer(), large)
    other = TableHarness(tmp_path / "other", eventual.servers, topic(), eventual.options)
    other.set_topic({"max.message.bytes": "8192"})
    write(other.writer(), large)
    assert table_rows(other.table) == dict(large)
    other.close()


# A topic that was deleted and made anew.


def test_an_eventual_stream_whose_topic_was_made_anew_fails_and_skips_nothing(eventual: TableHarness) -> None:
    rig = eventual
    rig.write(1, 2, 3)
    stream = stream_of(rig, EventualStream, **{"scan-mode": "earliest"})
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert start["topic"]
    rig.close()
    rig.delete_topic()
    assert repair_anew(rig.table).ok
    again = stream_of(rig, EventualStream)
    # A reader that has been open for a while looks at the topic's id first, and says so in other words.
    said = r"deleted and (recreated since this query.*new checkpoint|created again.*new reader)"
    for reader in (stream, again):
        with pytest.raises(DataLostError, match=said):
            reader.latestOffset(start, ReadAllAvailable())
    # Once the new topic is longer than the one before, its end tells nothing.
    rig.write(*range(4, 10))
    end = again.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLostError, match="deleted and recreated"):
        again.partitions(start, end)


def test_an_offset_of_an_eventual_stream_from_before_topics_were_named_goes_on(eventual: TableHarness) -> None:
    eventual.write(1)
    stream = stream_of(eventual, EventualStream, **{"scan-mode": "earliest"})
    start = {name: value for name, value in stream.initialOffset().items() if name != "topic"}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end["topic"]
    assert len(stream.partitions(start, end)) == PARTITIONS


def test_entries_of_a_topic_that_is_no_more_are_read_from_files(
    rig: TableHarness, caplog: pytest.LogCaptureFixture
) -> None:
    rig.write(1, 2)
    rig.remake_topic()
    with rig.stranger() as producer:
        for partition in range(PARTITIONS):
            for _ in range(30):
                producer.produce(rig.topic, json.dumps({"id": 1, "v": "other"}).encode(), b'{"id": 1}', partition)
    assert rows_of(rig, 0, 2) == sorted([(1, *c) for c in changes(1)] + [(2, *c) for c in changes(2)])
    assert "deleted and recreated after snapshots 1 to 2" in caplog.text
    with pytest.raises(DataLostError, match=r"expected the topic with id .*repair\(\)"):
        rig.write(3)
    assert rig.table.files.latest() == 2


def rows_of(rig: TableHarness, after: int, through: int) -> list[tuple[int, int, str | None]]:
    parts = Feed(rig.table).parts(after, through)
    rows = [row for part in parts for batch in part.read() for row in batch.to_pylist()]
    return sorted((row[COMMIT_VERSION], row["id"], row["v"]) for row in rows)


# What retention or an open transaction hides.


@pytest.mark.parametrize("by", ["recover", "repair"])
def test_an_entry_rebuilt_after_retention_had_passed_one_partition_is_read_from_files(
    rig: TableHarness, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    rig.write(1, 2, 3)
    kept = rig.table.index.get(2)
    assert kept is not None
    delete_records(rig.servers, rig.topic, {0: kept.ends[0]})
    rig.table.index.delete([2, 3])
    if by == "recover":
        assert rig.recover() == [2, 3]
    else:
        assert repair_anew(rig.table).ok
    entry = rig.table.index.get(2)
    assert entry is not None
    assert [(p.rows > 0, p.records > 0) for p in entry.partitions] == [(True, False), (True, True)]
    assert rows_of(rig, 1, 3) == [(n, *change) for n in (2, 3) for change in changes(n)]
    assert "no longer holds snapshot 2 in partitions [0]" in caplog.text


def test_repair_concludes_nothing_while_an_open_transaction_hides_the_log(
    rig: TableHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(range_reader, "ANSWER_SECONDS", 1.0)
    writer = rig.writer()
    writer.recover_once()
    with rig.stranger(f"stranger-{rig.topic}") as producer:
        for partition in range(PARTITIONS):
            producer.produce(rig.topic, b"{}", b"{}", partition)
        producer.flush(PATIENCE_SECONDS)
        write(writer, changes(1))
        write(writer, changes(2))
        rig.close()
        for witnesses in ("all", "register", "none"):
            if witnesses != "all":
                rig.table.index.delete([0, 1, 2])
            if witnesses == "none":
                rig.forget_groups()
            with pytest.raises(UnavailableError, match=r"transaction.*--find-hanging"):
                repair_anew(rig.table)
        producer.abort_transaction()
    assert repair_anew(rig.table).ok
    rig.audit()


# A publisher that was asleep, and one whose log has moved.


@pytest.mark.parametrize("oldest", [2, 3], ids=["the-one-before-expired", "it-expired"])
def test_a_publisher_asleep_before_its_index_entry_does_not_write_it_over(rig: TableHarness, oldest: int) -> None:
    rig.write(1)
    rig.commit(2)
    table = rig.table
    publisher = publisher_of(table)
    publisher.take_over()
    changed = table.files.published(2, PARTITIONS)
    with failing(KafkaPublisher, "_list"), pytest.raises(Crash):
        publisher.publish([changed])
    publisher._register = list(publisher.positions())
    rig.recover()
    rig.write(3)
    rig.forget_groups()
    before = rig.table.index.get(2)
    commit_expiry(rig.table.files, oldest)
    rig.table.index.delete(list(range(oldest)))
    publisher._list(changed, SnapshotEnds(table.log.settings, [changed], {}))
    assert rig.table.index.get(2) == (before if oldest == 2 else None)
    publisher.discard()


def test_an_entry_that_expired_before_it_was_put_does_not_count_as_the_newest(rig: TableHarness) -> None:
    """A publisher was suspended in between, and knows the entry before it."""
    rig.write(1)
    asleep = rig.table.index
    assert asleep.newest() == 1
    for number in (2, 3, 4):
        rig.write(number)
    entry = asleep.get(2)
    assert entry is not None
    commit_expiry(rig.table.files, 4)
    rig.table.index.delete([1, 2])
    asleep.put(entry)
    assert (asleep.get(2), asleep.newest()) == (None, 4)


def test_a_snapshot_committed_after_the_log_moved_goes_to_the_new_brokers_only(rig: TableHarness) -> None:
    rig.write(1)
    moved = rig.servers.replace("127.0.0.1", "localhost")
    assert moved != rig.servers
    writer = rig.writer()
    write(writer, changes(2))
    with (
        AfterRefresh(writer, lambda: move(rig, moved)),
        pytest.raises(LogMovedError, match="the log has moved to 'localhost"),
    ):
        write(writer, changes(3))
    assert rig.table.log.settings.client.bootstrap_servers == moved
    assert rig.recover() == [4]
    reopening = Writer(rig.table, publisher_of(rig.table), lambda table: table.log.publisher())
    write(reopening, changes(5))
    with AfterRefresh(reopening, lambda: move(rig, rig.servers)):
        write(reopening, changes(6))
    assert rig.table.newest_visible() == rig.table.files.latest() == 7
    reopening.discard()
    rig.audit()


def move(rig: TableHarness, servers: str) -> None:
    """Have another handle name other brokers."""
    table = rig.table
    other = Writer(table, publisher_of(table), lambda table: table.log.publisher())
    alter(table, set_options={"kafka.bootstrap.servers": servers}, publish=other.publish)
    other.discard()


class AfterRefresh:
    """Do something right after a writer has refreshed its table, before it commits."""

    def __init__(self, writer: Writer, act: Callable[[], None]) -> None:
        self._writer, self._act = writer, act

    def __enter__(self) -> None:
        real, done = self._writer.stager, []

        def stager(*args: Any, **kwargs: Any) -> Any:
            found = real(*args, **kwargs)
            if not done:
                done.append(self._act())
            return found

        self._writer.stager = stager  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del self._writer.stager
