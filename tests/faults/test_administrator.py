"""What an administrator does to a topic while writers, ``tail`` and a stream are at work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import TableStoreError
from snapshot.schema.system_columns import COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.local.table import open_local
from tablestore.options.read_options import ReadOptions, ScanMode
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tests.harness.local_writes import drain, publisher_of, write
from tests.harness.log_audit import repair, verify
from tests.harness.table_audit import assert_log_is_table
from tests.harness.table_harness import PARTITIONS, TableHarness, changes

pytestmark = pytest.mark.crash
BOUND_SECONDS = 30.0
LARGE_ROWS = 24
NEVER = 1 << 62


@pytest.fixture
def rig(kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Iterator[TableHarness]:
    made = TableHarness(tmp_path / "t", kafka.bootstrap_servers, topic(), {"publish__driver_rows_max": 15})
    yield made
    made.close()


class Tail:
    """A reader that follows a table, in a thread, until it has been given so many rows."""

    def __init__(self, path: Path, *, rows: int, after: int = 0) -> None:
        self.rows: list[tuple[int, int, str | None]] = []
        self._error: TableStoreError | None = None
        self._thread = threading.Thread(target=self._follow, args=(path, after, rows), daemon=True)
        self._thread.start()

    def wait_for(self, snapshot: int) -> None:
        """Wait until a row of this snapshot has come."""
        until = time.monotonic() + BOUND_SECONDS
        while not any(row[0] == snapshot for row in self.rows):
            assert self._error is None, self._error
            assert time.monotonic() < until, f"snapshot {snapshot} does not come"
            time.sleep(0.02)

    def wait_until_done(self) -> None:
        """Wait until it has been given what it waits for."""
        self._thread.join(BOUND_SECONDS)
        assert not self._thread.is_alive(), "not all rows come"
        assert self._error is None, self._error

    def wait_for_error(self) -> TableStoreError:
        """Wait until it fails."""
        self._thread.join(BOUND_SECONDS)
        assert self._error is not None, f"tail is silent for {BOUND_SECONDS:.0f} s"
        return self._error

    def _follow(self, path: Path, after: int, rows: int) -> None:
        try:
            for batch in open_local(path).tail(snapshot=after + 1, poll_seconds=0.02):
                self.rows += [(row[COMMIT_VERSION], row["id"], row["v"]) for row in batch.to_pylist()]
                if len(self.rows) >= rows:
                    return
        except TableStoreError as error:
            self._error = error


def stream_of(path: Path) -> SnapshotStream:
    """Make the source of ``read_stream`` without Spark."""
    options = ReadOptions(path=str(path), change_feed=True, scan_mode=ScanMode.EARLIEST)
    return SnapshotStream(options, feed_schema(TableContext.open(str(path)).spec))


def micro_batch(stream: SnapshotStream, start: Any) -> tuple[list[int], Any]:
    """Do what Spark does for a micro-batch; gives the snapshots read, and the offset to go on from."""
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows = [row for part in stream.partitions(start, end) for b in stream.read(part) for row in b.to_pylist()]
    return sorted({row[COMMIT_VERSION] for row in rows}), end


def read_until_it_looks(stream: SnapshotStream, start: Any) -> None:
    """Ask for micro-batches for as long as the stream may take to look at its topic."""
    until = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < until:
        micro_batch(stream, start)


def feed_of(batches: dict[int, int]) -> list[tuple[int, int, str | None]]:
    """Give what ``changes`` of batches make of a feed, by snapshot and rows."""
    return sorted((n, *change) for n, rows in batches.items() for change in changes(n, rows))


def test_partitions_that_are_added_while_writers_and_readers_are_at_work_stay_empty_and_are_warned_of_once(
    rig: TableHarness, caplog: pytest.LogCaptureFixture
) -> None:
    writer, other = rig.writer(), rig.writer()
    write(writer, changes(1))
    expected = feed_of({1: 10, 2: 10, 3: 10, 4: LARGE_ROWS, 5: 10})
    tail, stream = Tail(rig.path, rows=len(expected)), stream_of(rig.path)
    tail.wait_for(1)
    found, offset = micro_batch(stream, stream.initialOffset())
    assert found == [1]
    rig.admin.create_partitions([NewPartitions(rig.topic, 5)])[rig.topic].result()
    # One that owns the log, one that takes it over, a large snapshot by tasks, and a recovery.
    write(writer, changes(2))
    write(other, changes(3))
    write(writer, changes(4, LARGE_ROWS))
    rig.commit(5)
    assert rig.recover() == [5]
    tail.wait_until_done()
    assert sorted(tail.rows) == expected
    assert micro_batch(stream, offset)[0] == [2, 3, 4, 5]
    rig.audit()
    assert verify(rig.table).ok
    assert drain(rig.servers, rig.topic, 5)[2:] == [[], [], []]
    assert caplog.text.count("has 5 partitions, the table 2 buckets") == 1


def test_a_topic_made_anew_under_writer_tail_and_stream_is_an_error_for_each_and_repair_brings_all_of_it_back(
    rig: TableHarness,
) -> None:
    writer, late = rig.writer(), rig.writer()
    write(late, changes(1))
    write(writer, changes(2))
    tail, stream = Tail(rig.path, rows=NEVER), stream_of(rig.path)
    tail.wait_for(2)
    _, offset = micro_batch(stream, stream.initialOffset())
    rig.remake_topic()
    began = time.monotonic()
    for one in (writer, late):
        with pytest.raises(TableStoreError, match=rig.topic):
            write(one, changes(3))
    assert time.monotonic() - began < BOUND_SECONDS
    assert drain(rig.servers, rig.topic, PARTITIONS) == [[], []]
    assert rig.topic in str(tail.wait_for_error())
    with pytest.raises(TableStoreError, match=rig.topic):
        read_until_it_looks(stream, offset)

    committed = rig.table.files.latest()
    rig.close()
    publisher = publisher_of(rig.table)
    assert repair(rig.table, publisher).ok
    publisher.discard()
    # A snapshot without rows keeps the id of the topic that was made again.
    kept = rig.table.files.latest()
    assert kept == committed + 1
    assert rig.table.newest_visible() == kept
    write(rig.writer(), changes(kept + 1))
    assert_log_is_table(rig.path, rig.servers, rig.topic, PARTITIONS)
    assert verify(rig.table).ok
    # Readers that begin again go on where they were; those that begin at the first snapshot get everything.
    newest = rig.table.files.latest()
    again, whole = Tail(rig.path, after=2, rows=10 * (newest - 3)), Tail(rig.path, rows=10 * (newest - 1))
    for reader in (again, whole):
        reader.wait_until_done()
    assert sorted(Counter(row[0] for row in whole.rows).items()) == [(n, 10) for n in range(1, newest + 1) if n != kept]
    assert sorted(again.rows) == sorted(row for row in whole.rows if row[0] > 2)
