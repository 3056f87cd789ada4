"""Options of single columns of store tables, ``fields.<column>.``: defaults, and what they mean for ALTER TABLE."""

from __future__ import annotations

from decimal import Decimal

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
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


def test_an_aggregated_column_may_become_wider(catalog: Catalog) -> None:
    """Sums of before and after are one sum, whether they were compacted or not."""
    options = "'fields.v.aggregate-function' = 'sum', 'fields.d.aggregate-function' = 'product'"
    columns = "k INT, v INT, d DECIMAL(4, 2), PRIMARY KEY (k) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t ({columns}) WITH ('merge-engine' = 'aggregation', {options})")
    catalog.sql("INSERT INTO t VALUES (1, 2000000000, 1.50), (2, 1, 2.00)")
    catalog.sql("ALTER TABLE t MODIFY (v BIGINT, d DECIMAL(6, 3)); INSERT INTO t VALUES (1, 2000000000, 1.125)")
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    table.compact()
    catalog.sql("INSERT INTO t VALUES (1, 1, 2), (2, 4000000000, 1.5)")
    assert rows(catalog, "SELECT * FROM t") == [(1, 4000000001, Decimal("3.376")), (2, 4000000001, Decimal("3.000"))]


def test_a_column_that_orders_rows_stays(catalog: Catalog) -> None:
    options = "'fields.g.sequence-group' = 'v', 'fields.v.aggregate-function' = 'sum'"
    columns = "k INT, g INT, v INT, PRIMARY KEY (k) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t ({columns}) WITH ('merge-engine' = 'partial-update', {options})")
    with pytest.raises(InvalidInputError, match="'g' cannot be widened"):
        catalog.sql("ALTER TABLE t MODIFY g BIGINT")
    catalog.sql("ALTER TABLE t MODIFY v BIGINT")


def test_what_an_overwrite_replaces_may_change(catalog: Catalog) -> None:
    catalog.sql("SET 'execution.runtime-mode' = 'batch'; CREATE TABLE t (v INT, p INT) PARTITIONED BY (p)")
    catalog.sql("INSERT INTO t VALUES (1, 1), (2, 2); INSERT OVERWRITE t VALUES (3, 2)")
    assert rows(catalog, "SELECT * FROM t") == [(1, 1), (3, 2)]
    catalog.sql("ALTER TABLE t SET ('dynamic-partition-overwrite' = 'false'); INSERT OVERWRITE t VALUES (4, 2)")
    assert rows(catalog, "SELECT * FROM t") == [(4, 2)]
