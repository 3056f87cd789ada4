"""On an object store: commits are put if absent, and nothing needs a rename or a lock.

The store is a server of the S3 protocol on loopback.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from snapshot.errors import AlreadyExistsError, NotFoundError
from tablestore import lifecycle, open_local
from tablestore.compact import compact
from tablestore.expire import expire, rules_of
from tablestore.opened import OpenedTable
from tablestore.write import Writer
from tests.parts import SCHEMA, rows_of, run_here, write
from tests.rig import changes


def serve(mine: Connection) -> None:
    """Serve until told to stop. In a process of its own, since delta-rs waits with Python's lock held."""
    logging.disable()
    running: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    mine.send(running.get_host_and_port())
    mine.poll(None)
    running.stop()


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket; fsspec and delta-rs learn from the environment where it is."""
    context = multiprocessing.get_context("spawn")
    theirs, mine = context.Pipe()
    process = context.Process(target=serve, args=(mine,), daemon=True)
    process.start()
    host, port = theirs.recv()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("lake")
    yield "s3://lake"
    s3fs.S3FileSystem.clear_instance_cache()
    theirs.send("stop")
    process.join()


def make(path: str, key: tuple[str, ...]) -> OpenedTable:
    options = {"bucket": "2"}
    return lifecycle.create(path, SCHEMA, primary_key=key, partition_by=(), log_system=None, options=options)


def test_a_table_is_made_written_compacted_and_read(lake: str) -> None:
    path = f"{lake}/a/orders"
    table = make(path, ("id",))
    with pytest.raises(AlreadyExistsError):
        make(path, ("id",))
    writer = Writer(table, None)
    for number in range(1, 23):
        assert write(writer, changes(number)).id == number
    assert rows_of(OpenedTable.open(path)) == dict(changes(22))
    assert rows_of(table, 7) == dict(changes(7))
    assert compact(OpenedTable.open(path), run_here).id == 23
    write(writer, changes(24))
    assert rows_of(OpenedTable.open(path)) == dict(changes(24))
    found = {row["id"]: row["v"] for row in open_local(path).to_arrow().to_pylist()}
    assert found == dict(changes(24))


def test_several_writers_at_once_lose_nothing(lake: str) -> None:
    path = f"{lake}/orders"
    make(path, ("id",))

    def work(name: int) -> list[int]:
        writer = Writer(OpenedTable.open(path), None)
        found = [write(writer, [(name, f"{number}"), (100 * name + number, "row")]) for number in range(5)]
        return [snapshot.id for snapshot in found]

    with ThreadPoolExecutor(3) as pool:
        snapshots = [each for ids in pool.map(work, (1, 2, 3)) for each in ids]
    assert sorted(snapshots) == list(range(1, 16))
    rows = {100 * name + number: "row" for name in (1, 2, 3) for number in range(5)}
    assert rows_of(OpenedTable.open(path)) == rows | dict.fromkeys((1, 2, 3), "4")


def test_snapshots_expire_and_a_dropped_table_leaves_nothing(lake: str) -> None:
    path = f"{lake}/orders"
    table = make(path, ("id",))
    writer = Writer(table, None)
    for number in range(1, 6):
        write(writer, changes(number))
    compact(OpenedTable.open(path), run_here)
    for number in range(7, 10):
        write(writer, changes(number))
    table = OpenedTable.open(path)
    report = expire(table, rules_of(table, timedelta(0), 3))
    assert (report.oldest, report.data_files > 0) == (7, True)
    table = OpenedTable.open(path)
    assert rows_of(table) == dict(changes(9))
    assert rows_of(table, 8) == dict(changes(8))
    with pytest.raises(NotFoundError):
        rows_of(table, 6)
    lifecycle.drop(table)
    assert s3fs.S3FileSystem().find("lake") == []
