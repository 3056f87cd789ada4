"""Division and AVG as in Flink: of integers they are integers, and of floating-point numbers there is no error."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
import sqlglot
from pyspark.sql.types import DataType, IntegerType, StructField, StructType
from sqlglot import exp

from tablestore.sql import Catalog
from tablestore.sql.parser.functions.arithmetic import with_flink_arithmetic
from tests.connectors.harness.wire import Wire
from tests.sql.test_run import BATCH, ONCE, finish, rows

NAN = math.nan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 / 2, -7 / 2, 8 / 2 / 2, 7 / (2 / 1), (1 + 2) / 2 * 2, 7 / NULLIF(0, 0)", (3, -3, 2, 7 // 2, 2, None)),
        ("1E0 / 0, -1E0 / 0, 0E0 / 0, CAST('NaN' AS DOUBLE) / 0, 7 / 2E0", (math.inf, -math.inf, NAN, NAN, 3.5)),
        ("CAST(CAST(1 AS FLOAT) / CAST(3 AS FLOAT) AS STRING)", ("0.33333334",)),
        ("CAST(7.00 / 2 AS STRING), CAST(1.0 / 3 AS STRING)", ("3.5000000000000", "0.333333333333")),
        ("CAST(CAST(10 AS DECIMAL(5, 2)) / y AS STRING) FROM t WHERE x = 1", ("10.0000000000000",)),
        ("CAST(2 / CAST(-0.005 AS DECIMAL(10, 3)) AS STRING)", ("-400.00000000000",)),
        ("CAST(CAST(-0.005 AS DECIMAL(10, 3)) / CAST(3 AS BIGINT) AS STRING)", ("-0.00166666666666666666667",)),
        ("FLOOR(x), CEIL(x + y), SIGN(-x), TRUNCATE(x, 0) FROM t WHERE x = 3", (3, 4, -1, 3)),
        ("AVG(x), AVG(x) FILTER (WHERE x > 1), AVG(DISTINCT x), SUM(x) / COUNT(*) FROM t", (2, 3, 2, 2)),
        ("AVG(x) OVER (), x FROM t WHERE x / 2 = 2", (4, 4)),
        ("y / 2 FROM (SELECT AVG(x) AS y FROM t) AS s", (1,)),
        ("x / 2, SUM(y) / x, SUM(y) / 3 FROM t WHERE x = 4 GROUP BY x", (2, 0, 0)),
        ("x AS g, SUM(y) / 3 FROM t WHERE x = 4 GROUP BY g", (4, 0)),
        ("x FROM t AS a WHERE x = 3 AND EXISTS (SELECT 1 FROM t AS b WHERE b.x = a.x / 2)", (3,)),
        ("SUM(a.x / b.x) FROM t AS a JOIN t AS b ON a.x / b.x = 2", (4,)),
        ("SUM(v / 2) FROM (SELECT a.v FROM (SELECT ARRAY[3, 5] AS l) AS s CROSS JOIN UNNEST(l) AS a (v)) AS q", (3,)),
    ],
)
def test_results_have_the_types_of_flink(catalog: Catalog, text: str, expected: tuple[Any, ...]) -> None:
    catalog.sql("CREATE VIEW t AS SELECT x, 1 AS y FROM (VALUES (1), (3), (4), (2)) AS v (x)")
    ((*found,),) = rows(catalog, f"SELECT {text}")
    assert repr(tuple(found)) == repr(expected)


@pytest.mark.parametrize("fits", [True, False])
def test_spark_analyzes_one_query_for_the_types_of_a_select(fits: bool) -> None:
    """One for each operand only where Spark rejects them beside each other, and none for a number."""
    asked: list[str] = []

    def type_of(expression: exp.Expr, _: exp.Select | None) -> DataType | None:
        asked.append(expression.sql())
        if not isinstance(expression, exp.Anonymous):
            return IntegerType()
        return StructType([StructField("f", IntegerType())] * len(expression.expressions)) if fits else None

    text = "SELECT a / b, a / 2, -7 / a, AVG(a), a / 12345678901, (SELECT MAX(a / b) FROM u) FROM t WHERE b / a = 1"
    found = with_flink_arithmetic(sqlglot.parse_one(text), type_of)
    assert found.sql().count(" AS INT)") == 7
    whole, alone = ["STRUCT(a, b)", "STRUCT(a, b, 12345678901)"], ["12345678901", "a", "a", "b", "b"]
    assert sorted(asked) == sorted(whole if fits else whole + alone)


def test_queries_of_with_come_before_those_that_use_them(catalog: Catalog) -> None:
    tables = "WITH a AS (SELECT 7 / 2 AS x), b AS (SELECT x / 2 AS y FROM a)"
    assert rows(catalog, f"{tables} SELECT x, y FROM a, b UNION ALL SELECT 9 / 2, 1") == [(3, 1), (4, 1)]
    assert rows(catalog, "VALUES (7 / 2, 1E0 / 0)") == [(3, math.inf)]


def test_statements_and_computed_columns_divide_alike(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (a INT, b INT, c AS a / b, v BIGINT, PRIMARY KEY (a) NOT ENFORCED)")
    catalog.sql("INSERT INTO t VALUES (7, 2, 7 / 2), (9, 2, 5); UPDATE t SET v = a / b WHERE a / b = 4")
    assert rows(catalog, "SELECT * FROM t") == [(7, 2, 3, 3), (9, 2, 4, 4)]
    catalog.sql(
        "MERGE INTO t USING (SELECT 19 AS x) AS s ON t.a = s.x / 2 WHEN MATCHED AND x / 2 = 9 THEN "
        "UPDATE SET v = x / 2; DELETE FROM t WHERE a / 2 = 3"
    )
    assert rows(catalog, "SELECT * FROM t") == [(9, 2, 4, 9)]


def test_continuous_queries_divide_alike(catalog: Catalog, wire: Wire, topic: Callable[[], str]) -> None:
    """Over rows that are added, and over rows that change, whose averages are sums of our own."""
    name = wire.make(topic())
    catalog.sql(
        f"CREATE TABLE k (a INT, d DOUBLE) WITH ('connector' = 'kafka', 'topic' = '{name}', 'format' = 'json', "
        "'properties.bootstrap.servers' = '...', 'scan.startup.mode' = 'earliest-offset'); "
        "CREATE TABLE u (a INT, d DECIMAL(9, 2), PRIMARY KEY (a) NOT ENFORCED); "
        "CREATE TABLE t (k INT, a INT, b INT, c BIGINT, d INT, m DOUBLE, PRIMARY KEY (k) NOT ENFORCED); "
        f"{ONCE}; INSERT INTO k VALUES (1, 0E0), (2, 0E0), (4, 1E0); INSERT INTO u VALUES (1, 0), (2, 0), (4, 1)"
    )
    picked = "AVG(a), AVG(DISTINCT a), SUM(a) / COUNT(*), AVG(a) / 2"
    finish(catalog, f"INSERT INTO t SELECT 1, {picked}, MAX(a / d) FROM k")
    finish(catalog, f"INSERT INTO t SELECT 2, {picked}, MAX(a / CAST(d AS DOUBLE)) FROM u")
    assert rows(catalog, "SELECT * FROM t") == [(k, 2, 2, 2, 1, math.inf) for k in (1, 2)]


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions_are_as_duckdb_has_them(catalog: Catalog, seed: int) -> None:
    """DuckDB divides integers by `//`, and floating-point numbers as Flink does."""
    dice, db = random.Random(seed), duckdb.connect()
    values = [(dice.choice([-7, -2, 3, 10, 2**31]), dice.choice([-3, 1, 4]), dice.choice([0.0, -1.5, 3.0])) for _ in range(6)]  # fmt: skip  # noqa: E501
    listed = ", ".join(f"(CAST({i} AS BIGINT), {j}, CAST({d} AS DOUBLE))" for i, j, d in values)

    def expression(depth: int) -> tuple[str, str, bool]:
        """Return an expression, the same for DuckDB, and whether it is an integer."""
        if depth == 0:
            return dice.choice([("i", "i", True), ("j", "j", True), ("d", "d", False), ("5", "5", True)])
        (one, one_there, one_whole), (two, two_there, two_whole) = expression(depth - 1), expression(depth - 1)
        if dice.random() < 0.4:
            sign = dice.choice("+-")
            return f"({one} {sign} {two})", f"({one_there} {sign} {two_there})", one_whole and two_whole
        if one_whole and two_whole:
            return f"({one} / NULLIF({two}, 0))", f"({one_there} // NULLIF({two_there}, 0))", True
        return f"({one} / {two})", f"({one_there} / {two_there})", False

    said = [expression(dice.choice([1, 2, 3])) for _ in range(8)]
    catalog.sql(BATCH)
    frame = catalog.sql(f"SELECT {', '.join(each[0] for each in said)} FROM (VALUES {listed}) AS v (i, j, d)").frame
    assert frame is not None
    there = db.execute(f"SELECT {', '.join(each[1] for each in said)} FROM (VALUES {listed}) AS v (i, j, d)").fetchall()
    assert sorted(map(repr, map(tuple, frame.collect()))) == sorted(map(repr, there))
    kinds = [field.dataType.simpleString() for field in frame.schema]
    assert [kind in {"int", "bigint"} for kind in kinds] == [whole for _, _, whole in said]
