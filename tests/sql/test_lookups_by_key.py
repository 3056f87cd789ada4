"""Lookup joins of a table with a key whose rows change: the result of a changed row replaces that before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.test_run import BATCH, ONCE, STREAMING, finish, rows

TABLES = f"""
CREATE TABLE o (id INT PRIMARY KEY NOT ENFORCED, c INT, n INT, p AS PROCTIME()) WITH ('changelog-producer' = '%s');
CREATE TABLE c (c INT PRIMARY KEY NOT ENFORCED, city STRING);
CREATE TABLE wide (id INT PRIMARY KEY NOT ENFORCED, city STRING, share INT);
CREATE TABLE known LIKE wide; {ONCE};
INSERT INTO c VALUES (1, 'a'), (2, 'b')
"""
JOIN = "JOIN c FOR SYSTEM_TIME AS OF o.p ON o.c = c.c"
LEFT = f"INSERT INTO wide SELECT o.id, c.city, o.n FROM o LEFT {JOIN}"
INNER = f"INSERT INTO known SELECT id, UPPER(city), 60 / n FROM o INNER {JOIN} WHERE o.n <> 0"
BOTH = f"EXECUTE STATEMENT SET BEGIN {LEFT}; {INNER}; END"


@pytest.fixture(params=["none", "lookup"])
def catalog(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse")
    made.sql(TABLES % request.param)
    return made


def test_a_changed_row_is_looked_up_anew_and_replaces_the_one_before(catalog: Catalog) -> None:
    """A row that has no match any more, does not pass the filter, or is deleted, leaves an inner join."""
    catalog.sql("INSERT INTO o VALUES (1, 1, 10), (2, 9, 20), (3, 2, 30), (4, 2, 0), (5, 1, 6)")
    finish(catalog, BOTH)
    assert rows(catalog, "SELECT * FROM wide") == [(1, "a", 10), (2, None, 20), (3, "b", 30), (4, "b", 0), (5, "a", 6)]
    assert rows(catalog, "SELECT * FROM known") == [(1, "A", 6), (3, "B", 2), (5, "A", 10)]
    catalog.sql("INSERT INTO c VALUES (9, 'i'), (1, 'z')")
    catalog.sql("INSERT INTO o VALUES (1, 1, 5), (2, 9, 20), (3, 8, 30), (4, 2, 4); DELETE FROM o WHERE id = 5")
    finish(catalog, BOTH)
    there = [(1, "z", 5), (2, None, 20), (3, None, 30), (4, "b", 4)]
    assert rows(catalog, "SELECT * FROM wide") == there, "a row that is the same is no change"
    assert rows(catalog, "SELECT * FROM known") == [(1, "Z", 12), (4, "B", 15)]


def test_any_changes_make_the_batch_query_where_the_looked_up_table_stays(catalog: Catalog) -> None:
    chance = random.Random(9)
    for number in range(4):
        values = ", ".join(f"({chance.randrange(9)}, {chance.randrange(4)}, {chance.randrange(3)})" for _ in range(6))
        catalog.sql(f"INSERT INTO o VALUES {values}; DELETE FROM o WHERE id = {chance.randrange(9)}")
        finish(catalog, BOTH)
        for text in (LEFT, INNER):
            _, _, target, select = text.split(" ", 3)
            expected = select.replace(" FOR SYSTEM_TIME AS OF o.p", "")
            assert rows(catalog, f"SELECT * FROM {target}") == rows(catalog, expected), f"round {number}"


def test_a_changed_row_is_looked_up_again_while_it_has_no_match(catalog: Catalog) -> None:
    """Not a deleted one."""
    retry = "'retry-predicate' = 'lookup_miss', 'retry-strategy' = 'fixed_delay', 'fixed-delay' = '{}'"
    hint = f"SELECT /*+ LOOKUP('table' = 'c', {retry}, 'max-attempts' = '2') */"
    catalog.sql("INSERT INTO o VALUES (1, 1, 10), (2, 9, 20); SET 'pipeline.name' = 'again'")
    finish(catalog, LEFT.replace("SELECT", hint.format("1 ms")))
    assert rows(catalog, "SELECT * FROM wide") == [(1, "a", 10), (2, None, 20)]
    catalog.sql("DELETE FROM o WHERE id = 2; INSERT INTO o VALUES (1, 2, 10)")
    started = time.monotonic()
    finish(catalog, LEFT.replace("SELECT", hint.format("1000 s")))
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert rows(catalog, "SELECT * FROM wide") == [(1, "b", 10)]


def test_a_select_shows_rows_and_deletes(catalog: Catalog) -> None:
    catalog.sql("INSERT INTO o VALUES (1, 1, 10), (2, 9, 20)")
    came: list[tuple[Any, ...]] = []
    text = f"SELECT o.id, c.* FROM o LEFT {JOIN} AND c.city <> 'b'"
    catalog.sql("SET 'tablestore.trigger' = '0'")
    query = catalog.follow(catalog.sql(text), lambda frame, _: came.extend(map(tuple, frame.collect())))
    try:
        query.processAllAvailable()
        catalog.sql("INSERT INTO o VALUES (1, 2, 10); DELETE FROM o WHERE id = 2")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(came, key=str) == [
        (1, 1, "a", "insert"),
        (1, None, None, "update_postimage"),
        (2, None, None, "delete"),
        (2, None, None, "insert"),
    ]


def test_the_newest_partition_is_looked_up_by_the_rest_of_its_key(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE d (day STRING, c INT, city STRING, PRIMARY KEY (day, c) NOT ENFORCED) PARTITIONED BY (day)"
    )
    catalog.sql("INSERT INTO d VALUES ('1', 1, 'old'), ('2', 1, 'new'); INSERT INTO o VALUES (1, 1, 1), (2, 2, 2)")
    newest = "d /*+ OPTIONS('lookup.dynamic-partition' = 'max_pt()', 'scan.snapshot-id' = '1') */"
    finish(catalog, LEFT.replace("JOIN c ", f"JOIN {newest} ").replace("c.c", "d.c").replace("c.city", "d.city"))
    assert rows(catalog, "SELECT * FROM wide") == [(1, "new", 1), (2, None, 2)]


def test_rows_go_into_an_upsert_table_as_records_and_tombstones(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    catalog.sql(
        "CREATE TABLE k (id INT PRIMARY KEY NOT ENFORCED, city STRING) WITH ('connector' = 'upsert-kafka', "
        f"'topic' = '{topic()}', 'properties.bootstrap.servers' = '{wire.servers}', 'key.format' = 'json', "
        "'value.format' = 'json'); INSERT INTO o VALUES (1, 1, 10), (2, 2, 20)"
    )
    insert = f"INSERT INTO k SELECT id, city FROM o {JOIN} WHERE n > 5"
    finish(catalog, insert)
    catalog.sql("INSERT INTO o VALUES (1, 1, 1), (2, 1, 30)")
    finish(catalog, insert)
    assert rows(catalog, "SELECT * FROM k") == [(2, "a")]
    catalog.sql("CREATE TABLE strict (n INT NOT NULL) LIKE k")
    with pytest.raises(InvalidInputError, match="NOT NULL columns outside its key, for which deletes have no values"):
        catalog.sql(f"INSERT INTO strict SELECT id, city, n FROM o {JOIN}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LEFT.replace("c FOR", "d FOR").replace("c.c", "d.c").replace("c.city", "d.city"), "at most one match"),
        (f"INSERT INTO wide SELECT o.n, c.city, 1 FROM o {JOIN}", r"without its key .* select its key \(id\)"),
        (f"INSERT INTO byn SELECT o.n, o.id FROM o {JOIN}", "the table has another key than the changes"),
        (f"INSERT INTO sums SELECT o.id, o.n FROM o {JOIN}", "the table takes back the rows that changes replace"),
        (f"INSERT INTO d SELECT o.id, c.city FROM o {JOIN}", "doesn't support consuming update changes"),
        (f"SELECT n, COUNT(*) FROM o {JOIN} GROUP BY n", "an aggregate or DISTINCT over a lookup join"),
        (
            "SELECT u.n FROM (SELECT n FROM o) AS u JOIN c FOR SYSTEM_TIME AS OF PROCTIME() ON u.n = c.c",
            "have no key",
        ),
    ],
)
def test_what_would_need_the_rows_before_is_refused(catalog: Catalog, text: str, reason: str) -> None:
    catalog.sql(
        "CREATE TABLE d (c INT, city STRING); CREATE TABLE byn (n INT, id INT, PRIMARY KEY (n, id) NOT ENFORCED); "
        "CREATE TABLE sums (id INT PRIMARY KEY NOT ENFORCED, n INT) WITH ('merge-engine' = 'aggregation', "
        f"'fields.n.aggregate-function' = 'sum'); {BATCH}; {STREAMING}"
    )
    with pytest.raises(InvalidInputError, match=reason):
        catalog.sql(text)
