"""Processes that follow a stream are killed on the way from one query to the next: together they give one changelog."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshot.storage import Storage
from tablestore.streaming.follow import newest
from tablestore.write.writer import Writer
from tests.crash.processes.follow_worker import POINTS
from tests.crash.processes.ledger import Ledger
from tests.harness.local_writes import make_table, publisher_of, rows_of, write

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent


def test_each_change_is_given_once_and_may_follow_the_one_before(
    kafka: Any, tmp_path: Path, topic: Callable[[], str]
) -> None:
    dice = random.Random(8)
    table = make_table(tmp_path / "t", kafka.bootstrap_servers, topic(), log__consistency="eventual")
    writer = Writer(table, publisher_of(table))
    write(writer, [(k, "a") for k in range(30)])
    for number, point in enumerate((*POINTS, ""), 1):
        write(writer, [(k, dice.choice(["a", "b", None])) for k in dice.sample(range(40), 12)])
        # More keys than a state may have, which are deleted again.
        passing = range(1000 * number, 1000 * number + 100)
        write(writer, [(k, "a") for k in passing])
        write(writer, [(k, None) for k in passing])
        command = [
            sys.executable,
            "-m",
            "tests.crash.processes.follow_worker",
            str(tmp_path / "t"),
            str(tmp_path),
            point,
        ]
        with (tmp_path / "told").open("wb") as told:
            # A group of its own, so that its Java and its workers die with it.
            ended = subprocess.run(
                command, cwd=ROOT, stdout=told, stderr=told, start_new_session=True, timeout=200, check=False
            )
        assert ended.returncode == (-signal.SIGKILL if point else 0), (tmp_path / "told").read_text()[-2000:]
    assert Ledger(tmp_path / "ledger").replay() == (rows_of(table), 0)
    assert newest(Storage.at(str(tmp_path / "checkpoint"))).number >= 2
