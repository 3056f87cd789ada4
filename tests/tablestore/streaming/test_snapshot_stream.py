"""Promise 4: the streaming source, asked the way Spark asks, gives whole, published snapshots and nothing else."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import CorruptedError, DataLostError, InvalidInputError, NotFoundError
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.snapshot_stream import BEFORE_FULL, SnapshotStream, feed_schema
from tablestore.write.publish import recover
from tablestore.write.writer import Writer
from tests.harness.local_writes import SCHEMA, make_table, run_here, write
from tests.harness.spark_tables import delete_records

PARTITIONS = 2
ALL = ReadAllAvailable()


class Source:
    """A table with three published snapshots of 4, 2 and 3 changes, and streams over it."""

    def __init__(self, table: TableContext) -> None:
        self.table = table
        self.publisher = table.log.publisher()
        self.writer = Writer(table, self.publisher)
        write(self.writer, [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
        write(self.writer, [(1, None), (2, "x")])
        write(self.writer, [(5, "e"), (6, "f"), (7, "g")])

    def stream(self, **options: object) -> SnapshotStream:
        named = {name.replace("_", "-"): str(value) for name, value in options.items()}
        given = parse_read_options({"path": self.table.path, "readChangeFeed": "true", **named})
        return SnapshotStream(given, feed_schema(self.table.spec))

    def batches(self, stream: SnapshotStream, limit: ReadLimit = ALL) -> list[list[tuple[int, int, str, Any]]]:
        """Run the stream as Spark does until nothing is left; each micro-batch as (snapshot, id, change type, v)."""
        start, found = stream.initialOffset(), []
        while (end := stream.latestOffset(start, limit)) != start:
            found.append(self.rows(stream, start, end))
            start = end
        return found

    def rows(self, stream: SnapshotStream, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        read = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        rows = [row for batch in read for row in batch.to_pylist()]
        return sorted((row[COMMIT_VERSION], row["id"], row[CHANGE_TYPE], row["v"]) for row in rows)


@pytest.fixture(params=["json", "arrow", "no log"])
def source(
    request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]
) -> Iterator[Source]:
    path, kind = tmp_path / "t", request.param
    if kind == "no log":
        key = {"primary_key": ["id"], "partition_by": []}
        yield Source(create_drop.create(TableDefinition(str(path), SCHEMA, **key, options={"bucket": 2})))
    else:
        made = Source(make_table(path, kafka.bootstrap_servers, topic(), log__format=kind))
        yield made
        made.publisher.discard()


with_a_log = pytest.mark.parametrize("source", ["json", "arrow"], indirect=True)


def snapshots(batches: list[list[Any]]) -> list[list[int]]:
    return [sorted({row[0] for row in batch}) for batch in batches]


def test_g17_full_begins_with_the_rows_and_goes_on_with_every_change_after_them(source: Source) -> None:
    """A new stream returns the rows of a snapshot and then every later change, without overlap."""
    stream = source.stream()
    first = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.initialOffset()["snapshot"] == BEFORE_FULL
    rows = source.rows(stream, stream.initialOffset(), first)
    assert [row[1:] for row in rows] == [
        (2, "insert", "x"), (3, "insert", "c"), (4, "insert", "d"),
        (5, "insert", "e"), (6, "insert", "f"), (7, "insert", "g"),
    ]  # fmt: skip
    write(source.writer, [(3, None)])
    assert [row[:3] for row in source.rows(stream, first, stream.latestOffset(first, ALL))] == [(4, 3, "delete")]


def test_earliest_gives_every_change_once(source: Source) -> None:
    batches = source.batches(source.stream(scan_mode="earliest"))
    assert [row[:3] for batch in batches for row in batch] == [
        (1, 1, "update_postimage"), (1, 2, "update_postimage"), (1, 3, "update_postimage"), (1, 4, "update_postimage"),
        (2, 1, "delete"), (2, 2, "update_postimage"),
        (3, 5, "update_postimage"), (3, 6, "update_postimage"), (3, 7, "update_postimage"),
    ]  # fmt: skip


def test_latest_gives_only_what_comes_after(source: Source) -> None:
    stream = source.stream(scan_mode="latest")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    assert stream.partitions(start, start) == []
    write(source.writer, [(9, "z")])
    assert snapshots([source.rows(stream, start, stream.latestOffset(start, ALL))]) == [[4]]


def test_from_snapshot_begins_with_its_changes(source: Source) -> None:
    assert snapshots(source.batches(source.stream(scan_mode="from-snapshot", snapshot=2))) == [[2, 3]]
    with pytest.raises(NotFoundError, match="from snapshot 0 to 4"):
        source.stream(scan_mode="from-snapshot", snapshot=9).initialOffset()


def test_from_the_newest_snapshot_which_no_writer_has_published_yet(source: Source) -> None:
    """A compaction gets into the log with the next write. What follows it, or its rows, can be asked for before."""
    assert compact(source.table, run_here) is not None
    following = source.stream(scan_mode="from-snapshot", snapshot=5)
    start = following.initialOffset()
    whole = source.stream(scan_mode="from-snapshot-full", snapshot=4)
    assert [row[:3] for batch in source.batches(whole) for row in batch] == [(4, n, "insert") for n in range(2, 8)]
    assert following.latestOffset(start, ALL) == start
    write(Writer(source.table, None), [(9, "z")])
    assert source.table.files.latest() == 5
    if source.publisher is not None:
        with pytest.raises(NotFoundError, match="from snapshot 0 to 4"):
            source.stream(scan_mode="from-snapshot-full", snapshot=5).initialOffset()
        assert following.latestOffset(start, ALL) == start, "not published"
        recover(source.table, source.publisher)
    assert [row[:3] for batch in source.batches(following) for row in batch] == [(5, 9, "update_postimage")]


def test_from_timestamp_begins_with_the_first_snapshot_that_is_not_older(source: Source) -> None:
    time = source.table.files.snapshot(3).timestamp_ms
    assert snapshots(source.batches(source.stream(scan_mode="from-timestamp", timestamp=time)))[0][-1] == 3
    assert source.batches(source.stream(scan_mode="from-timestamp", timestamp=time + 60_000)) == []


def test_a_limit_on_rows_never_parts_a_snapshot(source: Source) -> None:
    stream = source.stream(scan_mode="earliest")
    assert snapshots(source.batches(stream, ReadMaxRows(1))) == [[1], [2], [3]]
    assert snapshots(source.batches(stream, ReadMaxRows(5))) == [[1], [2, 3]]
    assert snapshots(source.batches(stream, ReadMaxRows(6))) == [[1, 2], [3]]


def test_a_limit_on_snapshots_holds(source: Source) -> None:
    stream = source.stream(scan_mode="earliest", maxSnapshotsPerTrigger=2)
    assert snapshots(source.batches(stream, stream.getDefaultReadLimit())) == [[1, 2], [3]]


def test_available_now_ends_where_it_was_told(source: Source) -> None:
    stream = source.stream(scan_mode="earliest")
    stream.prepareForTriggerAvailableNow()
    write(source.writer, [(9, "z")])
    assert snapshots(source.batches(stream)) == [[1, 2, 3]]


@with_a_log
def test_a_committed_snapshot_is_not_seen_before_it_is_published(source: Source) -> None:
    stream = source.stream(scan_mode="latest")
    start = stream.initialOffset()
    write(Writer(source.table, None), [(9, "z")])
    assert stream.latestOffset(start, ALL) == start
    recover(source.table, source.publisher)
    assert stream.latestOffset(start, ALL)["snapshot"] == 4


def expire_log(source: Source) -> None:
    log, entry = source.table.log.settings, source.table.index.get(2)
    assert entry is not None
    delete_records(log.client.bootstrap_servers, log.topic, dict(enumerate(entry.ends)))


@with_a_log
def test_where_the_logs_retention_has_passed_the_files_are_read_and_that_is_said(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = source.batches(source.stream(scan_mode="earliest"))
    expire_log(source)
    with caplog.at_level(logging.WARNING, "tablestore"):
        assert [[row[:3] for row in b] for b in source.batches(source.stream(scan_mode="earliest"))] == [
            [row[:3] for row in b] for b in wanted
        ]
    assert "the log's retention has passed snapshots 1 to 3" in caplog.text
    assert snapshots(source.batches(source.stream(scan_mode="from-snapshot", snapshot=3))) == [[3]]


@with_a_log
def test_a_gap_that_nothing_can_fill_is_an_error(source: Source) -> None:
    expire_log(source)
    stream = source.stream(scan_mode="latest")
    end = stream.initialOffset()
    changes = Path(source.table.path) / "_changes"
    DeltaTable(changes).create_checkpoint()
    (changes / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(DataLostError, match="Start a new query with scan_mode='full'"):
        stream.partitions({**end, "snapshot": 0}, end)


def test_without_the_columns_of_the_change_feed_a_key_table_is_refused(source: Source) -> None:
    with pytest.raises(InvalidInputError, match="readChangeFeed"):
        SnapshotStream(parse_read_options({"path": source.table.path}), source.table.spec.schema)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scan-mode": "newest"}, "expected 'full' or 'latest' or 'earliest' or 'from-snapshot' or"),
        ({"scan-mode": "from-snapshot"}, "needs option 'snapshot'"),
        ({"scan-mode": "from-snapshot-full"}, "needs option 'snapshot'"),
        ({"scan-mode": "latest", "snapshot": "3"}, "needs 'scan-mode'='from-snapshot'"),
        ({"snapshot": "1", "timestamp": "2024-01-01"}, "exclude each other"),
        ({"maxRowsPerTrigger": "0"}, "expected a whole number of 1 or more, got '0'"),
        ({"maxRowPerTrigger": "5"}, "Did you mean 'maxRowsPerTrigger'"),
        ({"readChangeFeed": "yes"}, "expected 'true' or 'false', got 'yes'"),
        ({"timestamp": "yesterday"}, "ISO-8601"),
    ],
)
def test_a_wrong_read_option_says_what_to_do(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_read_options({"path": "t", **options})


def test_a_read_needs_a_path() -> None:
    with pytest.raises(InvalidInputError, match="option 'path' is required"):
        parse_read_options({})


@pytest.mark.parametrize("source", ["no log"], indirect=True)
def test_a_query_that_has_read_more_than_the_table_holds_says_so(source: Source, tmp_path: Path) -> None:
    path, copy = Path(source.table.path), tmp_path / "copy"
    shutil.copytree(path, copy)
    write(source.writer, [(8, "h")])
    offset = source.stream().latestOffset(source.stream(scan_mode="earliest").initialOffset(), ALL)
    assert offset["snapshot"] == 4
    shutil.rmtree(path)
    copy.rename(path)
    with pytest.raises(CorruptedError, match="has read up to snapshot 4, but the table ends with 3: it was set back"):
        source.stream().latestOffset(offset, ALL)
