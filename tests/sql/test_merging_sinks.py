"""Continuous INSERTs of rows that change into tables that merge the rows of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.test_run import BATCH, ONCE, STREAMING, finish, rows

SUBS = "ARRAY<ROW<item INT, product STRING>>"
TABLES = f"""
CREATE TABLE orders (id INT PRIMARY KEY NOT ENFORCED, name STRING, customer INT, amount INT)
    WITH ('changelog-producer' = '%s');
CREATE TABLE items (id INT, item INT, product STRING, PRIMARY KEY (id, item) NOT ENFORCED)
    WITH ('changelog-producer' = '%s');
CREATE TABLE named (id INT PRIMARY KEY NOT ENFORCED, name STRING, customers ARRAY<INT>)
    WITH ('merge-engine' = 'aggregation', 'fields.customers.aggregate-function' = 'collect');
CREATE TABLE totals (customer INT PRIMARY KEY NOT ENFORCED, total INT, n INT) WITH ('merge-engine' = 'aggregation',
    'fields.total.aggregate-function' = 'sum', 'fields.n.aggregate-function' = 'count');
CREATE TABLE wide (id INT PRIMARY KEY NOT ENFORCED, name STRING, items {SUBS}) WITH ('merge-engine' = 'aggregation',
    'fields.items.aggregate-function' = 'nested_update', 'fields.items.nested-key' = 'item');
