"""Queries with a name continue from a state whose rows have the columns of their tables, or not at all."""

from __future__ import annotations

import pytest

from snapshot.errors import InvalidInputError
from tablestore.sql import Catalog
from tests.harness.waiting import PATIENCE_SECONDS
from tests.sql.query_rows import rows

SUM = "INSERT INTO s SELECT g, SUM(y) FROM t GROUP BY g"
VIEW = "INSERT INTO s SELECT g, SUM(y) FROM v GROUP BY g"
JOIN = "INSERT INTO s SELECT t.k, u.z FROM t JOIN u ON t.k = u.k"
TOP = "INSERT INTO s SELECT g, y FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY y) AS n FROM l) WHERE n = 1"
IN = "INSERT INTO s SELECT k, z FROM u WHERE w IN (SELECT o.z + 1 FROM u AS o)"
EXISTS = "INSERT INTO s SELECT k, z FROM u WHERE EXISTS (SELECT 1 FROM u AS o WHERE o.k = u.k)"
FIELD = "INSERT INTO s SELECT g, SUM(r.a) FROM l GROUP BY g"
OUTER = "INSERT INTO s SELECT l.g, SUM(l.y) FROM l LEFT JOIN u ON l.k = u.z GROUP BY l.g"
COUNT = "INSERT INTO s SELECT g, SUM(y) FROM l GROUP BY g"


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    columns = "k INT, g INT, x INT, y INT, r ROW<a INT, b INT>"
    catalog.sql(
        f"CREATE TABLE t ({columns}, PRIMARY KEY (k) NOT ENFORCED);"
        f"CREATE TABLE l ({columns});"
        "CREATE TABLE u (k INT, z BIGINT, w BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer'='lookup');"
        "CREATE TABLE s (g INT, y BIGINT, PRIMARY KEY (g) NOT ENFORCED);"
        "CREATE VIEW v AS SELECT * FROM t WHERE k > 0;"
        "CREATE VIEW n (k, g, x, y, r) AS SELECT * FROM l;"
        "SET 'tablestore.trigger' = 'available-now'; SET 'pipeline.name' = 'p'"
    )
    return catalog


def run(catalog: Catalog, insert: str) -> list[tuple[object, ...]]:
    """Run a continuous query over what is there, and return what its table has then."""
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    for query in catalog.sql(insert).queries:
        assert query.awaitTermination(PATIENCE_SECONDS)
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    return sorted(rows(catalog, "SELECT * FROM s"))


def write(catalog: Catalog) -> None:
    row = "(1, 1, 100, 1, ROW(1, 2)), (2, 1, 200, 2, ROW(3, 4))"
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    catalog.sql(f"INSERT INTO t VALUES {row}; INSERT INTO l VALUES {row}; INSERT INTO u VALUES (1, 7, 8)")


