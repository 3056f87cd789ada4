"""Queries in batch mode: each of ``batch.sql`` has the rows of Flink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tablestore.sql import Catalog
from tests.peers.cases import Case, read_cases
from tests.peers.flink import Flink, flink, need_flink
from tests.peers.outcomes import Failure, ours_of, theirs_of

need_flink()

CASES = read_cases(Path(__file__).with_name("batch.sql"))
TABLES = (
    """
    CREATE TEMPORARY VIEW w AS SELECT * FROM (VALUES
      (1, 'a', 10, CAST(1.5 AS DOUBLE), CAST(2.50 AS DECIMAL(10, 2)), TIMESTAMP '2024-01-01 00:00:01.000',
       CAST(3 AS TINYINT), TRUE),
      (2, 'a', 20, CAST(2.5 AS DOUBLE), CAST(3.25 AS DECIMAL(10, 2)), TIMESTAMP '2024-01-01 00:00:05.000',
       CAST(4 AS TINYINT), FALSE),
      (3, 'b', CAST(NULL AS INT), CAST(NULL AS DOUBLE), CAST(NULL AS DECIMAL(10, 2)),
       TIMESTAMP '2024-01-01 00:00:09.000', CAST(NULL AS TINYINT), CAST(NULL AS BOOLEAN)),
      (4, 'b', 20, CAST(-1 AS DOUBLE), CAST(1.00 AS DECIMAL(10, 2)), TIMESTAMP '2024-01-01 00:00:11.000',
       CAST(5 AS TINYINT), TRUE),
      (5, CAST(NULL AS STRING), 5, CAST(0 AS DOUBLE), CAST(9.99 AS DECIMAL(10, 2)),
       TIMESTAMP '2024-01-01 00:01:00.000', CAST(1 AS TINYINT), FALSE),
      (6, 'c', 7, CAST(4 AS DOUBLE), CAST(100 AS DECIMAL(10, 2)), TIMESTAMP '2024-01-01 00:01:30.000',
       CAST(1 AS TINYINT), TRUE)
    ) AS v (id, k, v, d, dc, ts, ti, b)
    """,
    """
    CREATE TEMPORARY VIEW t AS SELECT * FROM (VALUES
      (1, 42, 'a'), (2, 5, 'x'), (3, CAST(NULL AS INT), CAST(NULL AS STRING)), (7, 20, 'c')
    ) AS v (id, i, s)
    """,
)


@pytest.fixture(scope="module")
def peer(catalog: Catalog) -> Iterator[Flink]:
    for table in TABLES:
        catalog.sql(table)
    with flink("batch", TABLES) as started:
        yield started


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_query_has_the_rows_of_flink(case: Case, catalog: Catalog, peer: Flink):
    theirs, ours = theirs_of(peer, case.sql), ours_of(catalog, case.sql)
    case.check(*(found if isinstance(found, Failure) else sorted(found, key=repr) for found in (theirs, ours)))
