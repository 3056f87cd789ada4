"""DELETE, UPDATE, INSERT OVERWRITE, TRUNCATE and MERGE on store tables; other tables are refused, with the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.sql import Catalog, SqlError
from tablestore.table.store import TableStore

TABLES = """
CREATE TABLE k (id BIGINT, day STRING, n INT, price DECIMAL(10, 2), PRIMARY KEY (id) NOT ENFORCED)
    PARTITIONED BY (day);
CREATE TABLE a (id BIGINT, v STRING);
CREATE TABLE topic (id BIGINT) WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'h:1',
    'format' = 'json');
CREATE VIEW w AS SELECT 2 AS id, 'new' AS v;
SET 'execution.runtime-mode' = 'batch';
"""


def test_rows_are_changed_by_sql(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql(TABLES)

    def rows(name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in catalog.table(name).read().collect())

    def run(text: str, name: str) -> list[tuple[Any, ...]]:
        catalog.sql(text)
        return rows(name)

    catalog.sql("INSERT INTO k VALUES (1, 'mo', 1, 1.5), (2, 'mo', 2, 2.5), (3, 'tu', 3, 3.5), (4, 'we', 4, 4.5)")
    catalog.sql("INSERT INTO a VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    assert catalog.sql("DELETE FROM k AS t WHERE t.day = 'we' AND k.n > 3").message == "1 change, snapshot 2"
    updated = run("UPDATE k t SET n = t.n + CAST(10 AS BIGINT), price = price * 2 WHERE id <> 3", "k")
    assert [(i, d, n, str(p)) for i, d, n, p in updated] == [
        (1, "mo", 11, "3.00"), (2, "mo", 12, "5.00"), (3, "tu", 3, "3.50"),
    ]  # fmt: skip
    catalog.sql("INSERT OVERWRITE k PARTITION (day = 'mo') (n, id) SELECT 8, 8")
    assert [row[:3] for row in rows("k")] == [(3, "tu", 3), (8, "mo", 8)]
    assert run("INSERT OVERWRITE a VALUES (1, 'x'), (5, 'five')", "a") == [(1, "x"), (5, "five")]
    merge = """
        MERGE INTO a USING (SELECT id, v FROM w UNION ALL SELECT 1, 'gone') AS s ON a.id = s.id
        WHEN MATCHED AND s.v = 'gone' THEN DELETE
        WHEN MATCHED THEN UPDATE SET v = s.v
        WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, UPPER(s.v))
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = CONCAT(a.v, '!')
    """
    assert run(merge, "a") == [(2, "NEW"), (5, "five!")]
    catalog.sql("INSERT INTO k VALUES (5, 'we', 4, 4.5), (6, CAST(NULL AS STRING), 1, 1), (7, 'th', 1, 1)")
    listed = catalog.sql("SHOW PARTITIONS k")
    assert (listed.columns, listed.rows) == (("partition name",), (("day=NULL",), ("day=mo",), ("day=th",), ("day=tu",), ("day=we",)))  # fmt: skip  # noqa: E501
    assert catalog.sql("SHOW PARTITIONS k PARTITION (day = 'mo')").rows == (("day=mo",),)
    assert catalog.sql("SHOW PARTITIONS k PARTITION (day = 'xx')").rows == ()
    dropped = "ALTER TABLE k DROP PARTITION (day = 'mo'), PARTITION (day = NULL), PARTITION (day = 'xx')"
    assert [row[0] for row in run(dropped, "k")] == [3, 5, 7]
    with pytest.raises(NotFoundError, match="no row has these values of day"):
        catalog.sql("ALTER TABLE k DROP PARTITION (day = 'mo')")
    for nothing in ("k DROP IF EXISTS PARTITION (day = 'mo')", "IF EXISTS nobody DROP PARTITION (day = 'mo')"):
        assert catalog.sql(f"ALTER TABLE {nothing}").message == "nothing to change"
    assert catalog.sql("TRUNCATE TABLE k; DELETE FROM k WHERE n > 99").message == "nothing to change"
    assert rows("k") == []
    assert [s.operation for s in catalog.table("a").snapshots()][:2] == ["merge", "overwrite"]

    for text, message in (
        (
            "DELETE FROM topic",
            r"line 1, column 13: only rows of a store table can be changed; 'topic' is a 'kafka' table",
        ),
        ("TRUNCATE TABLE w", r"line 1, column 16: .*'w' is a view"),
        ("\nUPDATE w SET v = 1", r"line 2, column 8: "),
    ):
        with pytest.raises(SqlError, match=message):
            catalog.sql(text)
    for text, message in (
        ("UPDATE a SET v = 1", r"column 'v' is string, got int. Use CAST"),
        ("UPDATE a SET id = 1.5", r"column 'id' is bigint"),
        ("UPDATE a SET w = 1", r"'w' is not a column"),
        ("UPDATE a SET v = u.v", r"cannot be evaluated here"),
        ("DELETE FROM a WHERE nothing = 1", r"delete: where 'nothing = 1' cannot be evaluated"),
        ("INSERT OVERWRITE k PARTITION (id = 1) SELECT 1", r"\['id'\] are not partition columns"),
        ("ALTER TABLE k DROP PARTITION (id = 1)", r"\['id'\] are not partition columns; it has \['day'\]"),
        ("ALTER TABLE topic DROP PARTITION (id = 1)", r"only rows of a store table can be changed"),
        ("SHOW PARTITIONS k PARTITION (id = 1)", r"\['id'\] are not partition columns; it has \['day'\]"),
        ("SHOW PARTITIONS a", r"SHOW PARTITIONS: table 'a' is not partitioned"),
        ("SHOW PARTITIONS topic", r"SHOW PARTITIONS: table 'topic' is not partitioned"),
        ("INSERT OVERWRITE k SELECT 1", r"Different number of columns"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            catalog.sql(text)
    for text in ("DELETE FROM nobody", "SHOW PARTITIONS nobody"):
        with pytest.raises(NotFoundError):
            catalog.sql(text)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(InvalidInputError, match=r"INSERT OVERWRITE 'a' is not supported in streaming mode.*= 'batch'"):
        catalog.sql("INSERT OVERWRITE a VALUES (7, 'x')")
    assert rows("a") == [(2, "NEW"), (5, "five!")]


def test_merge_inserts_values_in_the_order_of_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql(TABLES)
    merge = "MERGE INTO a USING w ON a.id = w.id WHEN NOT MATCHED THEN INSERT"
    catalog.sql(f"{merge} VALUES (w.id + 1, w.v)")
    assert [tuple(row) for row in catalog.table("a").read().collect()] == [(3, "new")]
    with pytest.raises(InvalidInputError, match=r"for each column \(id, v\), got 1 value\. Add the others, or name"):
        catalog.sql(f"{merge} VALUES (w.id)")
    with pytest.raises(NotFoundError, match=r"MERGE INTO 'a' USING: there is no table or view 'v'\. "):
        catalog.sql("MERGE INTO a USING v ON a.id = v.id WHEN MATCHED THEN DELETE")


def test_a_text_stands_for_a_partition_of_any_type(spark: SparkSession, tmp_path: Path) -> None:
    """As in Flink, whose PARTITION (...) takes texts."""
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql("""
        CREATE TABLE p (v INT, n INT, d DATE) PARTITIONED BY (n, d);
        SET 'execution.runtime-mode' = 'batch';
        INSERT INTO p PARTITION (n = '1', d = '2024-01-02') SELECT 10;
        INSERT INTO p PARTITION (n = '2', d = '2024-01-02') VALUES (20), (21);
        INSERT OVERWRITE p PARTITION (n = '2', d = '2024-01-02') SELECT 22;
        INSERT INTO p VALUES (30, 3, DATE '2024-01-03')
    """)
    table = catalog.table("p")
    assert sorted(row["v"] for row in table.read().collect()) == [10, 22, 30]
    assert catalog.sql("SHOW PARTITIONS p PARTITION (n = '2')").rows == (("n=2/d=2024-01-02",),)
    catalog.sql("ALTER TABLE p DROP PARTITION (n = '1'), PARTITION (d = '2024-01-03')")
    assert [row["v"] for row in table.read().collect()] == [22]
    for text in (
        "ALTER TABLE p DROP PARTITION (n = 'x')",
        "SHOW PARTITIONS p PARTITION (n = 'x')",
        "INSERT OVERWRITE p PARTITION (n = 'x', d = '2024-01-02') SELECT 1",
        "INSERT INTO p PARTITION (n = 'x', d = '2024-01-02') SELECT 1",
    ):
        with pytest.raises(InvalidInputError, match="'x'"):
            catalog.sql(text)
    assert [row["v"] for row in table.read().collect()] == [22]


def test_options_name_the_key_and_the_partitions_as_in_paimon(spark: SparkSession, tmp_path: Path) -> None:
    """Paimon's CREATE TABLE ... AS has no other way."""
    catalog = Catalog(spark, tmp_path / "warehouse", settings={"execution.runtime-mode": "batch"})
    catalog.sql("""
        CREATE TABLE a WITH ('primary-key' = 'dt, k', 'partition' = 'dt', 'bucket' = '2') AS
            SELECT 1 AS k, 'x' AS v, '2024-01-02' AS dt;
        CREATE TABLE b (k INT, v STRING) WITH ('primary-key' = 'k');
        INSERT INTO a VALUES (1, 'y', '2024-01-02')
    """)
    table = catalog.table("a")
    assert isinstance(table, TableStore)
    assert (table.primary_key, table.partition_by) == (("dt", "k"), ("dt",))
    assert [tuple(row) for row in table.read().collect()] == [(1, "y", "2024-01-02")]
    shown = catalog.sql("SHOW CREATE TABLE b").rows[0][0]
    assert "PRIMARY KEY (`k`) NOT ENFORCED" in shown
    assert "primary-key" not in shown
    for text, message in (
        ("(k INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('primary-key' = 'k')", "'primary-key' and PRIMARY KEY say the"),
        ("(k INT, d INT) PARTITIONED BY (d) WITH ('partition' = 'd')", "'partition' and PARTITIONED BY say the same"),
        ("WITH ('primary-key' = 'v') LIKE b", "'primary-key' and PRIMARY KEY say the same"),
        ("WITH ('primary-key' = 'no') AS SELECT 1 AS k", "PRIMARY KEY: 'no' is not a column"),
        ("(k INT) WITH ('partition' = ',')", "expected names of columns separated by commas"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            catalog.sql(f"CREATE TABLE c {text}")
    with pytest.raises(InvalidInputError, match="primary-key"):
        catalog.sql("ALTER TABLE b SET ('primary-key' = 'v')")


def test_computed_columns_are_in_conditions_and_values(spark: SparkSession, tmp_path: Path) -> None:
    """With and without the table's name or alias, and their fields; as in a SELECT."""
    catalog = Catalog(spark, tmp_path / "warehouse")
    catalog.sql("""
        CREATE TABLE c (a INT, twice AS a * 2, m AS MAP['k', a], r AS ROW(a, n), n INT, PRIMARY KEY (a) NOT ENFORCED);
        CREATE TABLE u (a INT, twice INT);
        SET 'execution.runtime-mode' = 'batch';
        INSERT INTO c VALUES (1, 10), (2, 20), (3, 30), (4, 40);
        INSERT INTO u VALUES (2, 4), (5, 7)
    """)

    def run(text: str) -> list[tuple[Any, ...]]:
        catalog.sql(text)
        return sorted(tuple(row) for row in catalog.table("c").read().select("a", "n").collect())

    assert run("DELETE FROM c WHERE twice = 8") == [(1, 10), (2, 20), (3, 30)]
    assert run("UPDATE c AS t SET n = t.twice * 100 + m['k'] WHERE t.TWICE - 1 > c.a + 1 AND r.`EXPR$0` = 3") == [
        (1, 10), (2, 20), (3, 603),
    ]  # fmt: skip
    merge = """
        MERGE INTO c AS t USING u AS s ON t.twice = s.twice
        WHEN MATCHED AND t.m['k'] = 2 THEN UPDATE SET n = t.twice + s.twice
        WHEN NOT MATCHED THEN INSERT (a, n) VALUES (s.a, s.twice)
        WHEN NOT MATCHED BY SOURCE AND t.twice = 2 THEN DELETE
    """
    assert run(merge) == [(2, 8), (3, 603), (5, 7)]
    with pytest.raises(InvalidInputError, match="'twice' is not a column"):
        run("UPDATE c SET twice = 1")
