"""Promises 1 to 3: a writer killed by SIGKILL at any point leaves nothing early, lost, doubled or out of order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log_system.local_kafka.owned import LocalKafka
from tablestore.context import TableContext
from tests.crash.kill_points import POINTS
from tests.crash.processes.batch_writer import changes_of, run
from tests.harness.forked import CONTEXT
from tests.harness.local_writes import fold, make_table, recover_at, rows_of
from tests.harness.table_audit import assert_log_is_prefix, assert_log_is_table
from tests.harness.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash

PARTITIONS = 2
BATCHES = 3

SMALL: dict[str, Any] = {"rows": 12, "options": {}}
LARGE: dict[str, Any] = {"rows": 40, "options": {"publish__driver_rows_max": 5, "publish__transaction_rows_max": 7}}
KAFKA_POINTS = [point for point in POINTS if not point.startswith(("stage", "commit"))]
CASES = [
    *[pytest.param(point, "json", SMALL, id=f"{point}-json-small") for point in POINTS],
    *[pytest.param(point, "json", LARGE, id=f"{point}-json-large") for point in KAFKA_POINTS],
    *[pytest.param(point, "arrow", SMALL, id=f"{point}-arrow-small") for point in ("end:before", "end:after")],
    *[pytest.param(point, "arrow", LARGE, id=f"{point}-arrow-large") for point in ("offsets:after", "end:after")],
]


def start(path: Path, rows: int, point: str = "", hit: int = 1, *, name: str = "writer") -> int:
    """Run a writer process to its end; its exit code is -9 when it was killed."""
    process = CONTEXT.Process(target=run, args=(str(path), name, range(BATCHES), rows, point, hit))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None, "the writer hangs"
    return process.exitcode


@pytest.mark.parametrize(("point", "log_format", "size"), CASES)
def test_b49_a_writer_killed_at_any_point_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path, topic: Callable[[], str], point: str, log_format: str, size: dict[str, Any]
) -> None:
    """After a kill at any step and a recovery each committed change is in the log once."""
    servers, name, path = kafka.bootstrap_servers, topic(), tmp_path / "t"
    make_table(path, servers, name, log__format=log_format, **size["options"])
    # A new table's first two transactions say that there are no tasks; those of snapshots follow.
    hit = {"init": 1, "begin": 4, "offsets": 4, "end": 4}.get(point.partition(":")[0], 2)
    assert start(path, size["rows"], point, hit) == -signal.SIGKILL, f"{point} was never reached"
    assert_log_is_prefix(path, servers, name, PARTITIONS)
    recover_at(path, PARTITIONS)
    assert_log_is_table(path, servers, name, PARTITIONS)
    assert start(path, size["rows"]) == 0
    assert_log_is_table(path, servers, name, PARTITIONS)
    batches = [change for batch in range(BATCHES) for change in changes_of(batch, size["rows"])]
    assert rows_of(TableContext.open(str(path))) == fold(batches)
