"""A Spark application killed with all its processes while it writes: what it wrote is there once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connectors.harness.tasks import DiesOnce
from tests.connectors.harness.wire import Record, Wire
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROWS = 400
MICRO_BATCHES = 10
ROOT = Path(__file__).parent.parent.parent


def launch(wire: Wire, source: str, target: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.connectors.harness.spark_worker", wire.servers, source, target, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), DiesOnce.MARK: str(folder / "dies")}
    with (folder / "log").open("ab") as log:
        # A session of its own, so that Spark's Java and Python processes die with it.
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def test_b42_exactly_once_survives_the_death_of_spark(wire: Wire, made: Callable[..., str], tmp_path: Path) -> None:
    """After the death of a Python worker in its task, and of all of Spark, each row is in the topic once."""
    source, target = made(2), made(2)
    mark = tmp_path / "dies"
    mark.touch()
    wire.send(source, [Record(json.dumps({"n": n}).encode(), partition=n % 2) for n in range(ROWS)])
    process = launch(wire, source, target, tmp_path)
    until = time.monotonic() + 240
    # Not seconds, nor a read of the topic, whose end moves on as long as somebody writes: a fast machine would be done.
    enough = random.randrange(2, MICRO_BATCHES // 2)
    while len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) < enough:
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        assert time.monotonic() < until, "nothing is written"
        time.sleep(0.05)
    assert not mark.exists(), "no worker has died"
    assert "crashed" in (tmp_path / "log").read_text(), "Spark has not noticed"
    time.sleep(random.random() / 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(wire.values(target)) < ROWS, "killed too late to tell anything"
    assert launch(wire, source, target, tmp_path).wait(PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text()[-2000:]
    found = Counter(json.loads(value or b"")["n"] for value in wire.values(target))
    assert found == Counter(range(ROWS))