@pytest.mark.parametrize(
    ("insert", "alter"),
    [
        (SUM, "ALTER TABLE t MODIFY y INT AFTER k"),
        (SUM, "ALTER TABLE t ADD z INT"),
        (VIEW, "ALTER TABLE t DROP x; ALTER TABLE t ADD w INT"),
        (VIEW, "ALTER TABLE t DROP y; ALTER TABLE t ADD y INT AFTER x"),
        (SUM, "ALTER TABLE t MODIFY r ROW<b INT, a INT>"),
        (JOIN, "ALTER TABLE u MODIFY w BIGINT AFTER k"),
        ("INSERT INTO s SELECT g, SUM(y) FROM n GROUP BY g", "ALTER TABLE l MODIFY y INT FIRST"),
        (TOP, "ALTER TABLE l MODIFY y INT FIRST"),
        (SUM, "ALTER TABLE t RENAME x TO z; ALTER TABLE t RENAME y TO x; ALTER TABLE t RENAME z TO y"),
        (COUNT, "ALTER TABLE l RENAME x TO z; ALTER TABLE l RENAME y TO x; ALTER TABLE l RENAME z TO y"),
        (COUNT, "ALTER TABLE l DROP y; ALTER TABLE l ADD y INT"),
        (IN, "ALTER TABLE u MODIFY w BIGINT AFTER k"),
        (EXISTS, "ALTER TABLE u MODIFY w BIGINT AFTER k"),
        (FIELD, "ALTER TABLE l MODIFY r ROW<b INT>; ALTER TABLE l MODIFY r ROW<a INT, b INT>"),
    ],
)
def test_a_query_with_something_of_columns_in_its_state_does_not_continue_with_other_columns(
    catalog: Catalog, insert: str, alter: str
) -> None:
    write(catalog)
    before = run(catalog, insert)
    assert len(before) == 1
    catalog.sql(alter)
    name = "u" if " u " in alter else "t" if " t " in alter else "l"
    with pytest.raises(InvalidInputError, match=f"query 'p' into 's': columns of '{name}' were added, moved, dropped"):
        run(catalog, insert)
    catalog.sql("SET 'execution.runtime-mode' = 'batch'")
    assert rows(catalog, "SELECT * FROM s") == before
    catalog.sql("SET 'pipeline.name' = 'again'; SET 'execution.runtime-mode' = 'streaming'")
    assert run(catalog, insert)


@pytest.mark.parametrize(
    ("insert", "alter"),
    [
        (SUM, "ALTER TABLE t RENAME x TO z"),
        (OUTER, "ALTER TABLE l ADD v INT; ALTER TABLE u ADD v INT"),
        (SUM, "ALTER TABLE t MODIFY y INT COMMENT 'why'; ALTER TABLE u DROP w; ALTER TABLE l DROP x"),
        (COUNT, "ALTER TABLE l MODIFY y INT FIRST; ALTER TABLE l DROP x; ALTER TABLE l ADD x INT"),
    ],
)
def test_a_query_continues_when_its_state_still_fits(catalog: Catalog, insert: str, alter: str) -> None:
    write(catalog)
    assert run(catalog, insert) == [(1, 3)]
    catalog.sql(alter)
    catalog.sql("UPDATE t SET y = 5 WHERE k = 1; INSERT INTO l (k, g, y) VALUES (3, 1, 4)")
    assert run(catalog, insert) == [(1, 7)]
    assert run(catalog, insert) == [(1, 7)]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t MODIFY y INT AFTER k",
        "DROP VIEW w; CREATE VIEW w AS SELECT k, g, y + 0 AS y, x FROM t",
        "DROP TABLE t; CREATE TABLE t (k INT, x INT, g INT, y INT, PRIMARY KEY (k) NOT ENFORCED);"
        "INSERT INTO t VALUES (1, 100, 1, 1), (2, 200, 1, 2)",
    ],
)
def test_a_query_without_a_name_starts_again_when_what_its_views_read_is_changed(catalog: Catalog, change: str) -> None:
    write(catalog)
    catalog.sql(
        "RESET 'pipeline.name'; CREATE VIEW w AS SELECT * FROM t; CREATE VIEW of_w AS SELECT g, y FROM w WHERE k > 0"
    )
    insert = "INSERT INTO s SELECT g, SUM(y) FROM of_w GROUP BY g"
    assert run(catalog, insert) == [(1, 3)]
    catalog.sql(change)
    catalog.sql("UPDATE t SET y = 5 WHERE k = 1")
    assert run(catalog, insert) == [(1, 7)]


def test_a_query_without_a_name_says_that_it_starts_over(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    catalog.sql("RESET 'pipeline.name'")
    write(catalog)
    for _ in range(2):
        assert run(catalog, SUM) == [(1, 3)]
    run(catalog, COUNT)
    assert "starts over" not in caplog.text
    catalog.sql("ALTER TABLE t ADD z INT")
    for _ in range(2):
        assert run(catalog, SUM) == [(1, 3)]
    assert caplog.text.count("INSERT INTO 's' starts over: a definition that it uses was changed") == 1
