"""Rows within rows: UNNEST, VALUES with ROW(...), CREATE TABLE AS, and SIMILAR TO."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import s3fs
from pyspark.sql import SparkSession

from snapshot.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tablestore import open_local
from tablestore.sql import Catalog, inserts
from tablestore.table.store import TableStore
from tests.harness.lossy_proxy import requests_since
from tests.harness.s3_server import aws_variables, s3_server
from tests.sql.test_run import finish, rows

TABLES = """
SET 'execution.runtime-mode' = 'batch';
CREATE TABLE r (id INT, list ARRAY<ROW<a INT, b STRING>>, n ARRAY<INT>, m MAP<STRING, INT>);
INSERT INTO r VALUES (1, ARRAY[ROW(1, 'x'), ROW(2, 'y')], ARRAY[7, 8], MAP['k', 1]),
    (2, CAST(NULL AS ARRAY<ROW<a INT, b STRING>>), CAST(NULL AS ARRAY<INT>), CAST(NULL AS MAP<STRING, INT>));
"""
#: The place of an element begins at 1, as in Flink.
UNNESTED = [
    ("SELECT id, e.a, b FROM r CROSS JOIN UNNEST(r.list) AS e (a, b)", [(1, 1, "x"), (1, 2, "y")]),
    ("SELECT id, c, d FROM r, UNNEST(list) AS e (c, d) WHERE c > 1", [(1, 2, "y")]),
    ("SELECT id, e.a FROM r, UNNEST(r.list) AS e", [(1, 1), (1, 2)]),
    ("SELECT r.id, e.* FROM r LEFT JOIN UNNEST(r.list) AS e ON TRUE", [(1, 1, "x"), (1, 2, "y"), (2, None, None)]),
    ("SELECT id, b, o FROM r CROSS JOIN UNNEST(list) WITH ORDINALITY AS e (a, b, o)", [(1, "x", 1), (1, "y", 2)]),
    ("SELECT id, v, o FROM r CROSS JOIN UNNEST(n) WITH ORDINALITY AS e (v, o)", [(1, 7, 1), (1, 8, 2)]),
    ("SELECT id, k, v FROM r CROSS JOIN UNNEST(m) AS e (k, v)", [(1, "k", 1)]),
    ("SELECT id, a, v FROM r CROSS JOIN UNNEST(list) AS e CROSS JOIN UNNEST(n) AS f (v)",
        [(1, 1, 7), (1, 1, 8), (1, 2, 7), (1, 2, 8)]),
    ("WITH w AS (SELECT id, list FROM r) SELECT s FROM (SELECT id + e.a AS s FROM w, UNNEST(w.list) AS e) AS q",
        [(2,), (3,)]),
    ("SELECT * FROM UNNEST(ARRAY[ROW(1, 'x')]) AS t (a, b)", [(1, "x")]),
    ("SELECT * FROM UNNEST(ARRAY[1, 2]) AS t (a)", [(1,), (2,)]),
]  # fmt: skip
SIMILAR = [
    ("'abc' SIMILAR TO '%(b|d)%'", True),
    ("'abc' SIMILAR TO '(b|c)%'", False),
    ("'abc' NOT SIMILAR TO 'a_'", True),
    ("'a.c' SIMILAR TO 'a.c'", True),
    ("'abc' SIMILAR TO 'a.c'", False),
    ("'a1' SIMILAR TO '[[:ALPHA:]][0-9]'", True),
    ("'b' SIMILAR TO '[^a-c]'", False),
    ("'a%' SIMILAR TO 'a!%' ESCAPE '!'", True),
    ("'ab' SIMILAR TO 'a!%' ESCAPE '!'", False),
    ("'abab' SIMILAR TO '(ab){2}'", True),
    ("'ab' LIKE 'a!%' ESCAPE '!'", False),
]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    made = Catalog(spark, tmp_path / "warehouse")
    made.sql(TABLES)
    return made


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id, p.r.a, O.R.q.z FROM o JOIN p ON o.id = p.id WHERE p.r.a > 1 OR o.r.b = 'x'",
        "SELECT o.id, p.s.a, s.q.z FROM o LEFT JOIN (SELECT id, r AS s FROM p) AS p ON o.id = p.id",
        "SELECT o.r.a, SUM(p.r.q.z) AS s, MAX(p.r.a) FROM o, p WHERE o.id = p.n GROUP BY o.r.a HAVING SUM(o.n) > 0",
    ],
)
def test_fields_of_rows_of_joined_tables_are_columns_of_continuous_queries(catalog: Catalog, query: str) -> None:
    for name in "op":
        catalog.sql(
            f"CREATE TABLE {name} (id INT PRIMARY KEY NOT ENFORCED, n INT, r ROW<a INT, b STRING, q ROW<z INT>>);"
            f"INSERT INTO {name} VALUES (1, 2, ROW(1, 'x', ROW(3))), (2, 1, ROW(2, 'y', ROW(4))), (3, 9, NULL)"
        )
    catalog.sql(
        "CREATE TABLE t (id INT PRIMARY KEY NOT ENFORCED, a BIGINT, z BIGINT);"
        "SET 'tablestore.trigger' = 'available-now'; SET 'execution.runtime-mode' = 'streaming'"
    )
    finish(catalog, f"INSERT INTO t {query}")
    found = rows(catalog, "SELECT * FROM t")
    assert found == rows(catalog, query)
    assert len(found) >= 2


def test_unnest_gives_the_fields_of_rows(catalog: Catalog) -> None:
    for text, wanted in UNNESTED:
        assert rows(catalog, text) == wanted, text
    for text, match in [
        ("SELECT id FROM r, UNNEST(id) AS e", "expected an ARRAY or a MAP, got int"),
        ("SELECT id FROM r, UNNEST(list) AS e (a)", r"it has 2 columns \(a, b\), and 1 names are given"),
        ("SELECT id FROM r RIGHT JOIN UNNEST(list) AS e ON TRUE", "RIGHT JOIN UNNEST"),
        ("SELECT id FROM r JOIN UNNEST(list) AS e ON e.a = 1", "a condition in ON"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(text)


def test_elements_of_columns_that_are_called_as_sql_calls_them(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE w (id INT, list ARRAY<INT>, `array` ARRAY<ARRAY<INT>>, r ROW<list ARRAY<INT>>)")
    catalog.sql("INSERT INTO w VALUES (1, ARRAY[7, 8], ARRAY[ARRAY[5]], ROW(ARRAY[9]))")
    text = "SELECT list[2], `list`[1], `array`[1][1], w.`array`[1], r.list[1], ARRAY[id, 2][1] FROM w"
    assert rows(catalog, text) == [(8, 7, 5, [5], 9, 1)]
    catalog.sql("DELETE FROM w WHERE `array`[1][1] = 1")
    assert rows(catalog, "SELECT id FROM w WHERE r.`list`[1] = 9") == [(1,)]
    catalog.sql("DELETE FROM w WHERE `array`[1][1] = 5")
    assert rows(catalog, "SELECT id FROM w") == []


def test_unnest_in_a_continuous_query(catalog: Catalog) -> None:
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")
    catalog.sql("CREATE TABLE out (id INT, a INT); CREATE TABLE n (b STRING, c BIGINT, PRIMARY KEY (b) NOT ENFORCED)")
    finish(catalog, "INSERT INTO out SELECT id, e.a FROM r LEFT JOIN UNNEST(r.list) AS e (a, b) ON TRUE")
    finish(catalog, "INSERT INTO n SELECT b, COUNT(*) FROM (SELECT e.b FROM r, UNNEST(r.list) AS e) AS q GROUP BY b")
    assert rows(catalog, "SELECT * FROM out") == [(1, 1), (1, 2), (2, None)]
    assert rows(catalog, "SELECT * FROM n") == [("x", 1), ("y", 1)]


def test_rows_without_names_go_where_the_type_says(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE q (id INT, r ROW<a INT, b STRING>)")
    null = "CAST(NULL AS ROW<a INT, b STRING>)"
    catalog.sql(f"INSERT INTO q VALUES (1, ROW(1, 'x')), (2, {null}), (3, ROW(CAST(NULL AS INT), 'z')), (4, NULL)")
    catalog.sql(f"INSERT INTO q VALUES ROW(5, ROW(5, 'v')), (6, {null})")
    found = rows(catalog, "SELECT id, r.a, r.b, r IS NULL FROM q")
    assert found == [
        (1, 1, "x", False), (2, None, None, True), (3, None, "z", False), (4, None, None, True),
        (5, 5, "v", False), (6, None, None, True),
    ]  # fmt: skip
    catalog.sql("INSERT INTO r (id, list) VALUES (3, ARRAY[ROW(9, CAST(NULL AS STRING))])")
    assert rows(catalog, "SELECT e.a, e.b FROM r, UNNEST(list) AS e WHERE id = 3") == [(9, None)]


def test_rows_in_arrays_maps_and_conditions_have_one_type(catalog: Catalog) -> None:
    null = "CAST(NULL AS ROW<a INT, b STRING>)"
    catalog.sql(f"INSERT INTO r (id, list) VALUES (3, ARRAY[ROW(9, 'n'), {null}, ROW(8, CAST(NULL AS STRING))])")
    assert rows(catalog, "SELECT list FROM r WHERE id = 3") == [([(9, "n"), None, (8, None)],)]
    found = rows(
        catalog,
        f"SELECT ARRAY[ROW(id, 1), ROW(n[1], 2)], CASE WHEN id > 1 THEN {null} ELSE ROW(id, 'x') END, "
        f"MAP['k', ROW(id), 'l', ROW(n[2])]['l'], COALESCE({null}, ROW(n[1], 'y')) FROM r WHERE id < 3",
    )
    assert found == [([(1, 1), (7, 2)], (1, "x"), (8,), (7, "y")), ([(2, 1), (None, 2)], None, (None,), (None, "y"))]


def test_not_null_within_the_type_of_a_cast_changes_nothing(catalog: Catalog) -> None:
    kinds = (
        "ARRAY<INT NOT NULL>",
        "MAP<STRING NOT NULL, ARRAY<ROW<a INT NOT NULL> NOT NULL>>",
        "ROW<a INT NOT NULL, b INT>",
    )
    nulls = ", ".join(f"CAST(NULL AS {kind})" for kind in kinds)
    assert rows(catalog, f"SELECT {nulls}, CAST(n AS ARRAY<BIGINT NOT NULL>) FROM r WHERE id = 1") == [
        (None, None, None, [7, 8])
    ]


@pytest.mark.parametrize("key", ["", " PRIMARY KEY NOT ENFORCED"])
def test_what_is_not_null_within_a_column_is_never_null(catalog: Catalog, key: str) -> None:
    kinds = {
        "v": "ROW<a INT NOT NULL, b ROW<c STRING, d INT NOT NULL>>",
        "l": "ARRAY<INT NOT NULL>",
        "m": "MAP<STRING, ROW<x INT NOT NULL>>",
    }
    catalog.sql(f"CREATE TABLE strict (k INT{key}, {', '.join(f'{name} {kind}' for name, kind in kinds.items())})")
    insert = "INSERT INTO strict VALUES (%d, ROW(%s, ROW('x', %s)), ARRAY[1, %s], MAP['k', ROW(%s)])"
    catalog.sql(insert % (1, "1", "2", "3", "4"))
    catalog.sql("INSERT INTO strict VALUES (2, NULL, NULL, NULL)")
    for place, path in enumerate(["v.a", "v.b.d", "l.element", "m.value.x"]):
        values = ["CAST(NULL AS INT)" if place == each else "1" for each in range(4)]
        with pytest.raises(InvalidInputError, match=f"NOT NULL field '{path}' must not contain NULL"):
            catalog.sql(insert % (3, *values))
    catalog.sql("INSERT INTO strict SELECT k + 2, v, l, m FROM strict")
    catalog.sql("UPDATE strict SET v = ROW(9, ROW('y', 8)) WHERE k IN (1, 4)")
    with pytest.raises(InvalidInputError, match=r"NOT NULL field 'v\.a' must not contain NULL"):
        catalog.sql("UPDATE strict SET v = ROW(CAST(NULL AS INT), ROW('y', 8)) WHERE k = 1")
    new, old = (9, ("y", 8)), (1, ("x", 2))
    assert rows(catalog, "SELECT * FROM strict") == [
        (1, new, [1, 3], {"k": (4,)}), (2, None, None, None), (3, old, [1, 3], {"k": (4,)}), (4, new, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (k) NOT ENFORCED"])
def test_a_null_in_a_column_that_is_not_null_is_named(catalog: Catalog, key: str) -> None:
    """Also where other columns are NOT NULL within, whose NULLs must not become zeros."""
    catalog.sql(f"CREATE TABLE strict (k INT NOT NULL, l ARRAY<INT NOT NULL> NOT NULL, n INT NOT NULL{key})")
    catalog.sql("CREATE TABLE loose (k INT, l ARRAY<INT>, n INT); INSERT INTO loose VALUES (1, ARRAY[2], 3)")
    catalog.sql("INSERT INTO strict SELECT * FROM loose")
    for column, values in (("n", "2, ARRAY[1], CAST(NULL AS INT)"), ("l", "2, CAST(NULL AS ARRAY<INT>), 1")):
        with pytest.raises(InvalidInputError, match=f"^NOT NULL column '{column}' must not contain NULL; 1 of 1 rows"):
            catalog.sql(f"INSERT INTO strict VALUES ({values})")
    with pytest.raises(InvalidInputError, match=r"^NOT NULL field 'l\.element' must not contain NULL"):
        catalog.sql("INSERT INTO strict VALUES (2, ARRAY[CAST(NULL AS INT)], 1)")
    assert rows(catalog, "SELECT * FROM strict") == [(1, [2], 3)]


def test_fields_of_rows_change_by_their_new_type(catalog: Catalog) -> None:
    """Fields are widened, added, dropped and moved; of a dropped one that is added again nothing is left."""
    catalog.sql(
        "CREATE TABLE f (k INT PRIMARY KEY NOT ENFORCED, v ROW<f1 INT, f2 ROW<f1 STRING, f2 INT NOT NULL>>, "
        "l ARRAY<ROW<a INT NOT NULL, b STRING>>, m MAP<INT, ROW<x FLOAT, y INT>>, z ARRAY<ARRAY<INT>>)"
    )
    row = "ROW(10, ROW('a', 100)), ARRAY[ROW(1, 'x')], MAP[1, ROW(CAST(0.5 AS FLOAT), 2)], ARRAY[ARRAY[3]]"
    catalog.sql(f"INSERT INTO f VALUES (1, {row})")
    catalog.sql("ALTER TABLE f MODIFY v ROW<f1 BIGINT, f2 ROW<f3 DOUBLE, f2 INT>, f3 STRING>")
    catalog.sql(
        "ALTER TABLE f MODIFY (l ARRAY<ROW<b STRING, c INT, a BIGINT>>, m MAP<INT, ROW<x DOUBLE, y INT>>, "
        "z ARRAY<ARRAY<BIGINT>>)"
    )
    big, half = 3_000_000_000, "CAST(0.5 AS DOUBLE)"
    catalog.sql(
        f"INSERT INTO f VALUES (2, ROW({big}, ROW({half}, CAST(NULL AS INT)), 'n'), ARRAY[ROW('y', 5, {big})], "
        f"MAP[1, ROW({half}, 2)], ARRAY[ARRAY[{big}]])"
    )
    assert rows(catalog, "SELECT * FROM f") == [
        (1, (10, (None, 100), None), [("x", None, 1)], {1: (0.5, 2)}, [[3]]),
        (2, (big, (0.5, None), "n"), [("y", 5, big)], {1: (0.5, 2)}, [[big]]),
    ]
    kind = "ROW<f1 BIGINT, f2 ROW<f3 DOUBLE, f2 INT>, f3 STRING%s>"
    for text, match in [
        (f"v {kind.replace('f1 BIGINT', 'f1 BIGINT NOT NULL') % ''}", "'v.f1' cannot become NOT NULL"),
        (f"v {kind % ', n INT NOT NULL'}", "'v.n' cannot become NOT NULL"),
        (f"v {kind.replace('f1 BIGINT', 'f1 INT') % ''}", "from bigint to int"),
        ("m MAP<BIGINT, ROW<x DOUBLE, y INT>>", "widen a nested type by its path"),
        ("v INT", "widen a nested type by its path"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(f"ALTER TABLE f MODIFY {text}")
    assert len(rows(catalog, "SELECT * FROM f")) == 2
    catalog.sql("ALTER TABLE f MODIFY (v ROW<g1 INT, g2 STRING>, l ARRAY<ROW<d INT>>)")
    assert rows(catalog, "SELECT v, l FROM f") == [((None, None), [(None,)])] * 2


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (k) NOT ENFORCED"])
def test_elements_and_values_may_be_null_from_a_change_on(catalog: Catalog, key: str) -> None:
    catalog.sql(f"CREATE TABLE e (k INT, l ARRAY<INT NOT NULL>, m MAP<STRING, ARRAY<INT NOT NULL> NOT NULL>{key})")
    catalog.sql("INSERT INTO e VALUES (1, ARRAY[1], MAP['a', ARRAY[1]])")
    new = "INSERT INTO e VALUES (2, ARRAY[2, CAST(NULL AS INT)], MAP['a', ARRAY[CAST(NULL AS INT)], 'b', NULL])"
    with pytest.raises(InvalidInputError, match="must not contain NULL"):
        catalog.sql(new)
    catalog.sql("ALTER TABLE e MODIFY (l ARRAY<BIGINT>, m MAP<STRING, ARRAY<INT>>)")
    catalog.sql(new)
    wanted = [(1, [1], {"a": [1]}), (2, [2, None], {"a": [None], "b": None})]
    table = catalog.table("e")
    assert isinstance(table, TableStore)
    for _ in range(2):
        assert rows(catalog, "SELECT * FROM e") == wanted
        local = sorted(open_local(table.path).to_arrow().to_pylist(), key=lambda row: row["k"])
        assert [(row["k"], row["l"], dict(row["m"])) for row in local] == wanted
        changes = table.changes(0).where("_change_type <> 'update_preimage'").sort("k").collect()
        assert [(row["k"], row["l"], row["m"]) for row in changes] == wanted
        table.compact()


def test_similar_to_is_a_pattern_for_the_whole_text(catalog: Catalog) -> None:
    (found,) = rows(catalog, f"SELECT {', '.join(text for text, _ in SIMILAR)}")
    assert dict(zip((text for text, _ in SIMILAR), found, strict=True)) == dict(SIMILAR)
    for text, match in [
        ("'x' SIMILAR TO '[x'", "expected a regular expression of the SQL standard"),
        ("'x' SIMILAR TO 'a!' ESCAPE '!'", "expected a regular expression"),
        ("'x' SIMILAR TO 'a' ESCAPE '!!'", "expected one character"),
        ("'x' SIMILAR TO UPPER('x')", "expected a pattern in single quotes"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(f"SELECT {text}")


def test_a_table_is_created_of_a_query(catalog: Catalog) -> None:
    def described(name: str) -> list[tuple[Any, ...]]:
        return [row[:4] for row in catalog.sql(f"DESCRIBE {name}").rows]

    catalog.sql("CREATE TABLE plain WITH ('bucket' = '2') AS SELECT id, id * 1.5 AS x, n FROM r")
    assert described("plain") == [
        ("id", "INT", "TRUE", ""), ("x", "DECIMAL(13, 1)", "TRUE", ""), ("n", "ARRAY<INT>", "TRUE", ""),
    ]  # fmt: skip
    assert rows(catalog, "SELECT id, n[1] FROM plain") == [(1, 7), (2, None)]
    with pytest.raises(AlreadyExistsError):
        catalog.sql("CREATE TABLE plain AS SELECT 1 AS x")
    # What is rejected leaves no table; after another failure something may have been committed.
    for text in ("AS SELECT NULL AS id", "(PRIMARY KEY (id) NOT ENFORCED) AS SELECT CAST(NULL AS INT) AS id"):
        with pytest.raises(InvalidInputError):
            catalog.sql(f"CREATE TABLE nothing {text}")
        with pytest.raises(NotFoundError):
            catalog.table("nothing")
    with pytest.raises(Exception, match="broken") as failed:
        catalog.sql("CREATE TABLE stays AS SELECT CAST(RAISE_ERROR('broken') AS INT) AS id FROM r")
    assert not isinstance(failed.value, InvalidInputError)
    assert rows(catalog, "SELECT * FROM stays") == []
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")
    finish(catalog, "CREATE TABLE counts (PRIMARY KEY (one) NOT ENFORCED) AS SELECT 1 AS one, COUNT(*) AS c FROM r")
    assert described("counts") == [("one", "INT", "FALSE", "PRI(one)"), ("c", "BIGINT", "TRUE", "")]
    assert rows(catalog, "SELECT * FROM counts") == [(1, 2)]


def test_a_table_of_a_query_has_further_columns(catalog: Catalog) -> None:
    """As in Flink: new columns come first, and declared ones of the query have the declared type at their place."""
    catalog.sql(
        "CREATE TABLE wide (note STRING, x DOUBLE COMMENT 'as declared', cost AS x * 2, "
        "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, PRIMARY KEY (id) NOT ENFORCED) "
        "AS SELECT id, id * 1.5 AS x, TIMESTAMP '2024-01-02 03:04:05' AS ts FROM r"
    )
    assert [row[:2] for row in catalog.sql("DESCRIBE wide").rows] == [
        ("note", "STRING"), ("cost", "DOUBLE"), ("id", "INT"), ("x", "DOUBLE"), ("ts", "TIMESTAMP(6) *ROWTIME*"),
    ]  # fmt: skip
    at = datetime(2024, 1, 2, 3, 4, 5)
    assert rows(catalog, "SELECT * FROM wide") == [(None, 3.0, 1, 1.5, at), (None, 6.0, 2, 3.0, at)]
    catalog.sql("CREATE TABLE turned (x, id) AS SELECT id, id * 1.5 AS x FROM r")
    assert rows(catalog, "SELECT * FROM turned") == [(Decimal("1.5"), 1), (Decimal("3.0"), 2)]
    for text, match in [
        ("(x) AS SELECT id, 1 AS x FROM r", r"names of the query's columns in some order \(id, x\), got x"),
        ("(id DATE) AS SELECT id FROM r", "column 'id' is DATE, the query's column 1 is int"),
        ("(id AS 1) AS SELECT id, 2 AS x FROM r", "'id' is computed or virtual and cannot be written"),
        ("(PRIMARY KEY (k) NOT ENFORCED) AS SELECT id FROM r", "'k'"),
        ("AS SELECT id, id FROM r", "a column is named twice: id, id"),
        ("LIKE r AS SELECT id FROM r", "LIKE is not supported in CREATE TABLE AS"),
        ("(x, id)", "expected a type"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            catalog.sql(f"CREATE TABLE nothing {text}")
        assert "nothing" not in catalog.tables()


def test_a_table_of_a_query_may_exist(catalog: Catalog) -> None:
    """As in Flink, the rows are inserted in any case; a continuous query goes on where it was."""
    for query in ("SELECT id FROM r", "SELECT 3 AS id"):
        catalog.sql(f"CREATE TABLE IF NOT EXISTS again AS {query}")
    assert rows(catalog, "SELECT * FROM again") == [(1,), (2,), (3,)]
    with pytest.raises(InvalidInputError, match="Different number of columns"):
        catalog.sql("CREATE TABLE IF NOT EXISTS again AS SELECT id, id AS other FROM r")
    assert len(rows(catalog, "SELECT * FROM again")) == 3, "a table that was there is not dropped"
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'; SET 'tablestore.trigger' = 'available-now'")
    text = "CREATE TABLE IF NOT EXISTS copied AS SELECT id FROM again"
    assert finish(catalog, text) == 3
    assert finish(catalog, text) == 0
    assert len(rows(catalog, "SELECT * FROM copied")) == 3


def test_a_query_is_planned_once_for_its_table(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, plan = [], inserts.batch_frame
    monkeypatch.setattr(inserts, "batch_frame", lambda *given: planned.append(given) or plan(*given))
    catalog.sql("CREATE TABLE once AS SELECT id FROM r")
    assert len(planned) == 1


def test_a_query_opens_each_table_twice(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for its columns and once for its rows; whether it is there does not take its files."""
    with s3_server() as endpoint:
        for name, value in aws_variables(endpoint).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("lake")
        catalog = Catalog(spark, "s3://lake/warehouse")
        catalog.sql("CREATE TABLE o (k INT, PRIMARY KEY (k) NOT ENFORCED); SET 'execution.runtime-mode' = 'batch'")
        requests_since(endpoint)
        assert catalog.sql("SELECT k FROM o WHERE k = 1").frame is not None
        opened = [each for each in requests_since(endpoint) if "_last_checkpoint" in each]
        with pytest.raises(AlreadyExistsError):
            catalog.sql("CREATE VIEW o AS SELECT 1 AS k")
        assert not any("_delta_log" in each for each in requests_since(endpoint))
    s3fs.S3FileSystem.clear_instance_cache()
    # Each time, it looks at the base table and the commit table.
    assert len(opened) == 4, opened
