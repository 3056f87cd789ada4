"""On an object store: commits are put if absent, and nothing needs a rename or a lock.

Runs where a server of the S3 protocol is installed: ``pip install "moto[server]" s3fs``.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from snapshot.errors import AlreadyExistsError
from tablestore import lifecycle, open_local
from tablestore.compact import compact
from tablestore.opened import OpenedTable
from tablestore.write import Writer
from tests.parts import SCHEMA, rows_of, run_here, write
from tests.rig import changes

server = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")


def serve(mine: Connection) -> None:
    """Serve until told to stop. In a process of its own, since delta-rs waits with Python's lock held."""
    logging.disable()
    running: Any = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
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
