"""The audit log and the binlog of a store table, its changes as rows; and the rows of its last compaction."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
from tests.harness.waiting import PATIENCE_SECONDS
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


def test_computed_columns_are_those_of_the_table(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE c (k INT, twice AS k * 2, v STRING, at AS PROCTIME()); INSERT INTO c VALUES (1, 'a')")
    assert rows(catalog, "SELECT rowkind, k, twice, v FROM c$audit_log WHERE at IS NOT NULL") == [("+I", 1, 2, "a")]
    catalog.sql("CREATE TABLE found (kind STRING, twice INT, w STRING)")
    price = "SELECT c.rowkind, c.twice, t.v FROM c$audit_log AS c JOIN t FOR SYSTEM_TIME AS OF c.at ON c.k = t.k"
    finish(catalog, f"INSERT INTO found {price}")
    assert rows(catalog, "SELECT * FROM found") == [("+I", 2, "c")]


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (k) NOT ENFORCED"])
def test_it_has_the_watermark_of_the_table(catalog: Catalog, key: str) -> None:
    catalog.sql(f"CREATE TABLE e (k INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts{key})")
    catalog.sql("CREATE TABLE counts (begins TIMESTAMP(3), n BIGINT)")
    window = "TUMBLE(TABLE e$audit_log, DESCRIPTOR(ts), INTERVAL '10' MINUTES)"
    counted = f"INSERT INTO counts SELECT window_start, COUNT(*) FROM TABLE({window}) GROUP BY window_start, window_end"
    for values in ("(1, '00:00:00'), (2, '00:05:00'), (3, '00:12:00')", "(4, '00:13:00')", "(5, '00:30:00')"):
        catalog.sql(
            f"INSERT INTO e SELECT k, CAST('2024-01-01 ' || v AS TIMESTAMP(3)) FROM (VALUES {values}) AS x (k, v)"
        )
        finish(catalog, counted)
    assert rows(catalog, "SELECT * FROM counts") == [
        (datetime(2024, 1, 1), 2), (datetime(2024, 1, 1, 0, 10), 2),
    ]  # fmt: skip


def test_the_binlog_has_an_update_in_one_row(catalog: Catalog) -> None:
    changes = [("+I", [1], ["a"]), ("+I", [2], ["b"]), ("+U", [1, 1], ["a", "c"]), ("-D", [2], ["b"])]
    assert rows(catalog, "SELECT * FROM t$binlog") == changes
    assert rows(catalog, "SELECT v[2] FROM t$binlog WHERE rowkind = '+U'") == [("c",)]
    came: list[tuple[Any, ...]] = []
    query = catalog.follow(catalog.sql("SELECT * FROM t$binlog"), lambda frame, _: came.extend(map(tuple, frame.collect())))  # fmt: skip  # noqa: E501
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    assert came == [("+I", [1], ["c"])]


def test_a_continuous_query_of_the_binlog_pairs_the_changes_of_a_snapshot(catalog: Catalog) -> None:
    """Several snapshots of a key in one micro-batch are several updates."""
    catalog.sql("CREATE TABLE pairs (kind STRING, k ARRAY<INT>, v ARRAY<STRING>)")
    finish(catalog, "INSERT INTO pairs SELECT * FROM t$binlog")
    catalog.sql("INSERT INTO t VALUES (1, 'd'); INSERT INTO t VALUES (1, 'e'), (3, NULL); DELETE FROM t WHERE k = 1")
    finish(catalog, "INSERT INTO pairs SELECT * FROM t$binlog")
    later = [("+U", [1, 1], ["c", "d"]), ("+U", [1, 1], ["d", "e"]), ("-D", [1], ["e"])]
    assert rows(catalog, "SELECT * FROM pairs") == sorted([("+I", [1], ["c"]), ("+I", [3], [None]), *later], key=repr)


def test_a_binlog_without_preimages_or_a_key_has_single_values(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE p (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED); INSERT INTO p VALUES (1, 1)")
    catalog.sql("INSERT INTO p VALUES (1, 2); CREATE TABLE a (v STRING); INSERT INTO a VALUES ('x'), ('x')")
    assert rows(catalog, "SELECT * FROM p$binlog") == [("+U", [1], [1]), ("+U", [1], [2])]
    assert rows(catalog, "SELECT * FROM a$binlog") == [("+I", ["x"])] * 2


def test_ro_has_the_rows_of_the_last_compaction(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE c (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('compaction.auto' = 'false')")
    assert rows(catalog, "SELECT * FROM c$ro") == []
    catalog.sql("INSERT INTO c VALUES (1, 1), (2, 2)")
    table = catalog.table("c")
    assert isinstance(table, TableStore)
    table.compact()
    catalog.sql("INSERT INTO c VALUES (1, 3), (4, 4); DELETE FROM c WHERE k = 2; ALTER TABLE c ADD w INT")
    table.maintenance.expire(older_than="0 s", keep_last=1)
    assert rows(catalog, "SELECT * FROM c$ro") == [(1, 1, None), (2, 2, None)]
    assert rows(catalog, "SELECT c.v, o.v FROM c JOIN c$ro AS o ON c.k = o.k") == [(3, 1)]
    table.compact()
    assert rows(catalog, "SELECT k, v FROM c$ro") == rows(catalog, "SELECT k, v FROM c") == [(1, 3), (4, 4)]
    catalog.sql("CREATE TABLE a (v STRING); INSERT INTO a VALUES ('x')")
    assert rows(catalog, "SELECT * FROM a$ro") == [("x",)]


def test_other_metadata_tables_are_read_beside_it(catalog: Catalog) -> None:
    found: list[Any] = []
    joined = "SELECT a.k, s.name FROM t$audit_log AS a JOIN t$options AS s ON s.name = 'changelog-producer' AND a.k > 0"
    query = catalog.follow(catalog.sql(joined), lambda frame, _: found.extend(frame.collect()))
    assert query.awaitTermination(int(PATIENCE_SECONDS))
    assert found == [(1, "changelog-producer")]


def test_a_table_without_a_key_has_one(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE a (v STRING); INSERT INTO a VALUES ('x'), ('x'); DELETE FROM a")
    assert rows(catalog, "SELECT * FROM a$audit_log") == [("+I", "x")] * 2 + [("-D", "x")] * 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE TABLE t$audit_log (a INT)", "is the name of a metadata table"),
        ("CREATE TABLE r (RowKind INT); SELECT * FROM r$audit_log", "have a column 'rowkind', and so has the table"),
        ("CREATE TABLE t$ro (a INT)", "is the name of a metadata table"),
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