CREATE TABLE parts (id INT PRIMARY KEY NOT ENFORCED, name STRING, total INT)
    WITH ('merge-engine' = 'partial-update', 'ignore-delete' = 'true');
{ONCE};
"""
NAMED = "INSERT INTO named SELECT id, name, ARRAY[customer] FROM orders"
TOTALS = "INSERT INTO totals SELECT customer, amount, 1 FROM orders"
WIDE = (
    f"INSERT INTO wide SELECT id, name, CAST(NULL AS {SUBS}) FROM orders "
    "UNION ALL SELECT id, CAST(NULL AS STRING), ARRAY[ROW(item, product)] FROM items"
)
PARTS = (
    "INSERT INTO parts SELECT id, name, CAST(NULL AS INT) FROM orders "
    "UNION ALL SELECT id, CAST(NULL AS STRING), COUNT(*) FROM items GROUP BY id"
)


@pytest.fixture(params=["none", "lookup"])
def catalog(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse")
    made.sql(TABLES % (request.param, request.param))
    made.sql("INSERT INTO orders VALUES (1, 'a', 7, 10), (2, 'b', 7, 20), (3, 'c', 8, 5)")
    made.sql("INSERT INTO items VALUES (1, 1, 'x'), (1, 2, 'y'), (2, 1, 'z')")
    return made


def wide(catalog: Catalog) -> list[tuple[Any, ...]]:
    """Return the rows of the table with rows in an array; rows of one micro-batch come in any order."""
    found = rows(catalog, "SELECT * FROM wide")
    return [(*others, None if items is None else sorted(items)) for *others, items in found]


def test_rows_that_updates_replace_are_taken_back_before_the_new_ones_are_added(catalog: Catalog) -> None:
    """Whatever the key of the table, so that functions that keep the last value keep the new one."""
    for text in (NAMED, TOTALS, WIDE):
        finish(catalog, text)
    assert rows(catalog, "SELECT * FROM totals") == [(7, 30, 2), (8, 5, 1)]
    assert wide(catalog) == [(1, "a", [(1, "x"), (2, "y")]), (2, "b", [(1, "z")]), (3, "c", None)]
    catalog.sql("INSERT INTO orders VALUES (1, 'A', 8, 100); INSERT INTO items VALUES (1, 2, 'Y')")
    catalog.sql("DELETE FROM orders WHERE id = 2; DELETE FROM items WHERE id = 2")
    for text in (NAMED, TOTALS, WIDE):
        finish(catalog, text)
    assert rows(catalog, "SELECT * FROM named") == [(1, "A", [8]), (2, None, []), (3, "c", [8])]
    assert rows(catalog, "SELECT * FROM totals") == [(7, 0, 0), (8, 105, 2)]
    assert wide(catalog) == [(1, "A", [(1, "x"), (2, "Y")]), (2, None, []), (3, "c", None)]


def test_streams_by_the_key_complete_a_row_as_one_query(catalog: Catalog) -> None:
    finish(catalog, PARTS)
    catalog.sql("INSERT INTO orders VALUES (1, 'A', 8, 100); INSERT INTO items VALUES (1, 3, 'n'), (3, 1, 'o')")
    finish(catalog, PARTS)
    assert rows(catalog, "SELECT * FROM parts") == [(1, "A", 3), (2, "b", 1), (3, "c", 1)]
    for text in (
        "INSERT INTO parts SELECT item, product, id FROM items",
        "INSERT INTO parts SELECT id, name, amount FROM orders UNION ALL SELECT item, product, id FROM items",
    ):
        with pytest.raises(InvalidInputError, match="PRIMARY KEY"):
            catalog.sql(text)


def test_a_continuous_select_shows_the_row_that_an_update_replaces_before_the_new_one(catalog: Catalog) -> None:
    found: list[tuple[Any, ...]] = []

    def show(frame: DataFrame, _number: int) -> None:
        found.extend(tuple(row) for row in frame.collect())

    catalog.sql(f"{STREAMING}; SET 'tablestore.trigger' = '0'")
    query = catalog.follow(catalog.sql("SELECT id, name FROM orders"), show)
    try:
        query.processAllAvailable()
        found.clear()
        catalog.sql("INSERT INTO orders VALUES (1, 'A', 8, 100), (3, 'C', 8, 5)")
        query.processAllAvailable()
    finally:
        query.stop()
        query.awaitTermination(PATIENCE_SECONDS)
    kinds = {number: [row[1:] for row in found if row[0] == number] for number in (1, 3)}
    assert kinds == {
        1: [("a", "update_preimage"), ("A", "update_postimage")],
        3: [("c", "update_preimage"), ("C", "update_postimage")],
    }


def test_rows_go_into_the_partition_that_the_statement_names(catalog: Catalog) -> None:
    catalog.sql(f"{BATCH}; CREATE TABLE p (a INT, b STRING, d STRING, h INT) PARTITIONED BY (d, h)")
    catalog.sql("INSERT INTO p PARTITION (d = 'x', h = 1) VALUES (1, 'a'), (2, 'b')")
    catalog.sql("INSERT INTO p PARTITION (d = 'y') SELECT 5, 'q', 7 UNION ALL SELECT 6, 'r', 8")
    catalog.sql("INSERT INTO p PARTITION (d = 'z', h) (b, h) VALUES ('only', 9)")
    catalog.sql(f"CREATE TABLE added (id INT, name STRING); INSERT INTO added VALUES (1, 'a'), (2, 'b'); {STREAMING}")
    finish(catalog, "INSERT INTO p PARTITION (d = 's', h = 3) SELECT id, name FROM added")
    assert rows(catalog, "SELECT * FROM p") == [
        (1, "a", "s", 3), (1, "a", "x", 1), (2, "b", "s", 3), (2, "b", "x", 1), (5, "q", "y", 7),
        (6, "r", "y", 8), (None, "only", "z", 9),
    ]  # fmt: skip
    for text, match in [
        ("INSERT INTO p PARTITION (a = 1) VALUES (1, 'a', 2)", "a: not a partition column; it has d, h"),
        ("INSERT INTO orders PARTITION (id = 1) VALUES (1, 'a', 2)", "id: not a partition column; it has none"),
        ("INSERT INTO p PARTITION (d = 'x') (a, d) VALUES (1, 'a')", "a column is named twice: a, d, d"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)
