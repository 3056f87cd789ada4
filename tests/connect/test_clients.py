"""Clients of a Connect server: one without Java; those that die, as processes of the server do, and write once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tablestore import TableStore
from tests.connectors.harness.wire import Wire
from tests.crash.kill_points import KillPoint, set_trap
from tests.harness.connect_server import TOKEN, ConnectServer
from tests.harness.spark_tables import AVAILABLE, forget_last_commit, frame, make, rows
from tests.harness.table_audit import audit
from tests.harness.waiting import PATIENCE_SECONDS

FIRST = {1: "a", 2: "b", 3: "c"}
CLIENT = """
import sys
from tablestore import TableStore, session
path, servers, topic = sys.argv[1:]
remote = session(config={"spark.sql.shuffle.partitions": 3})
assert remote.conf.get("spark.sql.shuffle.partitions") == "3"
options = {"kafka.bootstrap.servers": servers, "kafka.topic": topic, "bucket": 2}
table = TableStore.create(remote, path, "id bigint, v string", primary_key="id", log_system="kafka", options=options)
table.write([{"id": 1, "v": "a"}])
table.write(remote.range(1, 4).selectExpr("id", "'b' AS v"))
assert table.verify().ok
print(sorted(map(tuple, table.read().collect())))
"""


@pytest.fixture
def source(remote: SparkSession, tmp_path: Path) -> TableStore:
    return make(remote, tmp_path / "source")


@pytest.fixture
def sink(remote: SparkSession, wire: Wire, tmp_path: Path, topic: Callable[[], str]) -> TableStore:
    return make(remote, tmp_path / "sink", wire.servers, topic())


def client(server: ConnectServer, *words: str) -> subprocess.Popen[str]:
    """Start a client in a process of its own."""
    command = [sys.executable, "-m", "tests.connect.client", server.url, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check(table: TableStore, wire: Wire) -> None:
    """The log has each change of the table once, by strangers' reading and by ours."""
    assert table.options.log is not None
    audit(Path(table.path), wire.servers, table.options.log.kafka.topic, table.options.buckets)
    assert table.verify().ok


def test_a_client_needs_no_java_and_no_more_than_the_address(
    server: ConnectServer, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", CLIENT, str(tmp_path / "t"), wire.servers, topic()]
    env = os.environ | {"SPARK_REMOTE": server.url, "JAVA_HOME": str(tmp_path / "none"), "PATH": str(tmp_path)}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert ran.stdout.strip() == "[(1, 'b'), (2, 'b'), (3, 'b')]", ran.stderr


def test_a_wrong_token_is_refused_and_leaves_no_session(server: ConnectServer) -> None:
    right = server.url
    program = f"""
import sys
from snapshot.errors import InvalidInputError
from tablestore import session
for url in ({right.replace(TOKEN, "wrong")!r}, {right.split("/;")[0]!r}, {right!r}):
    try:
        print(session(remote=url).range(2).count())
    except InvalidInputError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    *refused, count = done.stdout.splitlines()
    assert count == "2", done.stderr
    assert len(refused) == 2
    for words in refused:
        assert re.match(r"localhost:\d+: the Spark Connect server refused the token: ", words), words
        assert "wrong" not in words


@pytest.mark.crash
@pytest.mark.parametrize(("point", "unpublished"), [("commit:after", 1), ("end:after", 1), ("commit:before", 0)])
def test_a_client_that_dies_leaves_what_recover_finishes(
    server: ConnectServer, sink: TableStore, wire: Wire, point: str, unpublished: int
) -> None:
    sink.write([{"id": key, "v": value} for key, value in FIRST.items()])
    with client(server, sink.path, point) as dying:
        assert dying.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert len(sink.recover()) == unpublished
    assert rows(sink.read()) == FIRST | (dict.fromkeys((4, 5), "d") if unpublished else {})
    check(sink, wire)


def dying_at(point: str) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that sets a trap in the process of the server that writes the batch."""

    def arm(batch: DataFrame) -> DataFrame:
        set_trap(KillPoint(point, 1))
        return batch

    return arm


@pytest.mark.crash
@pytest.mark.parametrize("point", ["commit:after", "end:after"])
def test_a_stream_whose_process_dies_in_the_server_goes_on_with_its_checkpoint(
    source: TableStore, sink: TableStore, wire: Wire, tmp_path: Path, point: str
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run(transform: Callable[[DataFrame], DataFrame] | None = None) -> None:
        stream = source.read_stream(max_snapshots=1)
        query = sink.write_stream(stream, checkpoint=checkpoint, trigger=AVAILABLE, transform=transform)
        assert query.awaitTermination(PATIENCE_SECONDS)

    source.write(frame(source.read().sparkSession, [(1, "a"), (2, "b")]))
    run()
    source.write(frame(source.read().sparkSession, [(3, "c")]))
    with pytest.raises(PySparkException):
        run(dying_at(point))
    assert sink.snapshots()[0].id == 2
    run()
    forget_last_commit(checkpoint)
    run()
    assert sink.snapshots()[0].id == 2
    assert rows(sink.read()) == FIRST
    check(sink, wire)


@pytest.mark.crash
def test_a_stream_goes_on_without_its_client_and_another_client_takes_it_over(
    server: ConnectServer, remote: SparkSession, source: TableStore, sink: TableStore, wire: Wire, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with client(server, sink.path, source.path, str(checkpoint)) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "started\n"
        dying.kill()
    source.write(frame(remote, [(1, "a")]))
    until = time.monotonic() + PATIENCE_SECONDS
    while sink.count() < 1 and time.monotonic() < until:
        time.sleep(0.5)
    assert rows(sink.read()) == {1: "a"}
    source.write(frame(remote, [(2, "b")]))
    query = sink.write_stream(source.read_stream(), checkpoint=checkpoint, trigger=AVAILABLE)
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert rows(sink.read()) == {1: "a", 2: "b"}
    check(sink, wire)
