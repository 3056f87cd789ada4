"""Promise 3 under races: several writer processes, killed now and then, beside a reader and compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from log_system.kafka.local import LocalKafka
from tests.crash.audit import Verdict
from tests.races import run_race

pytestmark = pytest.mark.crash


def test_writers_that_race_and_die_keep_the_log_equal_to_the_table(kafka: LocalKafka, tmp_path: Path) -> None:
    found = run_race(tmp_path, kafka.bootstrap_servers, writers=3, seconds=3, rows=10, pause=0.02, kills=1, others=True)
    assert (found.verdict, found.troubles, found.killed) == (Verdict(), [], 1)
