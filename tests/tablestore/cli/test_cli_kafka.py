"""``tablestore kafka``: a broker that outlives the command, told in friendly words."""

from __future__ import annotations

import os
import signal
import time

import pytest
from typer.testing import CliRunner

from log_system.jars import cache_home
from log_system.local_kafka import detached, installation
from log_system.local_kafka.server import free_port
from tablestore.cli import app
from tests.harness.waiting import PATIENCE_SECONDS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command with a state of the test's own; stop what it left running."""
    if "TABLESTORE_KAFKA_JARS" not in os.environ:
        installation.kafka_command("512m")
        jars = cache_home() / f"kafka-{installation.KAFKA_VERSION}"
        (tmp_path / "tablestore").mkdir()
        (tmp_path / "tablestore" / jars.name).symlink_to(jars)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    yield lambda *arguments: CliRunner().invoke(app, ["kafka", *arguments])
    if detached.status():
        detached.stop()


def test_start_status_stop(run, tmp_path):
    port = free_port()
    started = run("start", "--port", str(port), "--data", str(tmp_path / "mine"))
    assert started.exit_code == 0, started.output
    assert f"127.0.0.1:{port}" in started.output
    assert (tmp_path / "mine" / "broker.log").exists()

    shown = run("status")
    assert (shown.exit_code, f"127.0.0.1:{port}" in shown.output, "yes" in shown.output) == (0, True, True)

    again = run("start", "--port", str(free_port()))
    assert again.exit_code == 1
    assert "is already running on" in again.stderr
    assert "Traceback" not in again.output

    stopped = run("stop")
    assert (stopped.exit_code, "Stopped Kafka" in stopped.output) == (0, True)
    assert run("status").exit_code == 3


def test_stop_with_nothing_to_stop_is_one_red_line(run):
    result = run("stop")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: local Kafka: there is nothing to stop: no broker of 'tablestore kafka start' is running.\n"
    )


def test_a_broker_that_died_is_not_running_and_the_next_one_finds_its_data(run):
    port = str(free_port())
    first = run("start", "--port", port)
    assert first.exit_code == 0, first.output
    broker = detached.status()
    assert broker is not None
    os.kill(broker.pid, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_SECONDS
    while detached.status() is not None and time.monotonic() < end:
        time.sleep(0.05)
    assert run("status").exit_code == 3
    again = run("start", "--port", port)
    assert again.exit_code == 0, again.output


def test_a_process_id_that_somebody_else_has_now_is_left_alone(run, tmp_path):
    state = detached.Detached(pid=os.getpid(), port=1, data_dir=str(tmp_path), started=0.0)
    detached._write(state)
    assert detached.status() is None
    assert run("stop").exit_code == 1
