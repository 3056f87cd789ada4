"""A streaming read shows whole, published snapshots, each once, from wherever it is told to begin."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from log_system.files.log import FilesSplit
from log_system.kafka.client import range_reader
from log_system.kafka.publisher.transactional_publisher import KafkaPublisher
from log_system.kafka.reader.range_planner import LogSplit
from snapshot.errors import DataLostError, InvalidInputError
from tablestore import TableStore
from tablestore.context import TableContext
from tablestore.options.read_options import ReadOptions, ScanMode
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.writer import Writer
from tests.harness.faults import Crash, failing
from tests.harness.local_writes import make_table, publisher_of, write
from tests.harness.own_messages import own_messages
from tests.harness.spark_tables import Follower, changes, delete_records, fold, frame, log_options, make, rows, versions


@pytest.fixture(params=["json", "arrow", "no log"])
def table(request, spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    """A key table with three snapshots: two inserts; an update, a delete and an insert; an insert."""
    more = {} if request.param == "no log" else {"log__format": request.param}
    made = make(spark, tmp_path / "t", servers, "" if request.param == "no log" else topic(), **more)
    made.write(frame(spark, [(1, "a"), (2, "b")]))
    made.write(changes(spark, [(1, "A", "insert"), (2, None, "delete"), (3, "c", "insert")]))
    made.write(frame(spark, [(4, "d")]))
    return made


# With DELETE the columns beside the key are as the log's format has them.
FIRST = {(1, "update_postimage", 1), (2, "update_postimage", 1)}
SECOND = {(1, "update_postimage", 2), (2, "delete", 2), (3, "update_postimage", 2)}
THIRD = {(4, "update_postimage", 3)}
FOURTH = {(5, "update_postimage", 4), (1, "delete", 4)}
ROWS = {(1, "insert", 3), (3, "insert", 3), (4, "insert", 3)}


def seen(feed: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    found = {(row[0], row[2], row[3]) for row in feed}
    assert len(found) == len(feed), f"a change came twice: {feed}"
    return found


@pytest.mark.parametrize(("table", "modes"), [("json", 7), ("arrow", 2), ("no log", 2)], indirect=["table"])
def test_each_scan_mode_begins_where_it_says_and_goes_on_where_it_stopped(
    spark: SparkSession, table: TableStore, tmp_path: Path, modes: int
) -> None:
    """Only one kind of log goes through all of them: test_snapshot_stream.py does, for each kind, without Spark."""
    second = table.snapshots()[1]
    begins: list[tuple[dict[str, Any], set[tuple[Any, ...]]]] = [
        ({}, ROWS),
        ({"scan_mode": "earliest"}, FIRST | SECOND | THIRD),
        ({"scan_mode": "latest"}, set()),
        ({"scan_mode": "from-snapshot", "snapshot": 2}, SECOND | THIRD),
        ({"scan_mode": "from-snapshot", "snapshot": 4}, set()),
        ({"scan_mode": "from-timestamp", "timestamp": second.time}, SECOND | THIRD),
        ({"scan_mode": "from-timestamp", "timestamp": second.timestamp_ms + 10**6}, set()),
    ][:modes]
    readers = [
        Follower(tmp_path / f"checkpoint-{n}", lambda options=options: table.read_stream(**options))
        for n, (options, _) in enumerate(begins)
    ]
    feeds = [reader.rows() for reader in readers]
    assert [seen(feed) for feed in feeds] == [expected for _, expected in begins]
    assert fold(feeds[0]) == fold(feeds[1]) == rows(table.read())

    table.write(changes(spark, [(5, "e", "insert"), (1, None, "delete")]))
    later = [reader.rows() for reader in readers]
    assert [seen(feed) for feed in later] == [FOURTH] * len(begins)
    assert fold(feeds[0] + later[0]) == rows(table.read())
    assert readers[0].rows() == []


def test_an_append_table_streams_plain_rows_and_by_change_feed(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    for number, name in enumerate(("", topic())):
        table = make(spark, tmp_path / f"t{number}", servers, name, key=False)
        table.write(frame(spark, [(1, "a"), (1, "a")]))
        plain = Follower(
            tmp_path / f"p{number}", lambda path=table.path: spark.readStream.format("tablestore").load(path)
        )
        feed = Follower(tmp_path / f"f{number}", lambda table=table: table.read_stream(scan_mode="earliest"))
        assert plain.rows() == [(1, "a"), (1, "a")]
        table.write(frame(spark, [(2, "b")]))
        assert plain.rows() == [(2, "b")]
        assert sorted(row[:4] for row in feed.rows()) == [
            (1, "a", "insert", 1),
            (1, "a", "insert", 1),
            (2, "b", "insert", 2),
        ]


def test_a_micro_batch_holds_whole_snapshots_whatever_the_limits(
    spark: SparkSession, servers: str, tmp_path: Path, topic: Callable[[], str]
) -> None:
    for number, name in enumerate(("", topic())):
        table = make(spark, tmp_path / f"t{number}", servers, name, compaction__auto="false")
        for size in (3, 1, 2, 5, 1):
            table.write(frame(spark, [(k, "a") for k in range(size)]))
        limits: list[tuple[dict[str, Any], list[list[int]]]] = [
            ({"max_rows": 3}, [[1], [2, 3], [4], [5]]),
            ({"max_rows": 4, "max_snapshots": 1}, [[1], [2], [3], [4], [5]]),
            ({"max_snapshots": 2}, [[1, 2], [3, 4], [5]]),
            ({}, [[1, 2, 3, 4, 5]]),
        ]
        for limit, expected in limits if name else limits[:2]:
            stream = lambda limit=limit, table=table: table.read_stream(scan_mode="earliest", **limit)  # noqa: E731
            checkpoint = tmp_path / f"c{number}-{'-'.join(limit)}"
            assert [versions(batch) for batch in Follower(checkpoint, stream).follow()] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scan_mode": "from-snapshot"}, "needs option 'snapshot'"),
        ({"scan_mode": "latest", "snapshot": 1}, "needs 'scan-mode'='from-snapshot'"),
        ({"scan_mode": "newest"}, "'full' or 'latest' or 'earliest'"),
        ({"scan_mode": "from-timestamp", "timestamp": "soon"}, "ISO-8601"),
        ({"max_rows": 0}, "1 or more"),
    ],
)
def test_a_wrong_option_is_refused_when_the_stream_is_made(spark, tmp_path: Path, options, words: str) -> None:
    table = make(spark, tmp_path / "t")
    with pytest.raises(InvalidInputError, match=words):
        table.read_stream(**options)


def test_what_a_query_cannot_begin_with_fails_it(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t")
    beyond = Follower(tmp_path / "c", lambda: table.read_stream(scan_mode="from-snapshot", snapshot=7))
    with pytest.raises(PySparkException, match=r"'snapshot'=7.*snapshot 0 to 1"):
        beyond.rows()
    bare = Follower(tmp_path / "d", lambda: spark.readStream.format("tablestore").load(table.path))
    with pytest.raises(PySparkException, match="readChangeFeed"):
        bare.rows()


def test_a_table_made_anew_is_not_taken_for_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t", key=False)
    table.write(frame(spark, [(1, "a")]))
    reader = Follower(tmp_path / "c", lambda: spark.readStream.format("tablestore").load(str(tmp_path / "t")))
    assert reader.rows() == [(1, "a")]
    table.drop()
    again = make(spark, tmp_path / "t", key=False)
    again.write(frame(spark, [(2, "b")]))
    again.write(frame(spark, [(3, "c")]))
    with pytest.raises(PySparkException, match="created again"):
        reader.rows()


class Stream:
    """A streaming read driven without Spark, by the calls that Spark makes."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.stream = SnapshotStream(
            ReadOptions(path=str(path), change_feed=True, **options), feed_schema(TableContext.open(str(path)).spec)
        )
        self.offset = self.stream.initialOffset()

    def plan(self) -> list[Any]:
        """Plan the next micro-batch and move past it."""
        end = self.stream.latestOffset(self.offset, self.stream.getDefaultReadLimit())
        parts = list(self.stream.partitions(self.offset, end))
        self.offset = end
        return parts

    def rows(self) -> list[tuple[Any, ...]]:
        """Read the next micro-batch."""
        found = [tuple(row.values()) for part in self.plan() for b in self.stream.read(part) for row in b.to_pylist()]
        return sorted(found, key=lambda row: (row[3], row[0]))


