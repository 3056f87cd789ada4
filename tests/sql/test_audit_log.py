"""The audit log of a store table: its changes as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
from tests.sql.test_run import finish, rows

ALL = "SELECT * FROM t$audit_log"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse", settings={"tablestore.trigger": "available-now"})
    made.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer' = 'lookup')")
    made.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO t VALUES (1, 'c'); DELETE FROM t WHERE k = 2")
    return made


CHANGES = [("+I", 1, "a"), ("+I", 2, "b"), ("+U", 1, "c"), ("-D", 2, "b"), ("-U", 1, "a")]


def test_a_batch_query_has_all_changes_that_are_kept(catalog: Catalog) -> None:
    """Of snapshots that have expired the rows stay, as inserts: with the changes they are the table."""
    assert rows(catalog, ALL) == CHANGES
    assert rows(catalog, "SELECT v FROM t$audit_log WHERE rowkind = '+U'") == [("c",)]
    assert rows(catalog, "SELECT rowkind, COUNT(*) FROM t$audit_log AS a GROUP BY rowkind HAVING COUNT(*) > 1") == [
        ("+I", 2)
    ]
    table = catalog.table("t")
    assert isinstance(table, TableStore)
    table.maintenance.expire(older_than="0 s", keep_last=2)
    assert rows(catalog, ALL) == [("+I", 1, "c"), ("+I", 2, "b"), ("-D", 2, "b")]


def test_a_continuous_query_goes_on_with_every_change(catalog: Catalog) -> None:
    """Rows are only added, so that they go into a table without a key, and may be grouped."""
    catalog.sql("CREATE TABLE changes (kind STRING, k INT, v STRING); CREATE VIEW log AS SELECT * FROM t$audit_log")
    finish(catalog, "INSERT INTO changes SELECT * FROM log")
    assert rows(catalog, "SELECT * FROM changes") == [("+I", 1, "c")]
    catalog.sql("INSERT INTO t VALUES (1, 'd'); DELETE FROM t WHERE k = 1")
    for _ in range(2):
        finish(catalog, "INSERT INTO changes SELECT * FROM log")
    later = [("+U", 1, "d"), ("-D", 1, "d"), ("-U", 1, "c")]
    assert rows(catalog, "SELECT * FROM changes") == [("+I", 1, "c"), *later]
    catalog.sql("CREATE TABLE counts (kind STRING, n BIGINT, PRIMARY KEY (kind) NOT ENFORCED)")
    finish(catalog, "INSERT INTO counts SELECT kind, COUNT(*) FROM changes GROUP BY kind")
    assert rows(catalog, "SELECT * FROM counts") == [(kind, 1) for kind in ("+I", "+U", "-D", "-U")]


def test_other_metadata_tables_are_read_beside_it(catalog: Catalog) -> None:
    found: list[Any] = []
    joined = "SELECT a.k, s.name FROM t$audit_log AS a JOIN t$options AS s ON s.name = 'changelog-producer' AND a.k > 0"
    query = catalog.follow(catalog.sql(joined), lambda frame, _: found.extend(frame.collect()))
    assert query.awaitTermination(60)
    assert found == [(1, "changelog-producer")]


def test_a_table_without_a_key_has_one(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE a (v STRING); INSERT INTO a VALUES ('x'), ('x'); DELETE FROM a")
    assert rows(catalog, "SELECT * FROM a$audit_log") == [("+I", "x")] * 2 + [("-D", "x")] * 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE TABLE t$audit_log (a INT)", "is that of a metadata table"),
        ("CREATE TABLE r (RowKind INT); SELECT * FROM r$audit_log", "has a column 'rowkind', and so has the table"),
        (
            "CREATE TABLE c (a INT) WITH ('connector' = 'kafka', 'topic' = 'c', 'format' = 'json', "
            "'properties.bootstrap.servers' = 'x:1'); SELECT * FROM c$audit_log",
            "'c' is a table of a connector",
        ),
    ],
)
def test_a_table_that_has_none_is_refused(catalog: Catalog, text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        catalog.sql(text)
