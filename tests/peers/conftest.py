"""Fixtures of the comparisons with Flink and Paimon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tablestore.sql import Catalog

pytest.register_assert_rewrite("tests.peers.cases")


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Yield a catalog in batch mode and in the time zone of Flink here; the session gets its settings back."""
    made = Catalog(spark, tmp_path_factory.mktemp("warehouse"))
    made.sql("SET 'execution.runtime-mode' = 'batch'; SET 'table.local-time-zone' = 'UTC'")
    yield made
    made.sql("RESET")
