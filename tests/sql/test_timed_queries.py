"""Random queries of event time have the rows of batch mode, whatever the micro-batches, and after failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.connectors.harness.wire import Wire
from tests.soak.timed_queries import run_timed_round
from tests.sql.changes import quick

#: They have OVER, UNION ALL, windows again, joins by windows and by time, EXISTS, NOT EXISTS and DISTINCT.
ROUNDS = (0, 3, 21, 22, 23, 29)


@pytest.mark.parametrize("number", ROUNDS)
def test_a_random_query_has_the_rows_of_batch_mode(
    number: int, spark: SparkSession, wire: Wire, tmp_path: Path
) -> None:
    """Rounds of ``make soak``."""
    with quick(spark):
        found = run_timed_round(tmp_path, spark, wire, 1, number)
    assert found.wrong == ""
    assert found.queries
    assert found.batches > 1
