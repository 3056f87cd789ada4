"""Operators with state in queries of several tables, of which some have no new rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tablestore.sql import Catalog
from tests.sql.test_run import ONCE, finish, rows

TABLES = f"""
CREATE TABLE a (k INT PRIMARY KEY NOT ENFORCED, g STRING, n INT) WITH ('changelog-producer' = 'lookup');
CREATE TABLE b (k INT PRIMARY KEY NOT ENFORCED, n INT) WITH ('changelog-producer' = 'lookup');
CREATE TABLE c (k INT PRIMARY KEY NOT ENFORCED, n INT) WITH ('changelog-producer' = 'lookup');
CREATE TABLE sums (g STRING PRIMARY KEY NOT ENFORCED, n BIGINT)
    WITH ('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'sum');
{ONCE};
"""
EXTREME = "SELECT g, MIN(n) AS n FROM a GROUP BY g"
JOINED = "SELECT DISTINCT a.g, b.n FROM a JOIN b ON a.n = b.k"
RANKED = "SELECT g, k, ROW_NUMBER() OVER (PARTITION BY g ORDER BY n DESC, k) AS place FROM a"
FIRST = f"SELECT g, COUNT(*) AS n FROM ({RANKED}) AS r WHERE place <= 2 GROUP BY g"


def test_operators_keep_their_state_while_only_another_table_has_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql(TABLES)
    catalog.sql("INSERT INTO a VALUES (1, 'x', 1), (2, 'x', 2); INSERT INTO b VALUES (1, 5), (2, 6)")
    whole = "SELECT g, CAST(n AS BIGINT) AS n FROM"
    parts = " UNION ALL ".join(f"{whole} ({each}) AS p" for each in (EXTREME, JOINED, FIRST))
    text = f"{parts} UNION ALL SELECT 'c' AS g, CAST(n AS BIGINT) AS n FROM c"
    for change in (
        "INSERT INTO c VALUES (1, 100)",
        "INSERT INTO c VALUES (2, 50)",
        "INSERT INTO a VALUES (1, 'x', 2), (3, 'x', 0)",
        "INSERT INTO c VALUES (1, 10)",
    ):
        catalog.sql(change)
        finish(catalog, f"INSERT INTO sums SELECT g, n FROM ({text}) AS q")
        assert rows(catalog, "SELECT * FROM sums") == rows(catalog, f"SELECT g, SUM(n) FROM ({text}) AS q GROUP BY g")