@pytest.fixture
def logged(servers: str, tmp_path: Path, topic: Callable[[], str]) -> TableContext:
    """A key table with a log and three snapshots, without Spark."""
    made = make_table(tmp_path / "t", servers, topic(), bucket=2)
    writer = Writer(made, publisher_of(made))
    for number in range(3):
        write(writer, [(key, f"{number}") for key in range(6)])
    return made


def ends(table: TableContext, snapshot: int) -> dict[int, int]:
    entry = table.index.get(snapshot)
    assert entry is not None
    return dict(enumerate(entry.ends))


def test_what_the_logs_retention_has_passed_is_read_from_the_files_with_a_warning(
    logged: TableContext, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    assert {type(part.part) for part in whole.plan()} == {LogSplit}
    whole = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    expected = whole.rows()
    behind = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    ahead = Stream(Path(logged.path), scan_mode=ScanMode.FROM_SNAPSHOT, snapshot=3)
    delete_records(servers, logged.log.settings.topic, ends(logged, 2))
    assert not own_messages(caplog)
    with caplog.at_level(logging.WARNING, "tablestore"):
        assert {type(part.part) for part in behind.plan()} == {FilesSplit}
    assert "retention has passed snapshots 1 to 3" in caplog.text
    again = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    assert again.rows() == expected
    assert {type(part.part) for part in ahead.plan()} == {LogSplit}


def test_the_read_limit_holds_where_index_entries_have_expired(logged: TableContext) -> None:
    logged.index.delete([0, 1])
    stream = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST, rows_max=6)
    assert [[row[3] for row in stream.rows()] for _ in range(4)] == [[1] * 6, [2] * 6, [3] * 6, []]


