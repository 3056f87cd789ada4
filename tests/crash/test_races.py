"""Promise 3 under races: several writer processes, killed now and then, beside a reader, compaction and expiry."""

from __future__ import annotations

from pathlib import Path

import pytest

from log_system.local_kafka.owned import LocalKafka
from tests.crash.matrix.audit import Verdict
from tests.crash.races import run_race

pytestmark = pytest.mark.crash


def test_writers_that_race_and_die_keep_the_log_equal_to_the_table(kafka: LocalKafka, tmp_path: Path) -> None:
    found = run_race(tmp_path, kafka.bootstrap_servers, writers=3, seconds=3, rows=10, pause=0.02, kills=1, others=True)
    assert (found.verdict, found.troubles, found.killed) == (Verdict(), [], 1)


def test_eight_writers_do_not_fence_each_other_to_a_halt(kafka: LocalKafka, tmp_path: Path) -> None:
    """``make races`` measures their speed; here, beside other work, it is enough that they go on."""
    one, eight = (
        run_race(tmp_path, kafka.bootstrap_servers, writers=n, seconds=5, rows=10, pause=0, kills=0, others=False)
        for n in (1, 8)
    )
    assert (eight.verdict, eight.troubles) == (Verdict(), [])
    assert eight.snapshots >= one.snapshots / 10
