"""``FOR SYSTEM_TIME AS OF`` a constant time: old snapshots of store tables, in batch queries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError, NotFoundError
from tablestore.sql import Catalog
from tablestore.table.store import TableStore
from tests.sql.test_run import rows

ZONE = timedelta(hours=9)


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse", settings={"table.local-time-zone": "Asia/Tokyo"})
    made.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED); INSERT INTO t VALUES (1, 1)")
    return made


def stored(catalog: Catalog, name: str) -> TableStore:
    """Return a table of the store."""
    table = catalog.table(name)
    assert isinstance(table, TableStore)
    return table


def now(table: TableStore) -> str:
    """Return the time of the newest snapshot, by the clock in Tokyo, with a millisecond more than it has."""
    moment = datetime.fromtimestamp(table.snapshots()[0].timestamp_ms / 1000, UTC) + ZONE
    return f"TIMESTAMP '{moment.strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]}'"


def test_a_batch_query_reads_the_snapshot_of_that_time(catalog: Catalog) -> None:
    table = stored(catalog, "t")
    first = now(table)
    catalog.sql("INSERT INTO t VALUES (1, 2), (2, 2)")
    assert rows(catalog, f"SELECT * FROM t FOR SYSTEM_TIME AS OF {first}") == [(1, 1)]
    assert rows(catalog, f"SELECT o.v FROM t FOR SYSTEM_TIME AS OF {first} + INTERVAL '60' DAY AS o") == [(2,), (2,)]
    joined = f"SELECT t.v, o.v FROM t JOIN t FOR SYSTEM_TIME AS OF CAST({first} AS TIMESTAMP_LTZ(3)) AS o ON t.k = o.k"
    assert rows(catalog, joined) == [(2, 1)]
    catalog.sql(f"CREATE VIEW old AS SELECT SUM(v) AS s FROM t FOR SYSTEM_TIME AS OF {first}")
    catalog.sql("SET 'table.dynamic-table-options.enabled' = 'false'")
    assert rows(catalog, "SELECT s FROM old") == [(1,)]


def test_an_old_snapshot_has_its_own_columns(catalog: Catalog) -> None:
    """As in Flink; a hint reads it with the columns of now."""
    catalog.sql("CREATE TABLE s (k INT, c AS k + 1, old STRING, d AS CHAR_LENGTH(w), w STRING)")
    catalog.sql("INSERT INTO s VALUES (1, 'a', 'abc')")
    table = stored(catalog, "s")
    first = now(table)
    for change in ("ADD n INT", "DROP old", "RENAME k TO key"):
        if change.startswith("RENAME"):
            catalog.sql("ALTER TABLE s DROP c")
        catalog.sql(f"ALTER TABLE s {change}")
    catalog.sql("INSERT INTO s VALUES (2, 'de', 7)")
    assert rows(catalog, f"SELECT * FROM s FOR SYSTEM_TIME AS OF {first}") == [(1, "a", "abc", 3)]
    assert rows(catalog, f"SELECT old, d FROM s FOR SYSTEM_TIME AS OF {first} AS o WHERE k = 1") == [("a", 3)]
    assert rows(catalog, f"SELECT * FROM s FOR SYSTEM_TIME AS OF {now(table)}") == [
        (1, 3, "abc", None),
        (2, 2, "de", 7),
    ]
    number = table.snapshots()[-1].id + 1
    assert rows(catalog, f"SELECT * FROM s /*+ OPTIONS('snapshot' = '{number}') */") == [(1, 3, "abc", None)]
    own = f"'snapshot' = '{number}', 'schema' = 'own'"
    assert rows(catalog, f"SELECT * FROM s /*+ OPTIONS({own}) */") == [(1, "a", "abc", 3)]


def test_an_old_snapshot_has_its_own_order_of_columns(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (k INT, v STRING, c AS k + 1); INSERT INTO s VALUES (1, 'a')")
    table = stored(catalog, "s")
    first, own = now(table), f"'snapshot' = '{table.snapshots()[0].id}', 'schema' = 'own'"
    catalog.sql("ALTER TABLE s MODIFY v STRING FIRST")
    assert rows(catalog, "SELECT * FROM s") == [("a", 1, 2)]
    assert rows(catalog, f"SELECT * FROM s FOR SYSTEM_TIME AS OF {first}") == [(1, "a", 2)]
    assert rows(catalog, f"SELECT * FROM s /*+ OPTIONS({own}) */") == [(1, "a", 2)]


def test_an_old_snapshot_has_what_is_computed_from_fields_of_rows(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE s (r ROW<f INT>, c AS r.f + 1); INSERT INTO s VALUES (ROW(1))")
    table = stored(catalog, "s")
    first = now(table)
    catalog.sql("ALTER TABLE s ADD n INT")
    assert rows(catalog, f"SELECT c FROM s FOR SYSTEM_TIME AS OF {first}") == [(2,)]


def test_the_newest_partition_is_that_of_the_time(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE p (k INT, day STRING) PARTITIONED BY (day); INSERT INTO p VALUES (1, 'a'), (2, 'b')")
    table = stored(catalog, "p")
    first = now(table)
    catalog.sql("INSERT INTO p VALUES (3, 'b'), (4, 'c')")
    newest = "p /*+ OPTIONS('scan.partitions' = 'max_pt()') */"
    assert rows(catalog, f"SELECT k FROM {newest} FOR SYSTEM_TIME AS OF {first}") == [(2,)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t FOR SYSTEM_TIME AS OF '2024-01-31'", r"line 1, column 15: 't' FOR SYSTEM_TIME AS OF: expected a TIMESTAMP"),
        ("t FOR SYSTEM_TIME AS OF CAST(NULL AS TIMESTAMP)", "expected a TIMESTAMP"),
        ("t FOR SYSTEM_TIME AS OF LOCALTIMESTAMP AS a, t FOR SYSTEM_TIME AS OF a.ts", "an event time is not supported"),
        ("v FOR SYSTEM_TIME AS OF LOCALTIMESTAMP", "only tables of the store have old snapshots"),
        (
            "t$files FOR SYSTEM_TIME AS OF LOCALTIMESTAMP",
            r"have old snapshots\. For files.*use the hint OPTIONS\('timest",
        ),
        ("t /*+ OPTIONS('snapshot' = '1') */ FOR SYSTEM_TIME AS OF LOCALTIMESTAMP", "a hint for 't'"),
    ],
)
def test_what_has_no_such_snapshot_is_refused(catalog: Catalog, text: str, reason: str) -> None:
    catalog.sql("CREATE VIEW v AS SELECT * FROM t; SET 'execution.runtime-mode' = 'batch'")
    with pytest.raises(InvalidInputError, match=reason):
        catalog.sql(f"SELECT * FROM {text}")


def test_a_time_before_all_snapshots_and_a_continuous_query_are_refused(catalog: Catalog) -> None:
    old = "SELECT * FROM t FOR SYSTEM_TIME AS OF TIMESTAMP '2001-01-01 00:00:00'"
    reason = r"AS OF a time .* is not supported in a continuous query: the hint OPTIONS\('timestamp' = '...'\) begins"
    with pytest.raises(InvalidInputError, match=reason):
        catalog.sql(old)
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    with pytest.raises(NotFoundError, match="no snapshot at that time; the oldest is"):
        catalog.sql(old)
