"""A writer killed by SIGKILL at each step: exactly-once doubles and loses nothing, at-least-once loses nothing."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from log_system.local_kafka.owned import LocalKafka
from tests.connectors.harness.crash_worker import BATCHES, COLUMNS, ROWS, run
from tests.connectors.harness.lab import Lab
from tests.connectors.harness.wire import Wire
from tests.crash.kill_points import PRODUCER_CALLS
from tests.harness.forked import CONTEXT
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash

Topics = Callable[..., str]
CALLS = ("task", "register", *PRODUCER_CALLS, "delete-tree", "done")
POINTS = [f"{call}:{side}" for call in CALLS for side in ("before", "after")]


def start(wire: Wire, topic: str, folder: Path, attempt: str, guarantee: str, point: str = "", hit: int = 1) -> int:
    """Run the query to its end; its exit code is -9 when it was killed."""
    arguments = (wire.servers, topic, str(folder), attempt, guarantee, point, hit)
    process = CONTEXT.Process(target=run, args=arguments)
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None, "the query hangs"
    return process.exitcode


def written(wire: Wire, topic: str) -> list[tuple[int, str]]:
    rows = [json.loads(value or b"") for value in wire.values(topic)]
    return [(row["id"], row["attempt"]) for row in rows]


@pytest.mark.parametrize("point", POINTS)
def test_o39_exactly_once_survives_a_kill_at(wire: Wire, made: Topics, tmp_path: Path, point: str) -> None:
    """`exactly-once`: after a kill at any step and a restart, each row is there once, and each micro-batch
    completely."""
    topic = made(2)
    # The second micro-batch: there is one before it and one after it.
    hit = {"produce": ROWS + 7, "task": 3}.get(point.partition(":")[0], 2)
    assert start(wire, topic, tmp_path, "first", "exactly-once", point, hit) == -signal.SIGKILL
    before = written(wire, topic)
    assert len(before) in {ROWS, 2 * ROWS}, "part of a micro-batch is seen"
    assert start(wire, topic, tmp_path, "second", "exactly-once") == 0
    found = written(wire, topic)
    assert Counter(number for number, _ in found) == Counter(range(BATCHES * ROWS))
    for batch in range(BATCHES):
        attempts = {attempt for number, attempt in found if number // ROWS == batch}
        assert len(attempts) == 1, "a micro-batch is of two attempts"
    assert not list((tmp_path / "checkpoint").glob("kafka-staged/stream/*"))


@pytest.mark.parametrize("point", ["task:after", "produce:after", "flush:before", "flush:after", "done:after"])
def test_b41_at_least_once_loses_nothing_by_a_kill_at(wire: Wire, made: Topics, tmp_path: Path, point: str) -> None:
    """`at-least-once`: after a kill and a restart, each row is there at least once."""
    topic = made(2)
    hit = {"produce": ROWS + 7, "task": 3, "flush": 3}.get(point.partition(":")[0], 2)
    assert start(wire, topic, tmp_path, "first", "at-least-once", point, hit) == -signal.SIGKILL
    assert start(wire, topic, tmp_path, "second", "at-least-once") == 0
    assert {number for number, _ in written(wire, topic)} == set(range(BATCHES * ROWS))


@pytest.mark.slow
def test_b42_m04_exactly_once_survives_the_death_of_the_broker(tmp_path: Path) -> None:
    """After the broker is killed while micro-batches are written, and started again, each row is there once; later
    messages have a higher leader epoch."""
    with LocalKafka(tmp_path / "kafka") as kafka:
        wire = Wire(kafka.bootstrap_servers)
        topic = wire.make("survives", 2)
        arguments = (wire.servers, topic, str(tmp_path), "first", "exactly-once", "", 1)
        process = CONTEXT.Process(target=run, args=arguments)
        process.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while len(written(wire, topic)) < ROWS and time.monotonic() < until:
            time.sleep(0.02)
        kafka.kill()
        time.sleep(1)
        kafka.restart()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode is not None, "the query hangs"
        wire = Wire(kafka.bootstrap_servers)
        assert start(wire, topic, tmp_path, "second", "exactly-once") == 0
        assert Counter(number for number, _ in written(wire, topic)) == Counter(range(BATCHES * ROWS))
        # All micro-batches may have been sent before the broker died: what comes now has not.
        lab = Lab(wire)
        lab.write(topic, COLUMNS, [(BATCHES * ROWS, "third")])
        columns = {"metadata.epoch": "leader-epoch"}
        epochs = {row["id"]: row["epoch"] for row in lab.read(topic, "id INT, epoch INT", **columns)}
        assert epochs[0] == 0
        assert epochs[BATCHES * ROWS] > 0
