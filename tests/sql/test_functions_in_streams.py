"""Flink's functions in continuous queries: they return there what they return in batch queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.test_functions import JSON, TEXTS, TIME_TYPE, TIMES
from tests.sql.test_run import ONCE

# A seed is another one in each micro-batch.
CASES = [case for case in (*JSON, *TIMES, *TEXTS) if "RAND_INTEGER(7" not in case[0]]
MOMENTARY = ("RAND", "LOCALTIME", "CURRENT_")
"""Functions that continuous queries over rows that change reject."""


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    settings = {"table.local-time-zone": "Europe/Berlin", TIME_TYPE: "true"}
    made = Catalog(spark, tmp_path / "warehouse", settings=settings)
    made.sql(f"{ONCE}; CREATE TABLE added (k INT); CREATE TABLE changed (k INT, PRIMARY KEY (k) NOT ENFORCED)")
    made.sql("INSERT INTO added VALUES (1); INSERT INTO changed VALUES (1)")
    return made


@pytest.mark.parametrize("table", ["added", "changed"])
def test_functions_return_the_same_in_continuous_queries(catalog: Catalog, table: str) -> None:
    cases = CASES if table == "added" else [case for case in CASES if not any(each in case[0] for each in MOMENTARY)]
    found: list[Any] = []
    result = catalog.sql(f"SELECT {', '.join(text for text, _ in cases)} FROM {table}")
    query = catalog.follow(result, lambda frame, _: found.extend(frame.collect()))
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    ((*values, kind),) = found if table == "changed" else [(*found[0], "insert")]
    assert kind == "insert"
    assert dict(zip((text for text, _ in cases), values, strict=True)) == dict(cases)


def test_json_aggregates_go_on_over_rows_that_are_added(catalog: Catalog) -> None:
    """Beside distinct aggregates too, whose rows are not theirs; over rows that change they are refused by name."""
    catalog.sql("CREATE TABLE g (k INT, v INT); INSERT INTO g VALUES (1, 2), (1, 2), (2, NULL)")
    columns = "JSON_ARRAYAGG(v NULL ON NULL), JSON_OBJECTAGG('x' || k VALUE k) FILTER (WHERE v = 2 AND k > 1)"
    found: list[Any] = []
    result = catalog.sql(f"SELECT k, {columns}, COUNT(DISTINCT v) FROM g GROUP BY k")
    query = catalog.follow(result, lambda frame, _: found.extend(frame.collect()))
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    assert sorted(map(tuple, found)) == [(1, "[2,2]", "{}", 1, "insert"), (2, "[null]", "{}", 0, "insert")]
    with pytest.raises(InvalidInputError, match=r"JSON_ARRAYAGG\(.*is not supported in a continuous query over rows"):
        catalog.sql("SELECT JSON_ARRAYAGG(k) FROM changed")