def test_changes_that_neither_the_log_nor_the_files_hold_are_an_error(logged: TableContext, servers: str) -> None:
    path = Path(logged.path)
    by_entry, by_file = (Stream(path, scan_mode=ScanMode.EARLIEST) for _ in range(2))
    delete_records(servers, logged.log.settings.topic, ends(logged, 1))
    parts = by_file.plan()
    next((path / "_changes").rglob("*.parquet")).unlink()
    with pytest.raises(DataLostError, match="missing"):
        [batch for part in parts for batch in by_file.stream.read(part)]
    (path / "_changes" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(DataLostError, match=r"scan_mode='full'"):
        by_entry.plan()


def test_a_reader_that_the_retention_overtakes_between_plan_and_read_fails_loudly(
    logged: TableContext, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "ANSWER_SECONDS", 2.0)
    stream = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    parts = stream.plan()
    delete_records(servers, logged.log.settings.topic, ends(logged, 3))
    with pytest.raises(DataLostError):
        [batch for part in parts for batch in stream.stream.read(part)]


def test_b47_changes_of_a_stream_come_from_the_log(logged: TableContext) -> None:
    """After its first snapshot, a stream reads the log and not the table's files."""
    stream = Stream(Path(logged.path))
    assert {row[3] for row in stream.rows()} == {3}
    write(Writer(logged, publisher_of(logged)), [(1, "new"), (7, None)])
    gone = [path for path in Path(logged.path).rglob("*.parquet") if "_delta_log" not in path.parts]
    assert gone
    for path in gone:
        path.unlink()
    parts = stream.plan()
    assert {type(part.part) for part in parts} == {LogSplit}
    found = [tuple(row.values())[:4] for part in parts for b in stream.stream.read(part) for row in b.to_pylist()]
    assert sorted(found) == [(1, "new", "update_postimage", 4), (7, None, "delete", 4)]


@pytest.mark.parametrize("log_format", ["json", "arrow"])
@pytest.mark.parametrize("after", [False, True], ids=["before it is sent", "before the gate opens"])
def test_b48_g18_a_snapshot_that_is_not_published_is_not_shown(
    servers: str, tmp_path: Path, topic: Callable[[], str], log_format: str, after: bool
) -> None:
    """Sent records and a committed snapshot are visible only when both are complete."""
    table = make_table(tmp_path / "t", servers, topic(), bucket=2, log__format=log_format)
    full, earliest = Stream(tmp_path / "t"), Stream(tmp_path / "t", scan_mode=ScanMode.EARLIEST)
    writer = Writer(table, publisher_of(table))
    write(writer, [(1, "a")])
    owner, call = (KafkaPublisher, "_publish_here") if after else (KafkaPublisher, "publish")
    with failing(owner, call, after=after), pytest.raises(Crash):
        write(writer, [(1, "b"), (2, "b")])
    assert table.files.latest() == 2
    late = Stream(tmp_path / "t")
    for stream, kind in ((full, "insert"), (late, "insert"), (earliest, "update_postimage")):
        assert [row[:4] for row in stream.rows()] == [(1, "a", kind, 1)]
        assert stream.rows() == []
    write(Writer(table, publisher_of(table)), [(3, "c")])
    for stream in (full, late, earliest):
        assert [(row[0], row[1], row[3]) for row in stream.rows()] == [(1, "b", 2), (2, "b", 2), (3, "c", 3)]


def test_an_index_that_was_lost_holds_readers_up_until_it_is_rebuilt(logged: TableContext) -> None:
    logged.index.delete([2])
    stream = Stream(Path(logged.path), scan_mode=ScanMode.EARLIEST)
    assert {row[3] for row in stream.rows()} == {1}
    assert stream.rows() == []
    again = TableContext.open(logged.path)
    write(Writer(again, publisher_of(again)), [(9, "d")])
    assert {row[3] for row in stream.rows()} == {2, 3, 4}


def test_a_table_option_can_be_given_when_it_is_opened(
    spark: SparkSession, servers: str, tmp_path: Path, topic
) -> None:
    TableStore.create(
        spark, tmp_path / "t", "id bigint, v string", primary_key=["id"], log_system="kafka",
        options=log_options(servers, topic()),
    )  # fmt: skip
    table = TableStore.open(spark, tmp_path / "t", options={"kafka.client.id": "somebody"})
    table.write(frame(spark, [(1, "a")]))
    assert [row[:3] for row in Follower(tmp_path / "c", table.read_stream).rows()] == [(1, "a", "insert")]
