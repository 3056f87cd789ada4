"""Defaults of columns in SQL: option ``fields.<column>.default-value`` of store tables."""

from __future__ import annotations

from tablestore.sql import Catalog
from tests.sql.test_run import finish, rows


def test_null_and_columns_that_are_not_named_get_their_defaults(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT, v INT); INSERT INTO s VALUES (3, 3)")
    columns = "k INT, v INT, s STRING NOT NULL, PRIMARY KEY (k) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t ({columns}) WITH ('fields.s.default-value' = 'new')")
    catalog.sql("INSERT INTO t (k) VALUES (1); INSERT INTO t VALUES (2, 2, NULL)")
    catalog.sql("SET 'tablestore.trigger' = 'available-now'; ALTER TABLE t SET ('fields.v.default-value' = '7')")
    finish(catalog, "INSERT INTO t (k, v) SELECT k, v FROM s UNION ALL SELECT k + 1, CAST(NULL AS INT) FROM s")
    assert rows(catalog, "SELECT * FROM t") == [(1, None, "new"), (2, 2, "new"), (3, 3, "new"), (4, 7, "new")]
    catalog.sql("SET 'execution.runtime-mode' = 'batch'; INSERT OVERWRITE t (k) VALUES (5)")
    assert rows(catalog, "SELECT * FROM t") == [(5, 7, "new")]
