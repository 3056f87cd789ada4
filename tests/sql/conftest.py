"""Fixtures of the tests of SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.sql.changes import quick


@pytest.fixture
def catalog(spark: SparkSession, wire: Wire, tmp_path: Path) -> Iterator[Catalog]:
    """Yield a catalog in which the pages' addresses are those of the broker; the session gets its settings back."""
    made = Catalog(spark, tmp_path / "warehouse")
    made.sql(f"SET 'tablestore.addresses' = '...={wire.servers}, localhost:9092={wire.servers}'")
    yield made
    made.sql("RESET")


@pytest.fixture
def quick_catalog(spark: SparkSession, wire: Wire, tmp_path: Path) -> Iterator[Catalog]:
    """Yield a catalog in a session that is quick with little."""
    made = Catalog(spark, tmp_path / "warehouse", settings={"tablestore.addresses": f"...={wire.servers}"})
    with quick(spark):
        yield made
