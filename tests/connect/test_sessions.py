"""``session(remote=...)``: what is refused before anything is sent."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.connect.session import SparkSession as RemoteSession

import tablestore
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import InvalidInputError, UnavailableError
from tablestore import connectors
from tablestore.session import register, session
from tablestore.spark import connect
from tests.harness.connect_server import ConnectServer
from tests.harness.spark_tables import make


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"remote": "localhost:15002"}, r"remote: expected the URL .*'sc://host:15002', got 'localhost:15002'"),
        ({"remote": "local[2]"}, r"remote: expected the URL .*got 'local\[2\]'"),
        ({"remote": "sc://h:p/;token=hush"}, r"remote: expected a URL such as .*got one for 'h:p'"),
        ({"remote": "sc://h", "master": "local[2]"}, r"master: the Spark Connect server .* decides that"),
        ({"remote": "sc://h", "warehouse": "w"}, r"warehouse: the Spark Connect server .* decides that"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        session(**given)
    assert "hush" not in str(caught.value)


def test_a_server_that_does_not_answer_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_WAIT_S", 0.2)
    with pytest.raises(UnavailableError, match=rf"{LOOPBACK}:\d+: no Spark Connect server answered") as caught:
        session(remote=f"sc://{LOOPBACK}:{free_port()}/;token=hush")
    assert "hush" not in str(caught.value)


def test_missing_packages_are_named_with_the_extra_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UnavailableError, match=r"grpc.*Install 'tablestore\[connect\]'"):
        session(remote="sc://localhost")


def test_a_server_without_the_package_says_so_and_streams_do_not_start_with_one_that_was_sent(tmp_path: Path) -> None:
    with ConnectServer(tmp_path, is_bare=True) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        remote = RemoteSession.builder.remote(server.url).getOrCreate()
        try:
            with pytest.raises(UnavailableError, match=r"No module named 'tablestore'.*PYSPARK_PYTHON"):
                register(remote)
            # In a program of its own, since Spark allows no remote session beside one of the other tests.
            program = f"from tablestore import session; session(remote={server.url!r})"
            ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
            assert re.search(
                r"InvalidInputError: .*expected a Spark Connect server with Delta .*connect\.md", ended.stderr
            )
            remote.addArtifacts(_packed(tmp_path), pyfile=True)
            register(remote)
            table = make(remote, tmp_path / "table")
            table.write(remote.range(3).selectExpr("id", "'a' AS v"))
            assert table.count() == 3
            streams = (
                table.read_stream,
                lambda: table.write_stream(remote.readStream.format("rate").load(), checkpoint=tmp_path / "c"),
                lambda: connectors.read_stream(remote, "kafka", "id bigint", {}),
                lambda: connectors.read_changes(remote, "id bigint", {}),
                lambda: connectors.write_stream(remote.readStream.format("rate").load(), "kafka", {}),
            )
            for start in streams:
                with pytest.raises(InvalidInputError, match=r"stream: .*addArtifacts.*Install tablestore"):
                    start()
        finally:
            remote.stop()


def _packed(folder: Path) -> str:
    root = Path(tablestore.__file__).parent.parent
    packages = folder / "packages"
    for name in ("tablestore", "log_system", "snapshot"):
        shutil.copytree(root / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(str(folder / "packed"), "zip", packages)
