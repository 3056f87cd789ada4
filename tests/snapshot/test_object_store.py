"""On an object store: commits are put if absent, and nothing needs a rename or a lock.

The store is a server of the S3 protocol on loopback.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import s3fs
from pyspark.sql.streaming.datasource import ReadAllAvailable

from log_system.local_kafka.owned import LocalKafka
from snapshot.errors import (
    AlreadyExistsError,
    CorruptedError,
    DataLostError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from snapshot.storage import Storage
from tablestore import create_local, open_local
from tablestore.connectors.kafka.message_codec import EncodedMessages
from tablestore.connectors.spark.message_staging import StagingFile, staged
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.table_definition import TableDefinition
from tablestore.maintenance.compact import compact
from tablestore.maintenance.expire_snapshots import Rule, expire, rules_of
from tablestore.normalize import segments
from tablestore.normalize.keyed_state import StateSpec
from tablestore.normalize.operator import NormalizedSplit
from tablestore.options.read_options import parse_read_options
from tablestore.service.watcher import TableWatcher
from tablestore.streaming.snapshot_stream import SnapshotStream, feed_schema
from tablestore.write.writer import Writer
from tests.harness.faults import Crash
from tests.harness.local_writes import SCHEMA, publisher_of, rows_of, run_here, write
from tests.harness.lossy_proxy import drop_next, faulty, requests_since
from tests.harness.table_harness import changes
from tests.tablestore.normalize.test_keyed_state import Log, spec_in, split
from tests.tablestore.normalize.test_keyed_state import changes as changes_of

ONE_ROW_MAX = 7
"""Requests for a write of one row: two puts, and what proves that the row is in the table before it is acknowledged."""
OPEN_ROW_MAX = 11
"""The same by a table that is open: also what its columns are now, and what is compacted."""
READ_MAX, READ_SNAPSHOT_MAX = 30, 4
"""Requests to open a table and merge one-row snapshots: of these, an entry and a file for each."""
COMPACT_MAX, COMPACT_SNAPSHOT_MAX = 45, 4
PUBLISHED_ROW_MAX = 12
"""The same with a log in Kafka: also the file that is published, the index, and whose log it is."""
LOOKUP_MAX = 6
"""Requests for the row of a key in a table that is open: what is newest in its two Delta logs, and a file."""
LOOK_MAX = 2
"""Requests of a stream to find nothing new: whether the newest entry is still there, and the next one still absent."""
SERVICE_LOOK_MAX = 4
"""Requests of ``tablestore serve`` for each of its looks at a table: the same for the table and for its log."""


def make(path: str, key: tuple[str, ...]) -> TableContext:
    options = {"bucket": "2"}
    return create_drop.create(TableDefinition(path, SCHEMA, primary_key=key, options=options))


def rules_now(table: TableContext, keep_last: int) -> tuple[Rule, ...]:
    """Return rules by this machine's clock, which dates the commits; the store's has only seconds."""
    return rules_of(table, timedelta(0), keep_last, int(time.time() * 1000))


def test_a_table_is_made_written_compacted_and_read(lake: str) -> None:
    path = f"{lake}/a/orders"
    table = make(path, ("id",))
    with pytest.raises(AlreadyExistsError):
        make(path, ("id",))
    writer = Writer(table, None)
    for number in range(1, 23):
        assert write(writer, changes(number)).id == number
    assert rows_of(TableContext.open(path)) == dict(changes(22))
    assert rows_of(table, 7) == dict(changes(7))
    assert compact(TableContext.open(path), run_here).id == 23
    write(writer, changes(24))
    assert rows_of(TableContext.open(path)) == dict(changes(24))
    found = {row["id"]: row["v"] for row in open_local(path).to_arrow().to_pylist()}
    assert found == dict(changes(24))


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_answers_to_commits_that_are_lost_lose_no_file(lake: str, key: tuple[str, ...]) -> None:
    """The client repeats a PUT whose answer was lost, and is told that the object exists."""
    path, endpoint = f"{lake}/orders", os.environ["AWS_ENDPOINT_URL"]
    writer = Writer(make(path, key), None)
    for number in range(1, 4):
        if number == 2:
            drop_next(endpoint, "_delta_log/")
        assert write(writer, [(number, "v")]).id == number
    for entry in ("_delta_log/", "_changes/_delta_log/") if key else ("_delta_log/",):
        drop_next(endpoint, entry)
    assert compact(TableContext.open(path), run_here) is not None
    drop_next(endpoint, "_delta_log/")
    table = TableContext.open(path)
    assert expire(table, rules_now(table, 1)).oldest == 4
    assert write(writer, [(9, "after")]) is not None
    assert sorted(open_local(path).to_arrow()["id"].to_pylist()) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    "faults", [{"drops_each_put": True}, {"slow_every": 3}], ids=["every-answer-lost", "slow-down"]
)
def test_a_store_that_loses_or_refuses_requests_all_the_time_loses_and_doubles_nothing(
    lake: str, kafka: LocalKafka, topic: Callable[[], str], faults: dict[str, Any]
) -> None:
    path = f"{lake}/orders"
    named = {"bucket": "2", "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    with faulty(os.environ["AWS_ENDPOINT_URL"], **faults):
        table = create_drop.create(
            TableDefinition(path, SCHEMA, primary_key=("id",), log_system="kafka", options=named)
        )
        publisher = publisher_of(table)
        writer = Writer(table, publisher)
        for number in range(1, 6):
            assert write(writer, changes(number)).id == number
        assert compact(TableContext.open(path), run_here).id == 6
        assert write(writer, changes(7)).id == 7
        publisher.discard()
        table = TableContext.open(path)
        assert expire(table, rules_now(table, 2)).oldest == 6
        assert rows_of(TableContext.open(path)) == dict(changes(7))
        assert {row["id"]: row["v"] for row in open_local(path).to_arrow().to_pylist()} == dict(changes(7))
    report = TableContext.open(path).log.verify()
    assert report.ok, str(report)
    assert TableContext.open(path).newest_visible() == 7
    assert report.records == sum(len(changes(number)) for number in (1, 2, 3, 4, 5, 7))


@pytest.mark.parametrize(("key", "finish"), [(("id",), "create"), ((), "drop")])
def test_whoever_looks_while_a_table_is_dropped_finds_all_of_it_or_none(
    lake: str, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], finish: str
) -> None:
    """A store removes objects one by one; a drop that dies in between is finished by the next one."""
    path, real, dice, looks = f"{lake}/orders", Storage.remove_files, random.Random(finish), []
    writer = Writer(make(path, key), None)
    for number in range(1, 23):
        write(writer, [(number, "v")])
    opened = TableContext.open(path)

    def look() -> None:
        for of in (lambda: open_local(path).count(), opened.files.latest):
            try:
                looks.append(of())
            except NotFoundError:
                looks.append(None)

    def one_by_one(storage: Storage, names: Sequence[str]) -> None:
        for name in dice.sample(names, len(names)):
            real(storage, [name])
            look()
        raise Crash

    look()
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "remove_files", one_by_one)
        with pytest.raises(Crash):
            create_drop.drop(opened)
    look()
    assert set(looks) == {22, None}
    if finish == "drop":
        create_drop.drop_at(path)
        assert Storage.at(path).names() == []
    assert rows_of(make(path, key)) == {}


def test_a_file_is_created_by_who_lost_the_answer(lake: str) -> None:
    storage = Storage.at(f"{lake}/folder")
    with faulty(os.environ["AWS_ENDPOINT_URL"], drops_each_put=True):
        assert storage.put_new("file", b"mine")
        assert not storage.put_new("file", b"another's")
        storage.check_put_new()
    assert storage.read("file") == b"mine"


def test_a_refused_commit_says_that_it_may_have_been_made_and_what_to_do(lake: str) -> None:
    """A client repeats a request whose answer was lost, also after its rights have ended."""
    writer = Writer(make(f"{lake}/orders", ("id",)), None)
    write(writer, [(1, "a")])
    with (
        faulty(os.environ["AWS_ENDPOINT_URL"], denies="_delta_log/"),
        pytest.raises(OutcomeUnknownError, match=r"may have been made: .*the credentials. Then look whether .*batch="),
    ):
        write(writer, [(2, "b")])
    write(writer, [(2, "b")])
    assert rows_of(TableContext.open(f"{lake}/orders")) == {1: "a", 2: "b"}


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_reads_and_compactions_cost_a_bounded_number_of_requests_for_each_snapshot(
    lake: str, key: tuple[str, ...]
) -> None:
    endpoint, path = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders"
    writer = Writer(make(path, key), None)
    for number in range(1, 9):
        write(writer, [(number, "v")])
        if number in (4, 8):
            requests_since(endpoint)
            assert open_local(path).count() == number
            seen = requests_since(endpoint)
            assert len(seen) <= READ_MAX + READ_SNAPSHOT_MAX * number, "\n".join(seen)
    compact(TableContext.open(path), run_here)
    seen = requests_since(endpoint)
    assert len(seen) <= COMPACT_MAX + COMPACT_SNAPSHOT_MAX * 8, "\n".join(seen)


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_opening_a_table_reads_its_logs_and_asks_for_nothing_else(lake: str, key: tuple[str, ...]) -> None:
    """A table without a key has no commit table beside its root; both places are looked at, at the same time."""
    endpoint, path = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders"
    make(path, key)
    requests_since(endpoint)
    open_local(path)
    seen = requests_since(endpoint)
    assert [sum(kind in each for each in seen) for kind in ("_last_checkpoint", "list-type")] == [2, 2], seen
    assert [each for each in seen if "_delta_log" not in each or each.startswith("HEAD")] == []


def test_a_lookup_in_an_open_table_looks_once_and_sees_what_others_wrote(lake: str) -> None:
    endpoint, path = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders"
    context = make(path, ("id",))
    writer = Writer(context, None)
    write(writer, [(1, "a")])
    compact(context, run_here)
    table = open_local(path)
    assert table.get(1) == {"id": 1, "v": "a"}
    write(writer, [(1, "b"), (2, "b")])
    assert table.get(1) == {"id": 1, "v": "b"}
    requests_since(endpoint)
    assert table.get(1) == {"id": 1, "v": "b"}
    seen = requests_since(endpoint)
    assert len(seen) <= LOOKUP_MAX, "\n".join(seen)
    compact(context, run_here)
    assert table.get(2) == {"id": 2, "v": "b"}


def test_large_files_are_read_in_ranges_without_asking_for_their_size(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshot.merge.remote_files._WHOLE_BYTES_MAX", 0)
    endpoint, path = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders"
    table = make(path, ("id",))
    writer = Writer(table, None)
    write(writer, [(number, "v" * number) for number in range(100)])
    compact(table, run_here)
    write(writer, [(1, "b")])
    reader = open_local(path)
    requests_since(endpoint)
    assert reader.get(99) == {"id": 99, "v": "v" * 99}
    assert {row["id"]: row["v"] for row in reader.to_arrow().to_pylist()} == {
        number: "b" if number == 1 else "v" * number for number in range(100)
    }
    assert [each for each in requests_since(endpoint) if each.startswith("HEAD")] == []
    store = s3fs.S3FileSystem()
    for file in (each for each in store.find(path) if "/part-" in each):
        whole = store.cat(file)
        # Without its end, with half of it, and without anything of it.
        for kept in (whole[:-5], whole[: len(whole) // 2], whole[:4]):
            store.pipe(file, kept)
            with pytest.raises(CorruptedError, match=rf"a file is damaged: s3://.*: expected {len(whole)} bytes, got"):
                open_local(path).to_arrow()
        store.rm(file)
    with pytest.raises(DataLostError, match=r"s3://.*/part-.*A file of the snapshot is missing"):
        open_local(path).to_arrow()


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_a_stream_that_finds_nothing_new_asks_for_two_files_lists_nothing_and_rests(
    lake: str, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    endpoint, path, rests = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders", list[float]()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=rests.append)
    monkeypatch.setattr("tablestore.streaming.snapshot_stream.time", clock)
    table = make(path, key)
    write(Writer(table, None), [(1, "a")])
    options = parse_read_options({"path": path, "readChangeFeed": "true"})
    stream = SnapshotStream(options, feed_schema(table.spec))
    reached = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert rests == []
    for _ in range(3):
        requests_since(endpoint)
        began = time.monotonic()
        # Spark asks for both, every time.
        assert stream.latestOffset(reached, ReadAllAvailable()) == stream.reportLatestOffset() == reached
        assert 0 < rests.pop() <= 4 * (time.monotonic() - began)
        seen = requests_since(endpoint)
        assert [request for request in seen if "list-type" in request] == []
        assert len(seen) <= LOOK_MAX, "\n".join(seen)


def test_the_service_looks_at_a_table_with_few_requests_and_lists_nothing(
    lake: str, kafka: LocalKafka, topic: Callable[[], str]
) -> None:
    endpoint, path = os.environ["AWS_ENDPOINT_URL"], f"{lake}/orders"
    named = {"bucket": "2", "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    table = create_drop.create(TableDefinition(path, SCHEMA, primary_key=("id",), log_system="kafka", options=named))
    publisher = publisher_of(table)
    for number in range(4):
        write(Writer(table, publisher), [(number, "v")])
    compact(table, run_here)
    write(Writer(table, publisher), [(4, "v")])
    publisher.discard()
    watcher = TableWatcher(path)
    assert watcher.attempt()
    requests_since(endpoint)
    assert watcher.attempt()
    seen = requests_since(endpoint)
    assert len(seen) <= SERVICE_LOOK_MAX, "\n".join(seen)
    assert not any("list-type" in request for request in seen)
    assert (watcher.state.newest, watcher.state.published, watcher.state.merged) == (6, 6, 4)
    watcher.close()


def check_requests(writer: Writer, most: int) -> None:
    """Check each write of one row after the first."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    write(writer, [(1, "v")])
    for number in range(2, 6):
        requests_since(endpoint)
        write(writer, [(number, "v")])
        seen = requests_since(endpoint)
        assert [request for request in seen if "list-type" in request] == []
        assert len(seen) <= most, "\n".join(seen)


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_a_write_of_one_row_costs_few_requests_and_lists_nothing(lake: str, key: tuple[str, ...]) -> None:
    check_requests(Writer(make(f"{lake}/orders", key), None), ONE_ROW_MAX)


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "append"])
def test_a_write_of_one_row_by_an_open_table_costs_few_requests_and_lists_nothing(
    lake: str, key: tuple[str, ...]
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with create_local(f"{lake}/orders", "id bigint, v string", primary_key=key, options={"bucket": 2}) as table:
        table.write([{"id": 1, "v": "v"}])
        for number in range(2, 6):
            requests_since(endpoint)
            table.write([{"id": number, "v": "v"}])
            seen = requests_since(endpoint)
            assert [request for request in seen if "list-type" in request] == []
            assert len(seen) <= OPEN_ROW_MAX, "\n".join(seen)


def test_publishing_a_row_costs_few_requests_and_lists_nothing(
    lake: str, kafka: LocalKafka, topic: Callable[[], str]
) -> None:
    named = {"bucket": "2", "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic()}
    table = create_drop.create(
        TableDefinition(f"{lake}/orders", SCHEMA, primary_key=("id",), log_system="kafka", options=named)
    )
    publisher = publisher_of(table)
    check_requests(Writer(table, publisher), PUBLISHED_ROW_MAX)
    publisher.discard()


def test_a_listing_is_never_answered_from_what_was_seen_before(lake: str) -> None:
    storage, other = Storage.at(f"{lake}/folder"), Storage.at(f"{lake}/folder")
    assert other.names() == []
    assert not other.exists("one.json")
    writer = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    writer.pipe_file(f"{lake}/folder/one.json", b"1")
    assert other.names() == ["one.json"]
    assert other.exists("one.json")
    writer.rm_file(f"{lake}/folder/one.json")
    assert storage.names() == other.names() == []
    assert not other.exists("one.json")


def test_a_store_that_does_not_answer_is_unavailable(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(f"{lake}/orders", ("id",))
    writer = Writer(table, None)
    write(writer, [(1, "v")])
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    storage, message = (
        Storage.at(f"{lake}/orders"),
        EncodedMessages(None, pa.array([b"v"], pa.large_binary()), None, None),
    )

    def stage() -> None:
        file = StagingFile(storage, "messages.arrow", None)
        file.send(message)
        file.finish()

    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: storage.read("_log/_intent"),
        "copy": lambda: storage.copy("a.parquet", "b.parquet"),
        "stage messages": stage,
        "read messages": lambda: list(staged(storage, "messages.arrow")),
        "open a state": lambda: changes_of(records(spec_in(storage), 0, 1).read()),
    }
    for name, attempt in attempts.items():
        with pytest.raises(UnavailableError, match=r"cannot be (read|written|listed)"):
            pytest.fail(f"{name} gave {attempt()}")


def records(spec: StateSpec, start: int, end: int) -> NormalizedSplit:
    return split(spec, Log(((1, "a"), (2, "a"), (1, "b"), (2, None), (3, "c"))), start, end)


def test_a_normalized_stream_keeps_its_state_in_the_store(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each segment is written when it is made, and read back from the store, as another executor does.
    monkeypatch.setattr(segments, "_MEMORY_BYTES", 0)
    storage = Storage.at(f"{lake}/states")
    found = []
    for start, end in ((0, 2), (2, 4), (2, 4), (4, 5)):
        segments._OPEN.clear()
        found.append(sorted(changes_of(records(spec_in(storage), start, end).read())))
    second = [(1, "a", 1), (1, "b", 2), (2, "a", 3)]
    assert found[1:] == [second, second, [(3, "c", 0)]]
    names = storage.child("0").names()
    assert [name for name in names if name.endswith(".json")] == ["2.json", "4.json", "5.json"]
    before = storage.child("0").names()
    storage.child("0").delete(*(name for name in before if name.endswith(".arrow")))
    segments._OPEN.clear()
    with pytest.raises(DataLostError, match="is gone"):
        changes_of(records(spec_in(storage), 4, 5).read())
    assert not list(Path(tempfile.gettempdir()).glob("tablestore-state-*")), "local copies are left"


def test_several_writers_at_once_lose_nothing(lake: str) -> None:
    path = f"{lake}/orders"
    make(path, ("id",))

    def work(name: int) -> list[int]:
        writer = Writer(TableContext.open(path), None)
        found = [write(writer, [(name, f"{number}"), (100 * name + number, "row")]) for number in range(5)]
        return [snapshot.id for snapshot in found]

    with ThreadPoolExecutor(3) as pool:
        snapshots = [each for ids in pool.map(work, (1, 2, 3)) for each in ids]
    assert sorted(snapshots) == list(range(1, 16))
    rows = {100 * name + number: "row" for name in (1, 2, 3) for number in range(5)}
    assert rows_of(TableContext.open(path)) == rows | dict.fromkeys((1, 2, 3), "4")


def test_snapshots_expire_and_a_dropped_table_leaves_nothing(lake: str) -> None:
    path = f"{lake}/orders"
    table = make(path, ("id",))
    writer = Writer(table, None)
    for number in range(1, 6):
        write(writer, changes(number))
    compact(TableContext.open(path), run_here)
    for number in range(7, 10):
        write(writer, changes(number))
    table = TableContext.open(path)
    report = expire(table, rules_now(table, 3))
    assert (report.oldest, report.data_files > 0) == (7, True)
    table = TableContext.open(path)
    assert rows_of(table) == dict(changes(9))
    assert rows_of(table, 8) == dict(changes(8))
    with pytest.raises(NotFoundError):
        rows_of(table, 6)
    create_drop.drop(table)
    assert s3fs.S3FileSystem().find(lake) == []
