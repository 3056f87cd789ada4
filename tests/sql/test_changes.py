"""Continuous queries over tables whose rows change: right at the end of every micro-batch, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS
from tests.soak.queries import run_round
from tests.sql.changes import Follower, Row, Side, ddl, quick, random_side, run
from tests.sql.test_run import finish, rows

STEP, COUNT = 8, 24
#: What every run tries, each time from its first to its last micro-batch; some fail in the middle and go on.
FIXED = [
    "SELECT g, COUNT(*), SUM(n), AVG(m), COUNT(DISTINCT n) FROM u WHERE k > 0 GROUP BY g HAVING COUNT(*) > 1",
    "SELECT COALESCE(u.k, v.k), u.n, v.m FROM u FULL JOIN v ON u.k = v.k WHERE u.n IS NULL OR u.n <> 3",
    "SELECT u.k, u.n, v.g, v.m FROM u, v WHERE v.n > 0 AND u.j = v.k",
    "SELECT k, n FROM u WHERE j IN (SELECT k FROM v WHERE n > 0) AND EXISTS (SELECT 1 FROM v AS w WHERE w.g = u.g)",
    "SELECT u.k, v.k AS l, u.g, v.n FROM u LEFT JOIN v ON u.j = v.j AND v.n > 0 AND u.g <> 'b' "
    "WHERE NOT EXISTS (SELECT 1 FROM v AS w WHERE w.k = u.n)",
    "(SELECT g, n FROM u EXCEPT SELECT g, n FROM v WHERE n > 0) UNION ALL "
    "(SELECT g, j FROM u INTERSECT SELECT g, j FROM v)",
    "SELECT g, j, GROUPING(g, j) AS e, COUNT(*), SUM(n), COUNT(DISTINCT n) FROM u GROUP BY ROLLUP (g, j) "
    "HAVING COUNT(*) > 1",
    "SELECT UPPER(u.g) AS x, v.j, SUM(u.n + v.n) FROM u JOIN v ON u.j = v.k GROUP BY CUBE (UPPER(u.g), v.j)",
    "SELECT DISTINCT g, j FROM u GROUP BY GROUPING SETS ((g), (g, j), (g))",
    "(SELECT g, n FROM u EXCEPT ALL SELECT g, n FROM v) UNION ALL "
    "(SELECT g, j FROM u INTERSECT ALL SELECT g, j FROM v)",
    "SELECT g, COUNT(*), SUM(j) FROM (SELECT g, j FROM u INTERSECT ALL SELECT g, j FROM v) AS a GROUP BY g",
    # Keys that are NULL, which equal nothing.
    "SELECT a.g, a.c, b.g AS h, b.d FROM (SELECT g, COUNT(*) AS c FROM u GROUP BY g) AS a FULL JOIN (SELECT g, "
    "COUNT(*) AS d FROM v GROUP BY g) AS b ON a.g = b.g",
]
#: A round with aggregations, a join, a Top-N and EXISTS.
ROUND = 10


@pytest.fixture
def catalog(quick_catalog: Catalog) -> Catalog:
    return quick_catalog


def tables(catalog: Catalog, wire: Wire, topic: Callable[[], str], seed: int) -> list[Side]:
    """Make two tables of which each micro-batch reads `STEP` messages each."""
    sides = [random_side("u", seed, COUNT), random_side("v", seed + 1, COUNT)]
    topics = {side.name: wire.make(topic()) for side in sides}
    for side in sides:
        wire.send(topics[side.name], side.records())
    catalog.sql(ddl(topics, STEP))
    return sides


@pytest.mark.timeout(600)
def test_every_micro_batch_gives_what_duckdb_gives(
    catalog: Catalog, wire: Wire, topic: Callable[[], str], tmp_path: Path
) -> None:
    """Filters, aggregates, HAVING, DISTINCT, unions, joins, queries in queries, over restarts."""
    sides = tables(catalog, wire, topic, 7)
    for number, text in enumerate(FIXED):
        follower = Follower(STEP, [text], sides, fail_at=1 if number == 0 else None)
        while follower.batches < COUNT // STEP:
            run(catalog, follower, tmp_path / f"checkpoint-{number}")


@pytest.mark.timeout(600)
def test_random_queries_give_what_duckdb_gives(spark: SparkSession, wire: Wire, tmp_path: Path) -> None:
    """A round of ``make soak``."""
    with quick(spark):
        found = run_round(tmp_path, spark, wire, 1, ROUND)
    assert found.wrong == ""
    assert len(found.queries) >= 2
    assert found.batches > 1


def test_groups_that_end_are_deleted_where_they_were_written(
    catalog: Catalog, wire: Wire, topic: Callable[[], str]
) -> None:
    """Into an upsert topic and into store tables, of which one is read on; over restarts, with a key that is wider."""
    sides = {"u": wire.make(topic()), "per_g": wire.make(topic())}
    catalog.sql(ddl({"u": sides["u"]}, 100))
    catalog.sql(
        "CREATE TABLE per_g (g STRING, c BIGINT, s BIGINT, PRIMARY KEY (g) NOT ENFORCED) WITH ('connector' = "
        f"'upsert-kafka', 'topic' = '{sides['per_g']}', 'properties.bootstrap.servers' = '...', 'key.format' = 'json', "
        "'value.format' = 'json'); CREATE TABLE wide (k INT, g STRING, PRIMARY KEY (k, g) NOT ENFORCED); "
        "CREATE TABLE looked (k INT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer' = 'lookup'); "
        "CREATE TABLE copy (k INT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED); "
        "CREATE TABLE total (one INT, c BIGINT, s BIGINT, PRIMARY KEY (one) NOT ENFORCED); "
        "SET 'tablestore.trigger' = 'available-now'"
    )
    inserts = (
        "EXECUTE STATEMENT SET BEGIN "
        "INSERT INTO per_g SELECT g, COUNT(*), SUM(n) FROM u GROUP BY g HAVING COUNT(*) < 3; "
        "INSERT INTO wide SELECT k, g FROM u; INSERT INTO looked SELECT k, n FROM u WHERE n > 0; END"
    )
    onward = "INSERT INTO copy SELECT k, n + 1 FROM looked WHERE n <> 3"
    total = "INSERT INTO total SELECT 1, COUNT(*), SUM(n) FROM copy"

    def send(*messages: tuple[int, Row | None]) -> None:
        wire.send(sides["u"], Side("u", list(messages)).records())
        for text in (inserts, onward, total):
            finish(catalog, text)

    def row(g: str, n: int) -> Row:
        return {"g": g, "n": n, "m": None, "j": 0}

    send((1, row("a", 1)), (2, row("b", 2)), (3, row("b", 3)))
    assert rows(catalog, "SELECT * FROM per_g") == [("a", 1, 1), ("b", 2, 5)]
    assert rows(catalog, "SELECT * FROM copy") == [(1, 2), (2, 3)]
    assert rows(catalog, "SELECT c, s FROM total") == [(2, 5)]
    send((1, row("b", 4)), (2, None), (4, row("b", 1)), (5, row("c", 0)))
    assert rows(catalog, "SELECT * FROM per_g") == [("c", 1, 0)]
    assert sorted(key for key, value in wire.pairs(sides["per_g"]) if value is None) == [b'{"g":"a"}', b'{"g":"b"}']
    assert rows(catalog, "SELECT * FROM wide") == [(1, "b"), (3, "b"), (4, "b"), (5, "c")]
    assert rows(catalog, "SELECT * FROM looked") == [(1, 4), (3, 3), (4, 1)]
    assert rows(catalog, "SELECT * FROM copy") == [(1, 5), (4, 2)]
    assert rows(catalog, "SELECT c, s FROM total") == [(2, 7)]


def test_outer_joins_compare_columns_of_other_types_and_read_fields_of_rows(catalog: Catalog) -> None:
    columns = "n STRING, m MAP<STRING, INT>, r ROW<a INT, b STRING>, d DOUBLE, PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE o (id INT, c STRING, {columns}); CREATE TABLE c (id INT, {columns})")
    catalog.sql("CREATE TABLE s (id INT, n STRING, m MAP<STRING, INT>, b STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("SET 'execution.runtime-mode' = 'batch'; SET 'tablestore.trigger' = 'available-now'")
    catalog.sql(
        "INSERT INTO o VALUES (1, '1', 'x', MAP['k', 1], ROW(1, 'x'), 0.0), "
        "(2, '01', 'y', MAP['k', 1], ROW(1, 'y'), 1.0), "
        "(3, CAST(NULL AS STRING), 'z', MAP['k', 3], CAST(NULL AS ROW<a INT, b STRING>), CAST(NULL AS DOUBLE)); "
        "INSERT INTO c VALUES (1, 'one', MAP['k', 1], ROW(1, 'x'), -0.0), (5, 'five', MAP['k', 1], ROW(2, 'x'), 2.0)"
    )
    for on in (
        "o.c = c.id",
        "o.d = c.d AND o.c = c.id",
        "UPPER(c.n) = 'ONE' AND c.id = o.c AND o.r.b LIKE 'x%'",
        "o.id = c.id AND o.r.b = 'y' AND c.r.a < 3",
        "o.r.a = c.r.a AND c.id = CAST(o.c AS INT) AND UPPER(c.n) = 'ONE'",
        "c.id = o.id + 0",
    ):
        text = f"SELECT o.id, c.n, c.m, o.r.b FROM o LEFT JOIN c ON {on}"
        wanted = rows(catalog, text)
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        finish(catalog, f"INSERT INTO s {text}")
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        assert sorted(rows(catalog, "SELECT * FROM s"), key=str) == sorted(wanted, key=str)
        catalog.sql("TRUNCATE TABLE s")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(InvalidInputError, match="a join with 'c' by a MAP is not supported"):
        catalog.sql("SELECT o.id, c.n FROM o LEFT JOIN c ON o.m = c.m")


def test_a_comparison_without_the_time_of_both_tables_is_no_bound_of_time(catalog: Catalog) -> None:
    """Spark joins tables with watermarks by bounds of their times only, and refuses others when the query starts."""
    time = "ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
    catalog.sql(f"CREATE TABLE a (id INT, v INT, {time}); CREATE TABLE b (id INT, w INT, {time})")
    catalog.sql(
        "CREATE TABLE s (id INT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED); SET 'tablestore.trigger' = 'available-now'"
    )
    at = "TIMESTAMP '2024-01-01 00:00:00'"
    catalog.sql(f"INSERT INTO a VALUES (1, 1, {at}), (2, 9, {at}), (3, 1, {at})")
    catalog.sql(f"INSERT INTO b VALUES (1, 5, {at}), (1, 2, {at}), (2, 5, {at})")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    join = "SELECT a.id, b.w FROM a LEFT JOIN b ON a.id = b.id AND"
    for condition in ("b.w > 3 AND a.v < 6", "b.w > 3 AND a.v < 6 AND a.ts > TIMESTAMP '2000-01-01 00:00:00'"):
        finish(catalog, f"INSERT INTO s SELECT id, COUNT(w) FROM ({join} {condition}) AS j GROUP BY id")
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")
        assert rows(catalog, "SELECT * FROM s") == [(1, 1), (2, 0), (3, 0)]
        catalog.sql("TRUNCATE TABLE s; SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(InvalidInputError, match="a LEFT JOIN with a condition over both sides that is not an equality"):
        catalog.sql(f"{join} a.v < b.w")
    assert catalog.sql(f"{join} a.v < b.w AND a.ts > b.ts - INTERVAL '5' SECOND").frame is not None


def test_rows_that_are_taken_from_a_table_without_a_key_end_its_queries(catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE plain (a INT); CREATE TABLE sums (one INT, s BIGINT, PRIMARY KEY (one) NOT ENFORCED); "
        "INSERT INTO plain VALUES (1), (2); SET 'tablestore.trigger' = 'available-now'"
    )
    finish(catalog, "INSERT INTO sums SELECT 1, SUM(a) FROM plain")
    assert rows(catalog, "SELECT s FROM sums") == [(3,)]
    catalog.sql("DELETE FROM plain WHERE a = 1")
    (query,) = catalog.sql("INSERT INTO sums SELECT 1, SUM(a) FROM plain").queries
    with pytest.raises(StreamingQueryException, match="rows were deleted or updated"):
        query.awaitTermination(PATIENCE_SECONDS)
