"""A few combinations of the crash matrix: verbs whose crashes no other test has, and a query of Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from log_system.local_kafka.owned import LocalKafka
from tests.crash.matrix.cases import cases
from tests.crash.matrix.runner import run_case
from tests.crash.processes.normalized import run_query

pytestmark = pytest.mark.crash

SEED = 4
AT_ONCE = 3
NAMES = (
    "format/commit:after/driver/append/arrow/small",
    "alter/alter:after/driver/upsert/json/small",
    "write/commit:after/driver/verbs/json/small",
    "write/flush:after/driver/rollback/json/small",
    "write/end:after/driver/rollback-files/arrow/large",
)


def test_whoever_is_killed_in_a_verb_or_a_query_and_comes_back_breaks_no_promise(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    known = {case.name: case for case in cases()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run_case, known[name], SEED, tmp_path, kafka.bootstrap_servers) for name in NAMES]
        found = [each.result() for each in running]
    assert [result for result in found if not result.good] == []


@pytest.mark.parametrize("point", ["segment:after", "state:after"])
def test_a_query_killed_between_its_state_and_its_output_goes_on(kafka: LocalKafka, tmp_path: Path, point: str) -> None:
    (case,) = (each for each in cases() if each.name == f"normalize/{point}/driver/upsert/json/small")
    result = run_query(case, SEED, tmp_path, kafka.bootstrap_servers)
    assert result.good, result
