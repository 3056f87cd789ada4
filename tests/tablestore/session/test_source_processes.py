"""Processes of streaming sources: forked, as if Spark had started them, or started as Spark does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.serializers import UTF8Deserializer, read_int, write_with_length
from pyspark.sql import SparkSession

from tablestore.spark.interpreter import PYTHON, worker_interpreter
from tests.harness.spark_tables import frame, make
from tests.harness.waiting import until

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON = "from tablestore.spark.source_processes import start_forking; start_forking(); print(flush=True); input()"
SECRET = "given by the environment"


@dataclass
class Source:
    """A source's process: the one that was started, and the id of the one that serves."""

    started: subprocess.Popen[str]
    pid: int


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder of Spark's; those of pytest have paths that are too long for sockets on some systems."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def environment(folder: Path, **more: str) -> dict[str, str]:
    return (
        os.environ | {PYTHON: sys.executable, "PYTHONPATH": str(Path.cwd()), "SPARK_LOCAL_DIRS": f"{folder},/b"} | more
    )


@pytest.fixture
def daemon(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that leaves one beside it that forks, and ends when its input ends, as Spark's daemon does."""
    words = [sys.executable, "-c", DAEMON]
    with subprocess.Popen(
        words, env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@contextmanager
def source(folder: Path) -> Iterator[tuple[Source, socket.socket]]:
    """Start a source's process as Spark does; yield it with Spark's end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(60)
        told = {"PYTHON_WORKER_FACTORY_PORT": str(door.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        words = [worker_interpreter(in_driver=True), "-m", RUNNER]
        with subprocess.Popen(words, env=environment(folder, **told), stderr=subprocess.PIPE, text=True) as process:
            spark, _ = door.accept()
            with spark:
                with spark.makefile("rwb", buffering=0) as both:
                    assert UTF8Deserializer().loads(both) == SECRET
                    write_with_length(b"ok", both)
                    pid = read_int(both)
                yield Source(process, pid), spark
            process.wait(timeout=60)


def runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_sources_are_forked_with_what_spark_gave_them_and_end_with_its_connection(
    folder: Path, daemon: subprocess.Popen[str]
) -> None:
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in folder.iterdir())
    with source(folder) as (one, _), source(folder) as (other, spark):
        assert one.pid != one.started.pid
        assert runs(one.pid)
        # With a reset, so that the source cannot answer with its error and prints it.
        spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        spark.close()
        assert other.started.wait(timeout=60) == 0
        assert not runs(other.pid)
        assert other.started.stderr is not None
        assert "ConnectionResetError" in other.started.stderr.read()
        assert runs(one.pid)


def test_a_source_ends_with_the_process_that_spark_knows(folder: Path, daemon: subprocess.Popen[str]) -> None:
    with source(folder) as (made, _):
        made.started.terminate()
        until(lambda: not runs(made.pid))
    assert made.started.returncode == -signal.SIGTERM


def test_a_source_ends_with_a_process_that_ended_before_it_heard_of_it(
    folder: Path, daemon: subprocess.Popen[str]
) -> None:
    (address,) = folder.glob("sources-*")
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket(socket.AF_UNIX) as connection:
        door.settimeout(60)
        told = {"PYTHON_WORKER_FACTORY_PORT": str(door.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        given = json.dumps(environment(folder, **told)).encode()
        connection.connect(str(address))
        socket.send_fds(connection, [len(given).to_bytes(4)], [1, 2])
        connection.sendall(given)
        spark, _ = door.accept()
        with spark, spark.makefile("rwb", buffering=0) as both:
            assert UTF8Deserializer().loads(both) == SECRET
            write_with_length(b"ok", both)
            pid = read_int(both)
            # What the source has sent is not read, so its connection is reset.
            connection.close()
            until(lambda: not runs(pid))


def test_nothing_is_left_when_spark_ends(folder: Path, daemon: subprocess.Popen[str]) -> None:
    assert daemon.stdin is not None
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    assert len(children) == 1
    with source(folder) as (made, _):
        daemon.stdin.close()
        until(lambda: not runs(int(children[0])))
        assert runs(made.pid)
    assert not runs(made.pid)


@pytest.mark.parametrize("why", ["no daemon", "a killed daemon", "another path", "a long path", "no folder"])
def test_where_nobody_forks_it_a_source_starts_as_spark_starts_it(
    folder: Path, why: str, request: pytest.FixtureRequest
) -> None:
    more = {PYTHON: "/bin/echo"}
    if why == "a killed daemon":
        killed = request.getfixturevalue("daemon")
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert list(folder.iterdir())
    elif why == "another path":
        request.getfixturevalue("daemon")
        more["PYTHONPATH"] = "/opt"
    elif why == "a long path":
        more["SPARK_LOCAL_DIRS"] = str(folder / ("long" * 40))
    given = environment(folder, **more)
    if why == "no folder":
        del given["SPARK_LOCAL_DIRS"]
    # The interpreter runs the file with Python, and the file what Spark asked for.
    script = Path(worker_interpreter(in_driver=True)).with_name("source_processes.py")
    words = [sys.executable, "-I", "-S", str(script), "-m", RUNNER]
    ran = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["-m", RUNNER]
    if why == "no daemon":
        ran = subprocess.run(
            [worker_interpreter(in_driver=True), "-m", RUNNER], env=given, capture_output=True, text=True, check=True
        )
        assert ran.stdout.split() == words[1:]


def test_a_daemon_takes_the_place_of_one_that_was_killed_and_needs_no_socket(folder: Path) -> None:
    words = [sys.executable, "-c", DAEMON.replace("input()", "")]
    for given in (folder, folder, folder / ("long" * 40)):
        subprocess.run(words, env=environment(given), check=True, input="", text=True)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.skipif(shutil.which("ps") is None, reason="lists processes")
def test_the_sources_of_a_query_are_forked(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path / "t")
    table.write(frame(spark, [(1, "a")]))
    java = str(spark._jvm.java.lang.ProcessHandle.current().pid())

    def waiting() -> list[str]:
        listed = subprocess.run(
            ["ps", "-eww", "-o", "ppid=", "-o", "args="], capture_output=True, text=True, check=True
        ).stdout
        return [line for line in listed.splitlines() if line.split()[0] == java and RUNNER in line]

    query = table.read_stream().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        assert len(waiting()) == 1
        assert "source_processes.py" in waiting()[0]
    finally:
        query.stop()
    until(lambda: not waiting())
