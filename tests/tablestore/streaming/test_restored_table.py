"""A table that was restored from an older copy and has grown since uses ids again that its readers have read."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from log_system.kafka.client.topic import delete_topic
from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import CorruptedError, DataLostError
from snapshot.storage import Storage
from tablestore import create_local, open_local
from tablestore.context import TableContext
from tablestore.local import tail
from tablestore.options.read_options import parse_read_options
from tablestore.streaming.consumers import Consumers
from tablestore.streaming.eventual_stream import EventualStream
from tablestore.streaming.normalized_stream import NormalizedStream
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tests.harness.log_audit import repair_anew

ALL = ReadAllAvailable()
OTHER = "the table now has another commit of that number .* it was set back .* scan_mode='full'"


class Restorable:
    """A table of which a copy was kept after snapshot 2, and which has been written on since, up to snapshot 4."""

    def __init__(self, path: Path, kind: str, **kafka: object) -> None:
        self.path, self._copy = path, path.parent / "copy"
        key = ["id"] if kind != "append" else None
        more: dict[str, object] = {"log.consistency": "eventual"} if kind == "eventual" else {}
        system = "kafka" if kafka else None
        options = {"bucket": 2, "compaction.auto": False, **kafka, **more}
        create_local(path, "id int, v string", primary_key=key, log_system=system, options=options).close()
        self.write("a", "b")
        shutil.copytree(path, self._copy)
        self.write("c", "d")

    @property
    def context(self) -> TableContext:
        return TableContext.open(str(self.path))

    def write(self, *values: str) -> None:
        with open_local(self.path) as table:
            for value in values:
                table.write([{"id": 1, "v": value}, {"id": 2, "v": value}])

    def restore(self, *values: str) -> None:
        """Put the copy back, with a log that was made anew from it, and write on."""
        shutil.rmtree(self.path)
        shutil.copytree(self._copy, self.path)
        table = self.context
        if table.log.publishes:
            delete_topic(table.log.settings.client, table.log.settings.topic)
            assert repair_anew(table).ok
        self.write(*values)

    def stream(self, kind: type[SnapshotStream] = SnapshotStream, **options: object) -> SnapshotStream:
        named = {name.replace("_", "-"): str(value) for name, value in options.items()}
        given = parse_read_options({"path": str(self.path), "readChangeFeed": "true", **named})
        return kind(given, feed_schema(self.context.spec))


@pytest.fixture(params=["key", "append", "kafka"])
def table(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str]) -> Restorable:
    log = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    return Restorable(tmp_path / "t", request.param, **(log if request.param == "kafka" else {}))


in_files = pytest.mark.parametrize("table", ["key", "append"], indirect=True)
MORE = [("x", "y"), ("x", "y", "z")]
"""As many snapshots as were read, and more."""


@pytest.mark.parametrize("values", MORE, ids=["as-long", "longer"])
def test_a_query_started_again_on_a_restored_table_says_so(table: Restorable, values: tuple[str, ...]) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert end["snapshot"] == 4
    table.restore(*values)
    with pytest.raises(CorruptedError, match=f"has read up to snapshot 4, but {OTHER}"):
        table.stream().latestOffset(end, ALL)


@in_files
@pytest.mark.parametrize("values", MORE, ids=["as-long", "longer"])
def test_a_running_query_and_a_tail_say_so(table: Restorable, values: tuple[str, ...]) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(end, ALL) == end
    reader = open_local(table.path).tail(scan_mode="earliest", poll_seconds=0.01)
    next(reader)
    table.restore(*values)
    with pytest.raises(CorruptedError, match=OTHER):
        stream.latestOffset(end, ALL)
    with pytest.raises(CorruptedError, match=OTHER):
        next(reader)


@in_files
def test_changes_of_a_reader_that_paused_are_not_mixed_with_those_of_other_commits(
    table: Restorable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_TOGETHER_ROWS", 1)
    reader = open_local(table.path).changes(0)
    next(reader)
    table.restore("x", "y")
    with pytest.raises(CorruptedError, match=OTHER):
        list(reader)


@in_files
def test_a_tail_of_a_table_that_was_set_back_does_not_wait_until_it_has_grown(table: Restorable) -> None:
    reader = open_local(table.path).tail(scan_mode="earliest", poll_seconds=0.01)
    next(reader)
    table.restore("x")
    with pytest.raises(CorruptedError, match="has read up to snapshot 4, but the table ends with 3: it was set back"):
        next(reader)


def test_a_query_that_has_read_only_what_the_copy_has_goes_on(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(4))
    assert end["snapshot"] == 2
    table.restore("x", "y", "z")
    assert table.stream().latestOffset(end, ALL)["snapshot"] == table.context.files.latest()


def test_a_micro_batch_that_was_planned_before_is_not_repeated_with_other_rows(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest")
    start = stream.latestOffset(stream.initialOffset(), ReadMaxRows(4))
    end = stream.latestOffset(start, ALL)
    table.restore("x", "y", "z")
    with pytest.raises(CorruptedError, match=OTHER):
        table.stream().partitions(start, end)


@in_files
def test_nor_one_of_which_the_copy_has_only_a_part(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    table.restore("x")
    with pytest.raises(CorruptedError, match="but the table ends with 3"):
        table.stream().partitions(start, end)


def test_the_initial_rows_are_those_of_the_snapshot_that_the_checkpoint_names(table: Restorable) -> None:
    stream = table.stream()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    table.restore("x", "y", "z")
    with pytest.raises(CorruptedError, match=OTHER):
        table.stream().partitions(start, end)


@pytest.mark.parametrize("kind", [EventualStream, NormalizedStream])
def test_so_are_those_of_an_eventual_log(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], kind: type[EventualStream]
) -> None:
    log = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    table = Restorable(tmp_path / "t", "eventual", **log)
    stream = table.stream(kind)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end["snapshot"] == 4
    assert stream.latestOffset(end, ALL) == end
    table.restore("x", "y", "z")
    with pytest.raises(CorruptedError, match=OTHER):
        table.stream(kind).partitions(start, end)


def test_a_consumer_remembers_the_commit_and_a_new_query_by_its_name_says_so(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest", consumer="c")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    stream.commit(end)
    held = Consumers(Storage.at(str(table.path))).get("c")
    assert held is not None
    assert held.commit == table.context.files.fingerprint(4) != ""
    table.restore("x", "y", "z")
    Consumers(Storage.at(str(table.path))).put("c", 4, table=held.table, commit=held.commit)
    again = table.stream(scan_mode="full", consumer="c")
    with pytest.raises(CorruptedError, match=f"{OTHER}; a streaming query needs a new checkpoint and consumer 'c' re"):
        again.latestOffset(again.initialOffset(), ALL)
    with open_local(table.path) as restored:
        restored.consumers.reset("c", 4)
    again = table.stream(consumer="c")
    assert again.latestOffset(again.initialOffset(), ALL)["snapshot"] == table.context.files.latest()


def test_offsets_and_consumers_without_a_commit_go_on(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    del end["commit"]
    assert table.stream().latestOffset(end, ALL) == end
    Consumers(Storage.at(str(table.path))).put("c", 4)
    assert table.stream(consumer="c").initialOffset() == {**end, "commit": ""}
    table.write("e")
    assert table.stream().latestOffset(end, ALL)["snapshot"] == 5


def test_an_offset_whose_commit_has_expired_goes_on(table: Restorable) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(4))
    with open_local(table.path) as other:
        other.compact()
        other.maintenance.expire(older_than="0 s", keep_last=1)
    again = table.stream()
    newest = again.latestOffset(end, ALL)
    # Planning says what is lost.
    with pytest.raises(DataLostError, match="scan_mode='full'"):
        again.partitions(end, newest)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    found: Counter[str] = Counter()
    real = Storage.read

    def counted(storage: Storage, *args: Any) -> Any:
        found["reads"] += 1
        return real(storage, *args)

    monkeypatch.setattr(Storage, "read", counted)
    return found


@in_files
def test_a_query_and_a_tail_that_wait_look_for_the_next_snapshot_only(table: Restorable, reads: Counter[str]) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    reads.clear()
    for _ in range(10):
        assert stream.latestOffset(end, ALL) == end
    assert reads["reads"] == 20, "the next entry, and whether the newest is still there"


@pytest.mark.parametrize("table", ["kafka"], indirect=True)
def test_a_query_that_waits_for_the_log_reads_the_index_only(table: Restorable, reads: Counter[str]) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    reads.clear()
    for _ in range(10):
        assert stream.latestOffset(end, ALL) == end
    assert reads["reads"] == 20


@in_files
def test_planning_a_new_snapshot_costs_no_read_more(
    table: Restorable, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = table.stream(scan_mode="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    table.write("e")
    reads.clear()
    new = stream.latestOffset(end, ALL)
    stream.partitions(end, new)
    with_check = reads["reads"]
    table.write("f")
    monkeypatch.setattr(type(stream._feed), "check", lambda *_: None)
    reads.clear()
    stream.partitions(new, stream.latestOffset(new, ALL))
    assert reads["reads"] == with_check
