"""Promise 3 under races: several writer processes, killed now and then, beside a reader, compaction and expiry."""

from __future__ import annotations

from pathlib import Path

import pytest

from log_system.local_kafka.owned import LocalKafka
from tests.crash.matrix.audit import Verdict
from tests.crash.races import run_race
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash


def test_writers_that_race_and_die_keep_the_log_equal_to_the_table(kafka: LocalKafka, tmp_path: Path) -> None:
    found = run_race(tmp_path, kafka.bootstrap_servers, writers=3, seconds=3, rows=10, pause=0.02, kills=1, others=True)
    assert (found.verdict, found.troubles, found.killed) == (Verdict(), [], 1)


def test_eight_writers_do_not_fence_each_other_to_a_halt(kafka: LocalKafka, tmp_path: Path) -> None:
    """Every batch is committed and published, and publishers fence each other fewer than ten times for each of them.

    On a busy machine it is up to 5 times; without the waits of ``TakeOverBackoff``, 5 to 240. ``make races`` measures
    the writers' speed.
    """
    writers, batches = 8, 8
    found = run_race(
        tmp_path,
        kafka.bootstrap_servers,
        writers=writers,
        seconds=PATIENCE_SECONDS,
        batches=batches,
        rows=10,
        pause=0,
        kills=0,
        others=False,
    )
    assert (found.verdict, found.troubles, found.snapshots) == (Verdict(), [], writers * batches)
    assert found.fences < 10 * found.snapshots
